"""At every crash point of any interleaving a transaction is seen whole or not at all, and no answer that was given is taken back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.transactions import Outcome, TransactionRefused, XaStatus, Xid
from tests.support.blocks import enrol, take

from .broker import OK, Broker, status

XIDS = [Xid(1, bytes((65 + number,))) for number in range(3)]
QUEUES = (1, 2)
SOURCE = 3  # branches dequeue from here

ACTIONS = ["work", "work", "end", "prepare", "commit", "one phase", "rollback", "heuristic commit", "heuristic rollback", "late", "plain"]
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, len(XIDS) - 1), st.booleans()), min_size=4, max_size=24)


class History:
    """A run on a store that makes nothing durable by itself, and what it answered."""

    def __init__(self) -> None:
        self.broker = Broker()
        for number in range(60):
            self.broker.put(SOURCE, f"s{number}")
        self.session = {xid: self.broker.session() for xid in XIDS}
        self.enqueued: dict[tuple[Xid, int], list[tuple[int, str]]] = {}  # (xid, incarnation) -> (queue, label)
        self.dequeued: dict[tuple[Xid, int], list[str]] = {}
        self.answers: list[tuple[Xid, int, str, Outcome]] = []
        self.incarnation = dict.fromkeys(XIDS, 0)
        self.taken = 0
        self.broker.store.hold()

    def step(self, action: str, number: int, several: bool) -> None:
        xid, c = XIDS[number], self.broker.coordinator
        try:
            match action:
                case "work":
                    self._work(xid, several)
                case "end":
                    c.end(self.session[xid], xid, fail=several and self.taken % 3 == 0)
                case "late":
                    self.broker.clock.advance(ms=25_000)
                    c.tick()
                case "plain":
                    self.broker.put(1, "plain")
                case _:
                    call = {
                        "prepare": lambda: c.prepare(xid),
                        "commit": lambda: c.commit(xid),
                        "one phase": lambda: c.commit(xid, one_phase=True),
                        "rollback": lambda: c.rollback(xid),
                        "heuristic commit": lambda: c.heuristic_commit(xid),
                        "heuristic rollback": lambda: c.heuristic_rollback(xid),
                    }[action]
                    self.answers.append((xid, self.incarnation[xid], action, call()))
        except TransactionRefused:
            pass

    def _work(self, xid: Xid, several: bool) -> None:
        c, session = self.broker.coordinator, self.session[xid]
        if xid not in [view.xid for view in c.list()]:
            c.start(session, xid)
            self.incarnation[xid] += 1
        key = (xid, self.incarnation[xid])
        label = f"{number_of(xid)}.{self.incarnation[xid]}.{self.taken}"
        queues = (1, 2) if several else (1,)
        enrol(c, session, xid, queues, label.encode())
        self.enqueued.setdefault(key, []).extend((queue, label) for queue in queues)
        head = self.broker.labels(SOURCE)[0]
        assert take(c, session, xid, SOURCE).count == 1
        self.dequeued.setdefault(key, []).append(head)
        self.taken += 1


def number_of(xid: Xid) -> int:
    return XIDS.index(xid)


def seen(broker: Broker, history: History, key: tuple[Xid, int]) -> bool | None:
    """True: wholly done, False: wholly not (None: its entries are held, in doubt). Anything else fails."""
    queues = {queue_id: broker.labels(queue_id) for queue_id in (*QUEUES, SOURCE)}
    there = [label in queues[queue_id] for queue_id, label in history.enqueued.get(key, [])]
    back = [label in queues[SOURCE] for label in history.dequeued.get(key, [])]
    held = [label in broker.stored(SOURCE) and label not in queues[SOURCE] for label in history.dequeued.get(key, [])]
    if all(held) and held and not any(there):
        return None
    assert len({*there, *(not item for item in back)}) <= 1, f"{key}: torn, enqueued {there}, given back {back}"
    assert not any(held)
    return there[0] if there else False


def allowed(answers: list[tuple[str, XaStatus | None]]) -> set[bool | None]:
    """What may be seen after a crash, given what was answered (None: not answered)."""
    for action, answer in answers:
        if answer in (XaStatus.XA_RBROLLBACK, XaStatus.XA_RBTIMEOUT, XaStatus.XA_HEURRB) or (action == "rollback" and answer is OK):
            return {False}
        if answer is XaStatus.XA_HEURCOM or (action in ("commit", "one phase") and answer is OK):
            return {True}
    asked = {action for action, _ in answers}
    prepared = ("prepare", OK) in answers
    found: set[bool | None] = {None} if prepared else {False}
    if "prepare" in asked:
        found.add(None)
    if asked & {"commit", "one phase", "heuristic commit"}:
        found.add(True)
    if asked & {"rollback", "heuristic rollback"}:
        found.add(False)
    return found


@settings(max_examples=60, deadline=None)
@given(steps)
def test_whole_or_not_at_all_at_every_crash_point(script: list[tuple[str, int, bool]]) -> None:
    history = History()
    for step in script:
        history.step(*step)
    store = history.broker.store
    for lsn in range(store.durable_lsn, store._lsn + 1):
        store.release(lsn)
        check_restart(history, history.broker.crash())


def check_restart(history: History, found: Broker) -> None:
    in_doubt = set()
    for key in history.enqueued:
        answers = [(action, status(outcome)) for xid, incarnation, action, outcome in history.answers if (xid, incarnation) == key]
        state = seen(found, history, key)
        assert state in allowed(answers), f"{key}: seen {state} after {answers}"
        if state is None:
            in_doubt.add(key)
    for position, _ in enumerate(in_doubt):
        assert position < len(found.coordinator.recover())
    decide(history, found, in_doubt)


def decide(history: History, found: Broker, in_doubt: set[tuple[Xid, int]]) -> None:
    """In-doubt transactions can be ended either way, and are whole then too."""
    labels = {queue_id: found.labels(queue_id) for queue_id in QUEUES}
    for number, (xid, incarnation) in enumerate(sorted(in_doubt, key=str)):
        commits = (number + len(history.answers)) % 2 == 0
        outcome = found.coordinator.commit(xid) if commits else found.coordinator.rollback(xid)
        assert outcome.result(0) is OK
        assert seen(found, history, (xid, incarnation)) is commits
    for queue_id, before in labels.items():
        after = found.labels(queue_id)
        assert after[: len(before)] == before  # committed later, so behind
        assert after == found.stored(queue_id)
        for key in history.enqueued:  # the order within a transaction is the order of its calls
            mine = [label for queue, label in history.enqueued[key] if queue == queue_id]
            assert [label for label in after if label in mine] in ([], mine)


def test_every_kind_of_end_is_reached_by_a_script_that_has_it() -> None:
    for end, expected in (("commit", True), ("rollback", False), ("heuristic commit", True), ("heuristic rollback", False), (None, None)):
        history = History()
        for action in ["work", "work", "end", "prepare", *([end] if end else [])]:
            history.step(action, 0, action == "work")
        history.broker.store.release()
        assert seen(history.broker.crash(), history, (XIDS[0], 1)) is expected
