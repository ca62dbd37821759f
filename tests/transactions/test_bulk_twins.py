"""The twins do with runs, blocks and decisions what the real store and queues do: one story on both, with restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.transactions import RunFacts, TransactionRefused, Xid
from flintmq.transactions.bulk import ROW

from .broker import Broker
from .on_disk import OnDisk
from .test_bulk import ROUTES, entry

SET, WON, LOST, LATER = (Xid(1, name) for name in (b"set", b"won", b"lost", b"later"))


class Twin:
    """The broker in memory."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.session = self.broker.session()

    @property
    def coordinator(self) -> Any:
        return self.broker.coordinator

    def put(self, queue: int, body: bytes) -> int:
        return self.broker.put(queue, body.decode())

    def settle(self) -> None:
        pass

    def restart(self) -> Twin:
        again = Twin.__new__(Twin)
        again.broker = Broker(store=self.broker.store.crash())
        again.session = again.broker.session()
        return again

    def bodies(self) -> list[list[bytes]]:
        return [[label.encode() for label in self.broker.labels(queue)] for queue in (1, 2, 3)]

    def note(self) -> dict[bytes, bytes]:
        return self.broker.store.notes(2)


class Real:
    """The broker on disk."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.disk = OnDisk(directory)
        self.session = "me"
        self.coordinator = self.disk.coordinator
        self.coordinator.select(self.session)
        self.put, self.settle, self.bodies = self.disk.put, self.disk.settle, self.disk.bodies

    def restart(self) -> Real:
        self.settle()
        made = Real.__new__(Real)
        made.disk = OnDisk(self.disk.image(self.disk.directory.parent / f"{self.disk.directory.name}x"))
        self.disk.kill()
        made.session, made.coordinator = "me", made.disk.coordinator
        made.coordinator.select("me")
        made.put, made.settle, made.bodies = made.disk.put, made.disk.settle, made.disk.bodies
        return made

    def note(self) -> dict[bytes, bytes]:
        return self.disk.store.notes(2)


@pytest.mark.parametrize("kind", ["twin", "real"])
def test_a_story(tmp_path: Path, kind: str) -> None:
    broker: Any = Twin() if kind == "twin" else Real(tmp_path / "store")
    positions = [broker.put(1, b"%d" % number) for number in range(6)]

    def work(xid: Xid, call: Any) -> Any:
        broker.coordinator.start(broker.session, xid)
        result = call()
        broker.coordinator.end(broker.session, xid)
        return result

    def stage(xid: Xid, block: bytes) -> Any:
        return lambda: broker.coordinator.enqueue_block(broker.session, xid, block, ROUTES, [[2, 3], []])

    facts = work(SET, lambda: broker.coordinator.hold_run(broker.session, SET, 1, messages_max=3, bytes_max=99, consumer="sub"))
    assert facts == RunFacts(3, 3, positions[0], positions[2])
    assert tuple(work(WON, stage(WON, entry(b"won") + entry(b"again") + entry(b"nowhere", 1)))) == (3, 4, 15, 1)
    work(LOST, stage(LOST, entry(b"lost")))
    for xid in (SET, WON, LOST):
        broker.coordinator.prepare(xid)
    broker.settle()
    for _ in range(2):
        (run,) = broker.coordinator.runs(SET)
        rows, _ = run.rows(0, 99)
        assert [ROW.unpack_from(rows, at)[0] for at in range(0, len(rows), ROW.size)] == positions[:3]
        assert run.ranges() == [(positions[0], 3)]
        assert broker.bodies() == [[b"3", b"4", b"5"], [], []]
        broker = broker.restart()
    with pytest.raises(TransactionRefused):
        broker.coordinator.decide((2, b"scope", b"1"), [SET, WON, LATER])
    assert broker.note() == {}
    outcome = broker.coordinator.decide((2, b"scope", b"1"), [SET, WON], [LOST, LATER])
    broker.settle()
    assert outcome.done
    for _ in range(2):
        assert broker.bodies() == [[b"3", b"4", b"5"], [b"won", b"again"], [b"won", b"again"]]
        assert broker.note() == {b"scope": b"1"}
        assert not broker.coordinator.list()
        broker = broker.restart()
