"""With commands, time and a slow disk on several threads, every transaction is done or undone whole, and each gets one answer."""

from __future__ import annotations

import sys
import threading

from flintmq.transactions import TransactionRefused, XaStatus, Xid
from tests.support.blocks import enrol

from .broker import OK, Broker

THREADS = 4
ROUNDS = 30


def test_commits_race_timeouts_and_closing_sessions() -> None:
    broker = Broker(queues=2)
    c = broker.coordinator
    answers: dict[str, XaStatus] = {}
    failures: list[BaseException] = []
    go = threading.Barrier(THREADS + 2)

    def client(number: int) -> None:
        try:
            go.wait()
            for turn in range(ROUNDS):
                label, xid, session = f"{number}.{turn}", Xid(number, bytes((turn + 1,))), f"{number}.{turn}"
                c.select(session)
                try:
                    c.start(session, xid)
                    enrol(c, session, xid, (1, 2), label.encode())
                    c.end(session, xid)
                    if turn % 2:
                        answers[label] = c.prepare(xid).result(100)
                    if turn % 2 == 0 or answers[label] is OK:
                        answers[label] = c.commit(xid, one_phase=turn % 2 == 0).result(100)
                except TransactionRefused:
                    answers[label] = XaStatus.XA_RBROLLBACK  # time was over in the middle of its work
                c.session_closed(session)
        except BaseException as error:
            failures.append(error)

    done = threading.Event()

    def disturb(action) -> None:
        go.wait()
        while not done.is_set():
            action()
            done.wait(0.001)  # lets the clients work

    def time() -> None:
        broker.clock.advance(ms=60_000)
        c.tick()

    def disk() -> None:
        broker.store.hold()
        broker.store.release()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
    others = [threading.Thread(target=disturb, args=(action,)) for action in (time, disk)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change places in the middle of everything
    try:
        for thread in clients + others:
            thread.start()
        for thread in clients:
            thread.join(150)
        done.set()
        for thread in others:
            thread.join(150)
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert len(answers) == THREADS * ROUNDS
    committed = {label for label, answer in answers.items() if answer is OK}
    for queue_id in (1, 2):
        assert sorted(broker.labels(queue_id)) == sorted(committed)
        assert broker.labels(queue_id) == broker.stored(queue_id)
    assert broker.labels(1) == broker.labels(2)  # one order on every queue
    assert committed
