"""Scenes of test_check.py: `python -m tests.core.check_scenes SCENE whole|broken` does one thing with a record that is whole, or is not.

in: the name of a scene. out: whole: exit code 0 and not a word. broken: the end of the process by the check that NAMES says.
`python -m tests.core.check_scenes` forks a process for each scene, whole and broken, and writes what became of each, a JSON line each.

A scene makes something with the real code, has one field of it changed by drivers/check_driver, and then does what meets that.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from tests.drivers import check_driver as driver

# scene -> the name of the check that it trips
NAMES = {
    "compiled": "check_driver I1 without the interpreter's lock",
    "compiled with lock": "check_driver I1 with the interpreter's lock",
    "python": "check_scenes I1 in Python",
    "queue bytes": "counts I1 a body that leaves memory was counted",
    "queue live": "entry_list I4 an unlinked segment has no entry",
    "queue place": "entry_list I1 a place is used once",
    "queue references": "queue_core I5 a queue that is let go was referenced",
    "owner id": "owner_ids I1 an id that is given back was in use",
    "map": "hash64 I2 a table has free places after a put",
    "output": "buffer O4 what was sent was in the buffer",
    "lease": "pull_group I6 a lease that ends stands in the heap",
    "offsets": "group I6 offsets ascend",
    "offset states": "group I7 each open offset is counted in its state",
    "log durable": "log I3 what a block tells as durable is before it",
    "log used": "log I2 a block begins behind the one before it",
    "log chain": "log I1 blocks have rising LSNs",
    "log base": "log I1 the base is not above a block that tells it",
    "log live": "log I5 what ends was counted as live",
    "log twice": "log I5 nothing died at the place of a new record",
    "message": "message_log I6 places have their room",
    "transaction": "transaction_log I4 what is committed was not decided",
    "stream window": "stream_log I3 the window goes on with the next offset",
    "stream unwritten": "stream_log I4 what became durable was counted as unwritten",
    "actors parked": "deadlines I2 parked requests whose time is over were counted",
    "actors room": "lines I1 there is a place for each actor",
    "route": "route_cache I2 a route that leaves the table was counted",
    "credit": "consumer_manager I5 credit that comes back was taken",
    "tx": "tx_buffer I1 a settlement that is applied has its delivery",
    "branch": "coordinator I2 only what is not prepared is undone by itself",
}

QUEUE_FLAWS = {"queue bytes": "bytes", "queue live": "live", "queue place": "place", "queue references": "references"}
LOG_FLAWS = {"log durable": "durable", "log used": "used", "log chain": "chain", "log base": "base"}


def checks(scene: str, broken: bool) -> None:
    """The checks themselves."""
    if scene == "python":
        from flintmq.invariant import check

        check(not broken, "check_scenes I1 in Python", 7, "a\nb")
    else:
        driver.insist(not broken, 7, 2**64 - 1, scene == "compiled with lock")


def queue(scene: str, broken: bool) -> None:
    from flintmq.queue.control import QueueHandle

    handle = QueueHandle(1)
    for _ in range(3):
        handle.publish(b"", b"q", b"h", b"body", 0, 0)
    if broken:
        driver.break_queue(handle, QUEUE_FLAWS[scene])
    handle.publish(b"", b"q", b"h", b"body", 0, 0)
    while handle.take_head(1) is not None:
        pass
    handle.housekeeping()
    handle.housekeeping()  # nothing came since the last one: memory is given back
    del handle


def small(scene: str, broken: bool) -> None:
    """Records that stand alone."""
    from flintmq.routing.route_cache import RouteCache
    from tests.drivers.tables import OwnerIds

    if scene == "owner id":
        ids = OwnerIds()
        one = ids.take()
        ids.give_back(one)
        if broken:
            ids.give_back(one)
    elif scene == "route":
        cache = RouteCache(b"x", 10)
        if broken:
            driver.break_routes(cache, b"\x01x\x01k")
        cache.forget(b"\x01x\x01k")
    elif broken:
        {
            "map": driver.break_map,
            "output": driver.break_output,
            "lease": driver.break_leases,
            "offsets": lambda: driver.break_opens("order"),
            "offset states": lambda: driver.break_opens("states"),
        }[scene]()


def log(scene: str, broken: bool) -> None:
    from tests.store.rig import Rig

    rig = Rig(size=16384)
    for _ in range(4):
        rig.publish(1)
    rig.flush()
    rig.publish(1)
    if scene in LOG_FLAWS and broken:
        driver.break_log(rig.messages, LOG_FLAWS[scene])
    elif scene == "log live" and broken:
        driver.break_log(rig.messages, "live")
    elif scene == "log twice":
        number = rig.model[1][2]
        rig.ack(1, 2)
        rig.messages.mark_live(number if broken else rig.messages.tail, 40)
    rig.ack(1, 1)
    rig.flush()


def store(scene: str, broken: bool) -> None:
    from tests.store.rig import Rig
    from tests.support.stored import StoredContent

    rig = Rig(size=16384)
    if scene == "message":
        message = rig.store.append_content(StoredContent(b"x", b"k", b"h", b"body"))
        if broken:
            driver.break_message(rig.store, message)
        rig.store.enqueue(1, 1, message)
    else:
        transactions = rig.store.transactions
        transaction = transactions.begin(b"xid")
        transactions.prepare(transaction)
        transactions.commit(transaction, ())
        if broken:
            transactions.commit(transaction, ())
    rig.flush()


def stream(scene: str, broken: bool) -> None:
    from tests.store_stream.rig import Rig

    rig = Rig()
    rig.append(b"one")
    rig.pump()
    rig.append(b"two")
    if broken:
        driver.break_stream(rig.stream, scene.removeprefix("stream "))
    rig.append(b"three")
    rig.pump()


def actors(scene: str, broken: bool) -> None:
    from flintmq.scheduler.outcomes import PARK, Outcome
    from tests.scheduler.conftest import Bench

    bench = Bench()
    if scene == "actors parked":
        bench.ask("parked", result=PARK, hold_ms=10)
    else:
        bench.ask("first")
    bench.run()
    if broken:
        driver.break_actors(bench.actors, scene.removeprefix("actors "))
    if scene == "actors room":
        bench.ask("second")
        bench.run()
    bench.later(20)
    assert bench.answers[0][1] in (Outcome.EMPTY, Outcome.MESSAGES)


def session(scene: str, broken: bool) -> None:
    from flintmq.testing.broker import Broker
    from tests.support.rawamqp import RawConnection

    with Broker() as broker:
        channel = RawConnection("127.0.0.1", broker.port).open().channel()
        channel.queue("q")
        if scene == "tx":
            channel.call("tx.select")
        channel.consume("q")
        channel.publish(b"body", routing_key="q")
        if scene == "tx":
            channel.call("tx.commit")
        tag = channel.deliveries(1)[0].delivery_tag
        channel.send("basic.ack", delivery_tag=tag)
        if scene == "tx":
            channel.ready("q")  # the ack is in the transaction
        (connection,) = [entry.connection for loop in broker.node.loops for entry in loop.entries() if entry.connection is not None]
        if scene == "credit":
            channel.ready("q")
            channel.publish(b"body", routing_key="q")
            tag = channel.deliveries(1)[0].delivery_tag
        if broken:
            driver.break_connection(connection, 1, "settled" if scene == "tx" else "credit")
        if scene == "tx":
            channel.call("tx.commit")
        else:
            channel.send("basic.ack", delivery_tag=tag)
        channel.ready("q")
        channel.connection.close()


def branch(scene: str, broken: bool) -> None:
    from flintmq.clock import ManualClock
    from flintmq.config import Limits
    from flintmq.transactions.branch import BranchState
    from flintmq.transactions.coordinator import TransactionCoordinator
    from flintmq.transactions.xid import Xid
    from tests.transactions.twin_store import TwinStore
    from tests.twins.memory_effects import MemoryQueueEffects

    memory: Any = TwinStore()
    coordinator = TransactionCoordinator(memory, MemoryQueueEffects(), ManualClock(), Limits())
    xid = Xid(1, b"global", b"branch", "/")
    coordinator.select("session")
    coordinator.start("session", xid)
    found = coordinator._registry.get(xid)
    assert found is not None
    if broken:
        found.state = BranchState.PREPARED
    coordinator._undo(found, BranchState.ROLLBACK_ONLY)


SCENES: dict[str, Callable[[str, bool], None]] = {
    **dict.fromkeys(("compiled", "compiled with lock", "python"), checks),
    **dict.fromkeys(QUEUE_FLAWS, queue),
    **dict.fromkeys(("owner id", "map", "route", "output", "lease", "offsets", "offset states"), small),
    **dict.fromkeys((*LOG_FLAWS, "log live", "log twice"), log),
    **dict.fromkeys(("message", "transaction"), store),
    **dict.fromkeys(("stream window", "stream unwritten"), stream),
    **dict.fromkeys(("actors parked", "actors room"), actors),
    **dict.fromkeys(("credit", "tx"), session),
    "branch": branch,
}

# what scenes import: once, before the forks
_NEEDS = (
    "flintmq.invariant",
    "flintmq.queue.control",
    "flintmq.testing.broker",
    "flintmq.transactions.coordinator",
    "tests.drivers.tables",
    "tests.scheduler.conftest",
    "tests.store.rig",
    "tests.store_stream.rig",
    "tests.support.rawamqp",
    "tests.support.stored",
    "tests.transactions.twin_store",
    "tests.twins.memory_effects",
)


def forked(scene: str, how: str) -> dict[str, Any]:
    """How a process of its own ends that plays the scene, and what it said."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                SCENES[scene](scene, how == "broken")
                gc.collect()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return {"scene": scene, "how": how, "code": os.waitstatus_to_exitcode(status), "out": said[0], "err": said[1]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory  # nothing of an ended process stays
        if len(sys.argv) > 1:
            SCENES[sys.argv[1]](sys.argv[1], sys.argv[2] == "broken")
        else:
            for module in _NEEDS:
                importlib.import_module(module)
            gc.freeze()
            for name in SCENES:
                for kind in ("whole", "broken"):
                    print(json.dumps(forked(name, kind)), flush=True)
