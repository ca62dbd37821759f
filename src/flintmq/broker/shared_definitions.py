"""Definitions of shared queues on all nodes: what one node declares, binds and deletes, the others have soon after.

in: durable bindings of shared queues that come and go here; the engine's directory. out: queues, exchanges and bindings declared here.

N1  The engine is the truth: a queue that is there is declared here; a durable binding that is not there is ended here, unless it waits to
    be told.
N2  A bind or unbind is answered when the engine has it. Of one binding the last change is told, one at a time.
N3  What the directory asks for and this node can't do (no such virtual host, another queue of that name, a limit) is refused by itself,
    said once in the log, and tried again each shared_definitions_retry_ms.
N4  Readings of the directory take a tenth of the time of one thread at most: whoever binds and unbinds without end slows no other.
N5  What a change costs does not grow with the changes of other queues, and its end is told to those who wait for it alone: the locks here
    are taken on I/O loops.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught, guarded
from flintmq.kv.engine import Engine, EngineError, Unavailable, UnknownOutcome, Watch
from flintmq.ports import freeze
from flintmq.protocol.v0_9_1.tables import decode_table, encode_table
from flintmq.routing.binding import QUEUE
from flintmq.shared.directory import Directory, binding_hash, read, write_binding
from flintmq.shared.keys import QueueKeys
from flintmq.shared.queue import QueueGone
from flintmq.vhost.arguments import SHARED
from flintmq.vhost.changes import Verb

if TYPE_CHECKING:
    from flintmq.broker.shared_entry import Service, SharedQueueEntry
    from flintmq.routing.exchange import Binding

log = logging.getLogger("flintmq.shared")

Done = Callable[[Any, Exception | None], None]
# verbs of virtual hosts that wait for the database together
_VERBS_AT_ONCE = 200
# the longest time that one reading of the directory may make the next one wait
_REST_S_MAX = 10.0


class _Change:
    """A binding that the engine is to be told of. row: None: it ends; tried: the engine may know of it; void: it came and went untold;
    waiters: who waits for it."""

    __slots__ = ("entry", "row", "tried", "void", "waiters")

    def __init__(self, entry: SharedQueueEntry, row: bytes | None, void: bool = False) -> None:
        self.entry = entry
        self.row = row
        self.tried = False
        self.void = void
        self.waiters: set[_Waiter] = set()


class _Waiter:
    """Whoever waits for some changes. changes: those that are missing."""

    __slots__ = ("changes", "done", "since")

    def __init__(self, changes: set[_Change], done: Done) -> None:
        self.changes = changes
        self.done = done
        self.since = time.monotonic()


def hash_of(source: str, key: bytes, arguments: Mapping[str, Any]) -> bytes:
    identity = repr((source, key, freeze(arguments) if arguments else None))
    return binding_hash(identity.encode("utf-8", "surrogateescape"))


def row_of(binding: Binding) -> bytes:
    """All that another node needs to make the binding, its exchange included."""
    source = binding.source
    return encode_table(
        {
            "source": source.name,
            "key": binding.routing_key.decode("utf-8", "surrogateescape"),
            "arguments": dict(binding.arguments),
            "kind": source.kind,
            "auto_delete": source.auto_delete,
            "internal": source.internal,
            "exchange_arguments": dict(source.arguments),
        }
    )


class SharedDefinitions:
    """Args: service: whose queues they are; alone: no other node has the engine, and nothing is told."""

    def __init__(self, service: Service, alone: bool) -> None:
        self._service = service
        self._limits = service.limits
        self._alone = alone
        self._event = threading.Event()
        self._lock = threading.Lock()  # of the next four
        self._changes: dict[tuple[int, bytes], _Change] = {}  # (queue id, hash) -> what the engine is to be told
        self._of_queues: dict[int, dict[bytes, _Change]] = {}  # the same by queue id, then by hash
        self._waiters: dict[_Waiter, None] = {}
        self._known: dict[bytes, dict[bytes, bytes]] = {}  # what the engine has: id of a life -> hash -> row
        # the thread's own
        self._token: bytes | None = None
        self._same: set[bytes] = set()  # lives whose bindings here are those of the engine
        self._watch: Watch | None = None
        self._again_s = 0.0  # when the directory is read although nothing changed; 0: it is not
        self._rest_until_s = 0.0
        self._refusals: dict[str, str] = {}  # of the reading that goes on
        self.refusals: dict[str, str] = {}  # what is not followed -> why

    @property
    def refused(self) -> int:
        return len(self.refusals)

    # --- any thread -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._event.set()

    def noted(self, binding: Binding, new: bool) -> None:
        """A binding came or went here. Under the virtual host's lock; waits for nothing."""
        queue: Any = binding.destination
        if queue.destination_kind != QUEUE or not queue.policy.is_shared or not binding.durable:
            return
        entry = self._service.entry(queue.queue_id)
        if self._alone or not self._service.state.loops or entry is None or entry.ended:
            return  # restored ones are not news, and bindings of a queue that ends, end with it
        name = hash_of(binding.source.name, binding.routing_key, binding.arguments)
        key = (queue.queue_id, name)
        with self._lock:
            before = self._changes.get(key)
            known = name in self._known.get(entry.life or b"", ())
            if before is None and known == new:
                return  # the engine said so
            void = not new and not known and before is not None and not before.tried
            change = self._changes[key] = _Change(entry, row_of(binding) if new else None, void)
            self._of_queues.setdefault(queue.queue_id, {})[name] = change
            if before is not None:
                for waiter in before.waiters:  # a later change of the binding is told for an earlier one, too
                    waiter.changes.discard(before)
                    waiter.changes.add(change)
                change.waiters, before.waiters = before.waiters, set()
        self._event.set()

    def waits(self, queue_id: int) -> bool:
        """Whether the engine is to be told of bindings of this queue."""
        return queue_id in self._of_queues

    def when_told(self, queue_id: int, done: Done) -> None:
        """`done` is called once, on any thread, when the engine was told of the present changes of a queue's bindings; PeerError 541."""
        with self._lock:
            changes = set(self._of_queues.get(queue_id, {}).values())
            if changes:
                waiter = _Waiter(changes, done)
                self._waiters[waiter] = None
                for change in changes:
                    change.waiters.add(waiter)
        if not changes:
            done(None, None)

    def refuse_late(self) -> None:
        """Whoever has waited for too long is told so; the engine is told later."""
        since = time.monotonic() - self._limits.shared_waiting_ms_max / 1000
        with self._lock:
            late = [waiter for waiter in self._waiters if waiter.since < since]
            for waiter in late:
                self._forget(waiter)
        error = PeerError(ReplyCode.INTERNAL_ERROR, "the engine of shared queues does not answer")
        for waiter in late:
            guarded("shared queues", "a binding", waiter.done, None, error)

    def _forget(self, waiter: _Waiter) -> None:
        """Under the lock."""
        self._waiters.pop(waiter, None)
        for change in waiter.changes:
            change.waiters.discard(waiter)

    def _over(self, key: tuple[int, bytes], change: _Change, life: bytes | None, error: Exception | None = None) -> None:
        """The engine has a change, or never will."""
        with self._lock:
            if life is not None and error is None:
                rows = self._known.setdefault(life, {})
                if change.row is None:
                    rows.pop(key[1], None)
                else:
                    rows[key[1]] = change.row
            if self._changes.get(key) is change:
                del self._changes[key]
                changes = self._of_queues[key[0]]
                del changes[key[1]]
                if not changes:
                    del self._of_queues[key[0]]
            over: list[_Waiter] = []
            for waiter in list(change.waiters):
                waiter.changes.discard(change)
                if error is not None or not waiter.changes:
                    self._forget(waiter)
                    over.append(waiter)
            change.waiters.clear()
        for waiter in over:
            guarded("shared queues", "a binding", waiter.done, None, error)

    # --- the thread -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the broker stops."""
        service = self._service
        while not service.stopping:
            try:
                self._drop_void()
                engine, _ = service.node()
                self._tell(engine)
                self._follow(engine)
            except EngineError as error:
                log.debug("definitions of shared queues were not read: %s", error)
                service.pause(self._limits.shared_pause_ms / 1000)
            except Exception as error:
                caught("shared queues", "definitions", error)
                service.pause(self._limits.shared_pause_ms_max / 1000)
            rest_s = max(0.0, self._rest_until_s - time.monotonic())
            self._event.wait(rest_s or self._limits.shared_poll_ms / 1000)
            self._event.clear()
        self._forget_watch()

    def _drop_void(self) -> None:
        """Bindings that came and went before the engine heard of them: so no more wait than there are."""
        with self._lock:
            void = [(key, change) for key, change in self._changes.items() if change.void]
        for key, change in void:
            self._over(key, change, None)

    def _tell(self, engine: Engine) -> None:
        """Raises: Unavailable, UnknownOutcome: the rest waits."""
        with self._lock:
            changes = list(self._changes.items())
        for key, change in changes:
            entry = change.entry
            if entry.ended or self._service.entry(entry.queue_id) is not entry:
                self._over(key, change, None)
            elif entry.life is not None and not change.void:
                change.tried = True
                self._tell_one(engine, key, change, entry.life)

    def _tell_one(self, engine: Engine, key: tuple[int, bytes], change: _Change, life: bytes) -> None:
        try:
            write_binding(engine, QueueKeys(life), key[1], change.row, self._limits.shared_patience_ms)
        except QueueGone:
            self._over(key, change, None)
        except (Unavailable, UnknownOutcome):
            raise
        except EngineError as error:
            text = f"the engine of shared queues does not take the binding: {error}"
            log.error("a binding of shared queue %r in vhost %r stays on this node: %s", change.entry.name, change.entry.vhost, error)
            self._over(key, change, None, PeerError(ReplyCode.PRECONDITION_FAILED, text))
        else:
            self._over(key, change, life)

    def _told(self) -> None:
        self._watch = None
        self._event.set()

    def _forget_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _follow(self, engine: Engine) -> None:
        began = time.monotonic()
        if began < self._rest_until_s:
            return
        entries = self._service.entries()
        known = {entry.life for entry in entries.values() if entry.life is not None}
        token = None if self._again_s and began >= self._again_s else self._token
        directory, watch = read(engine, token, known, None if self._watch is not None else self._told)
        self._watch = watch or self._watch
        if directory is not None:
            self._again_s = 0.0
            self._refusals = {}
            self._apply(directory, entries)
            for subject, why in self._refusals.items():
                if self.refusals.get(subject) != why:
                    log.warning("%s is on other nodes, and not here: %s", subject, why)
            self.refusals = self._refusals
            if self._refusals:
                self._same.clear()
                self._look_again(self._limits.shared_definitions_retry_ms)
            self._token = directory.token
            self._rest_until_s = time.monotonic() + min(_REST_S_MAX, 10 * (time.monotonic() - began))

    def _look_again(self, ms: int) -> None:
        due_s = time.monotonic() + ms / 1000
        self._again_s = min(self._again_s or due_s, due_s)

    def _apply(self, directory: Directory, entries: Mapping[int, SharedQueueEntry]) -> None:
        with self._lock:
            self._same = {life for life in self._same if directory.bindings.get(life) == self._known.get(life)}
            self._known = directory.bindings
        for entry in entries.values():
            if entry.life is None:
                self._look_again(self._limits.shared_poll_ms)
            elif directory.lives.get((entry.vhost, entry.name)) != entry.life and not entry.anew:
                self._service.look(entry)  # it finds that its queue is gone
                self._look_again(self._limits.shared_poll_ms)
        self._perform(self._missing_queues(directory))
        self._same_bindings(directory)

    def _same_bindings(self, directory: Directory) -> None:
        """Makes and ends bindings here."""
        exchanges: dict[str, tuple[Any, Verb[Any]]] = {}
        bindings: list[tuple[str, Any, Verb[Any]]] = []
        for entry in self._service.entries().values():
            life = entry.life
            if life is None or life not in directory.bindings or life in self._same or entry.ended:
                continue
            before = len(self._refusals)
            guarded("shared queues", f"bindings of {entry.name!r}", self._different, entry, life, exchanges, bindings)
            if len(self._refusals) == before:
                self._same.add(life)
        self._perform((subject, vhost, verb) for subject, (vhost, verb) in exchanges.items())
        self._perform(bindings)

    def _missing_queues(self, directory: Directory) -> Iterable[tuple[str, Any, Verb[Any]]]:
        service = self._service
        for (vhost_name, name), life in directory.lives.items():
            subject = f"shared queue '{name}' in vhost '{vhost_name}'"
            vhost = service.state.vhosts.get(vhost_name)
            if vhost is None:
                self._refusals[subject] = "there is no such virtual host"
                continue
            queue = vhost.queues.get(name)
            if queue is not None:
                if not queue.policy.is_shared:
                    self._refusals[subject] = "a queue of another type has the name"
                continue
            if service.is_ending(vhost_name, name):
                self._look_again(self._limits.shared_poll_ms)
                continue
            try:
                arguments = json.loads(directory.arguments.get(life) or b"null")
            except (ValueError, RecursionError):
                arguments = None
            if not isinstance(arguments, dict) or arguments.get("x-queue-type") != SHARED:
                self._refusals[subject] = "its arguments are not known: declare it here"
                continue
            yield subject, vhost, self._adopt(vhost, name, life, arguments)

    def _adopt(self, vhost: Any, name: str, life: bytes, arguments: dict[str, Any]) -> Verb[Any]:
        """A verb of the virtual host: the engine has the queue, so none is made there."""
        made = self._service.declared
        is_made = partial(made.__setitem__, (vhost.name, name), life)  # asked for when it is to be declared anew
        try:
            return (yield from vhost.declare_queue(name, durable=True, arguments=arguments, allow=is_made))
        finally:
            if made.get((vhost.name, name)) == life:
                del made[vhost.name, name]

    def _different(
        self,
        entry: SharedQueueEntry,
        life: bytes,
        exchanges: dict[str, tuple[Any, Verb[Any]]],
        bindings: list[tuple[str, Any, Verb[Any]]],
    ) -> None:
        """The work for the bindings of one queue."""
        vhost = self._service.state.vhosts.get(entry.vhost)
        queue = None if vhost is None else vhost.queues.get(entry.name)
        if vhost is None or queue is None or queue.queue_id != entry.queue_id:
            return
        here = {
            hash_of(one.source.name, one.routing_key, one.arguments): one for one in list((queue.bindings or {}).values()) if one.durable
        }
        with self._lock:
            rows = dict(self._known.get(life, {}))
            waiting = set(self._of_queues.get(entry.queue_id, ()))
        for name, row in rows.items():
            if name not in here and name not in waiting:
                self._bind(vhost, entry.name, row, exchanges, bindings)
        for name, one in here.items():
            if name not in rows and name not in waiting:
                verb = vhost.unbind_queue(entry.name, one.source.name, one.routing_key, one.arguments)
                bindings.append((f"the end of a binding of '{entry.name}' in vhost '{entry.vhost}'", vhost, verb))

    def _bind(
        self,
        vhost: Any,
        name: str,
        row: bytes,
        exchanges: dict[str, tuple[Any, Verb[Any]]],
        bindings: list[tuple[str, Any, Verb[Any]]],
    ) -> None:
        limits = self._limits
        subject = f"a binding of shared queue '{name}' in vhost '{vhost.name}'"
        try:
            fields: dict[str, Any] = decode_table(row, limits.table_depth_max + 1, limits.table_fields_max + len(row))
            source, kind, flags = fields["source"], fields["kind"], {"auto_delete": fields["auto_delete"], "internal": fields["internal"]}
            key, arguments, of_exchange = (
                fields["key"].encode("utf-8", "surrogateescape"),
                fields["arguments"],
                fields["exchange_arguments"],
            )
        except (ValueError, KeyError, AttributeError, PeerError) as error:
            self._refusals[subject] = f"it can't be read ({error!r})"
            return
        there = vhost.exchanges.get(source)
        if there is None:
            verb = vhost.declare_exchange(source, kind, durable=True, arguments=of_exchange, **flags)
            exchanges[f"exchange '{source}' in vhost '{vhost.name}'"] = (vhost, verb)
        elif there.kind != kind or not there.durable:
            self._refusals[subject] = (
                f"exchange '{source}' is here with type '{there.kind}', durable {there.durable}, and there with '{kind}'"
            )
            return
        bindings.append((subject, vhost, vhost.bind_queue(name, source, key, arguments)))

    def _perform(self, verbs: Iterable[tuple[str, Any, Verb[Any]]]) -> None:
        """Runs verbs of virtual hosts, some at a time, and waits for the database. What fails is refused."""
        waiting: list[tuple[str, threading.Event]] = []
        for subject, vhost, verb in verbs:
            over = threading.Event()
            waiting.append((subject, over))
            vhost.perform(verb, self._service.state.loops.call_home, partial(self._performed, subject, over))
            if len(waiting) >= _VERBS_AT_ONCE:
                self._wait(waiting)
                waiting = []
        self._wait(waiting)

    def _performed(self, subject: str, over: threading.Event, result: Any, error: Exception | None) -> None:
        if error is not None:
            self._refusals[subject] = error.text if isinstance(error, PeerError) else repr(error)
        over.set()

    def _wait(self, waiting: list[tuple[str, threading.Event]]) -> None:
        until = time.monotonic() + self._limits.shared_waiting_ms_max / 1000
        for subject, over in waiting:
            while not over.wait(0.05):  # a broker that stops runs no more of it
                if self._service.stopping or time.monotonic() > until:
                    self._refusals[subject] = "it waits for the database"
                    break
