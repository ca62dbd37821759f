"""Breaks the state of the compiled half, a field at a time, so that a check trips (tests only; tests/core/check_scenes.py).

in: an object whose record is to be broken, and the name of the flaw. out: nothing: what is done next with the object ends the process.

I1  What a test says holds.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, nogil, p_char, pointer, sizeof
from cython.cimports.flintmq.channel.connection import Connection
from cython.cimports.flintmq.channel.settlement import unacked_find, unacked_next
from cython.cimports.flintmq.channel.types import channel_t, unacked_t
from cython.cimports.flintmq.core.buffer import out_release, out_reserve, out_sent, outbuf_t
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.hash64 import map64_free, map64_init, map64_put, map64_t
from cython.cimports.flintmq.pulls.pull_group import leases_add, leases_find, leases_free, leases_init, leases_remove
from cython.cimports.flintmq.pulls.types import lease_t, lease_table_t
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.types import ENTRY_DELETED, level_t, queue_t, slot_t
from cython.cimports.flintmq.routing.route_cache import RouteCache, route_decref
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.store.log.log import log_t
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.flintmq.store.message_log import list_find, message_t
from cython.cimports.flintmq.store.stream.stream_files import Stream
from cython.cimports.flintmq.streams.group import open_become, open_free, open_push
from cython.cimports.flintmq.streams.types import OPEN_READY, open_list_t, open_t
from cython.cimports.libc.stdint import uint64_t, uint8_t
from cython.cimports.libc.string import memset


def insist(holds: bool, first: int, second: int, with_lock: bool) -> None:
    """A check that holds or not, with two numbers as state; called with the interpreter's lock, or without."""
    truth: bint = holds
    one: uint64_t = first
    two: uint64_t = second
    if with_lock:
        check(truth, b"check_driver I1 with the interpreter's lock", one, two)
    else:
        with nogil:
            check(truth, b"check_driver I1 without the interpreter's lock", one, two)


def break_queue(handle: QueueHandle, flaw: str) -> None:
    """Of a queue with one level and one entry at least."""
    queue: pointer[queue_t] = handle.queue
    level: pointer[level_t] = queue.entries.levels
    slot: pointer[slot_t] = level.last.slots + (level.tail - level.last.base)
    if flaw == "bytes":
        queue.entries.resident_bytes = 0
    elif flaw == "live":
        level.last.live += 1
    elif flaw == "place":
        (slot + 1).state = ENTRY_DELETED
    elif flaw == "references":
        queue.refs = 0
    else:
        raise ValueError(flaw)


def break_log(managed: ManagedLog, flaw: str) -> None:
    """Of a log that something was appended to."""
    log: pointer[log_t] = managed.log
    if flaw == "durable":
        log.durable = log.tail + 4096
    elif flaw == "used":
        log.last.used = log.tail + 4096
    elif flaw == "chain":
        log.last_block = log.tail + 4096
    elif flaw == "live":
        log.containers[log.tail // log.container_size - log.first_sequence].live_count = 0
    elif flaw == "base":
        log.base = log.tail + 4096
    else:
        raise ValueError(flaw)


def break_message(store: LogStore, message_id: int) -> None:
    """A listed message counts more places than it has room for."""
    message: pointer[message_t] = list_find(address(store.logs.ml.messages), message_id)
    message.count = message.room + 1


def break_stream(stream: Stream, flaw: str) -> None:
    if flaw == "window":
        stream.stream.hot_end += 1
    elif flaw == "unwritten":
        stream.stream.space.unwritten = 0
    else:
        raise ValueError(flaw)


def break_actors(actors: ActorSystem, flaw: str) -> None:
    if flaw == "parked":
        actors.system.parked = 0
    elif flaw == "room":
        actors.system.queue.room = 0
    else:
        raise ValueError(flaw)


def break_routes(cache: RouteCache, key: bytes) -> None:
    """Puts a route of no queue under the key, and forgets that it counted it."""
    octets: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], cast(p_char, key))
    route_decref(cache.put(octets, len(key), []))
    cache.exchange.route_count = 0


def break_map() -> None:
    """A table that counts more keys than it has places takes one more."""
    map: map64_t
    map64_init(address(map))
    map64_put(address(map), 1, 1)
    map.count = (map.mask + 1) * 4
    map64_put(address(map), 2, 2)
    map64_free(address(map))


def break_connection(connection: Connection, number: int, flaw: str) -> None:
    """Of a channel with an unacked delivery."""
    channel: pointer[channel_t] = connection.channel(number)
    item: pointer[unacked_t] = unacked_find(address(channel.unacked), unacked_next(address(channel.unacked), 1))
    if flaw == "credit":
        item.consumer.credit.used = 0
    elif flaw == "settled":
        item.in_tx = 0
    else:
        raise ValueError(flaw)


def break_output() -> None:
    """More is sent than was there."""
    out: outbuf_t
    memset(address(out), 0, sizeof(outbuf_t))
    out_reserve(address(out), 10)
    out.end = 10
    out_sent(address(out), 11)
    out_release(address(out))


def break_leases() -> None:
    """A lease that does not know its place in the heap ends."""
    table: lease_table_t
    lease: pointer[lease_t]
    leases_init(address(table))
    leases_add(address(table), NULL, 1, 10, 0)
    lease = leases_find(address(table), leases_add(address(table), NULL, 2, 20, 0))
    lease.heap_at = 0
    leases_remove(address(table), lease)
    leases_free(address(table))


def break_opens(flaw: str) -> None:
    """Offsets that do not rise; a state that is not counted."""
    opens: open_list_t
    item: pointer[open_t]
    memset(address(opens), 0, sizeof(open_list_t))
    item = open_push(address(opens), 7)
    if flaw == "order":
        open_push(address(opens), 7)
    else:
        opens.held = 3
        open_become(address(opens), item, OPEN_READY, 0)
    open_free(address(opens))
