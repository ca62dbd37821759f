"""Recovery gives back exactly what the logs say is there, in queue order, and names what they can't say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flintmq.errors import StoreError
from flintmq.store import decisions
from flintmq.store.log.containers import container_name
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log.scan import LogScan
from flintmq.store.recovery import Recovery
from flintmq.store.transaction_log import COMMITTED, PREPARED, ROLLED_BACK
from tests.drivers.recovered import entries_of, live_messages, named_transactions
from tests.support import logbytes as lb


class Logs:
    """A message log and a transaction log that a test writes record by record."""

    def __init__(self, size: int = 4096) -> None:
        self.messages = lb.LogBytes(size)
        self.transactions = lb.LogBytes(size, lb.TRANSACTIONS)
        self.numbers: dict[tuple[int, int], int] = {}  # (transaction, queue) -> enqueues there that wait for the Commit

    def start(self, body: bytes = b"body", first: int | None = None) -> int:
        return self.messages.add(lb.START, lb.content(b"\1e\1k", b"header", body, first=first))

    def enqueue(self, message: int, queue: int, position: int, tx: int = 0, expires: int = 0) -> int:
        """position 0 in a transaction: its Commit gives it."""
        if tx and not position:
            position = lb.waiting(self.numbers.get((tx, queue), 0))
            self.numbers[tx, queue] = position - lb.waiting(0) + 1
        return self.messages.add(lb.ENQUEUE, lb.enqueue(queue, position), undo_prev=message, tx=tx, expires=expires)

    def publish(self, queue: int, position: int, body: bytes = b"body", tx: int = 0, expires: int = 0) -> int:
        message = self.start(body)
        self.enqueue(message, queue, position, tx, expires)
        return message

    def dequeue(self, message: int, queue: int, position: int, tx: int = 0, last: bool = False) -> int:
        return self.messages.add(lb.DEQUEUE, lb.dequeue(queue, position), undo_prev=message, tx=tx, last=last)

    def delete(self, message: int) -> int:
        return self.messages.add(lb.MESSAGE_DELETE, undo_prev=message, last=True)

    def copy(self, message: int, places: list, body: bytes = b"body", first: int | None = None) -> int:
        # every other one without the time of publishing, as older brokers wrote them
        record = lb.copy(places, lb.content(b"\1e\1k", b"header", body, first=first), published_us=self.messages.tail // 8 % 2)
        return self.messages.add(lb.COPY, record, undo_prev=message)

    def begin(self, xid: bytes = b"") -> int:
        return self.transactions.add(lb.DTX_START, lb.xid(xid)) if xid else self.transactions.add(lb.TX_START)

    def outcome(self, kind: int, tx: int, body: bytes = b"") -> int:
        return self.transactions.add(kind, body, undo_prev=tx)

    def commit(self, tx: int, rows: list | None = None) -> int:
        return self.outcome(lb.COMMIT, tx, lb.rows(rows or []))

    def sync(self) -> None:
        self.messages.sync()
        self.transactions.sync()

    def write(self, directory: Path) -> None:
        self.sync()
        for name, log in (("messages", self.messages), ("transactions", self.transactions)):
            shutil.rmtree(directory / name, ignore_errors=True)
            log.write(str(directory / name))


def recover_from(directory: Path, known: set[int] | None = None, high: int = 100, unclean: bool | None = True) -> Recovery:
    recovery = Recovery()
    recovery.run(
        LogScan(OsFiles(), str(directory / "messages"), lb.MESSAGES),
        LogScan(OsFiles(), str(directory / "transactions"), lb.TRANSACTIONS),
        {1, 2, 3} if known is None else known,
        high,
        unclean,
    )
    return recovery


def recover(logs: Logs, directory: Path, **more: object) -> Recovery:
    logs.write(directory)
    return recover_from(directory, **more)  # type: ignore[arg-type]


def places(recovery: Recovery, queue: int) -> list[tuple[int, int]]:
    """(position, message id) of a queue's entries that are not held."""
    return [(entry[0], entry[1]) for entry in entries_of(recovery, queue) if not entry[5]]


def held(recovery: Recovery, queue: int) -> list[tuple[int, int]]:
    return [(entry[0], entry[1]) for entry in entries_of(recovery, queue) if entry[5]]


# --- plain messages ---------------------------------------------------------------------------------------------------------------


def test_an_empty_store(tmp_path: Path) -> None:
    """No logs at all: nothing comes back, nothing is wrong."""
    recovery = recover_from(tmp_path)
    assert live_messages(recovery) == [] and entries_of(recovery, 1) == [] and recovery.report.lost == []


def test_plain_messages_come_back_in_position_order(tmp_path: Path) -> None:
    """Order is position order, whatever the order in the log; body length and expiry are those of the records."""
    logs = Logs()
    third, first = logs.publish(1, 3, b"abc"), logs.publish(1, 1, b"a" * 50, expires=1_700_000_000_000)
    second = logs.publish(1, 2)
    recovery = recover(logs, tmp_path)
    assert entries_of(recovery, 1) == [
        (1, first, 1_700_000_000_000, 50, True, False),
        (2, second, 0, 4, True, False),
        (3, third, 0, 3, True, False),
    ]
    assert [(lsn, places) for lsn, _, _, places in live_messages(recovery)] == [(third, []), (first, []), (second, [])]
    assert all(lsn == message for lsn, message, _, _ in live_messages(recovery))
    assert live_messages(recovery)[0][2] == 24 + 16 + 4 + 6 + 3 + 3  # padded to 8 bytes


def test_only_the_plainest_messages_are_not_listed(tmp_path: Path) -> None:
    """A message is left out of the list of places only when its one plain Message-Enqueue directly follows its Message-Start."""
    logs = Logs()
    plain, apart = logs.publish(1, 1), logs.start()
    logs.publish(1, 2)
    logs.enqueue(apart, 1, 3)
    listed = {message: listed for _, message, _, listed in live_messages(recover(logs, tmp_path))}
    assert listed[plain] == [] and listed[apart] == [(1, 3, 0, 0, 0)]


def test_a_dequeued_message_is_gone(tmp_path: Path) -> None:
    """Acks, with the flag that ends the message and without: the entry does not come back; its neighbour does."""
    logs = Logs()
    first, second, third = (logs.publish(1, position) for position in (1, 2, 3))
    logs.dequeue(first, 1, 1, last=True)
    logs.dequeue(third, 1, 3)
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(2, second)] and recovery.report.messages == 1 and recovery.report.dead == 2


def test_a_message_on_three_queues(tmp_path: Path) -> None:
    """It lives until it left the last one; its other places are untouched by a dequeue (qpid defects 3 and 4)."""
    logs = Logs()
    message = logs.start()
    for queue in (1, 2, 3):
        logs.enqueue(message, queue, 10 + queue)
    logs.dequeue(message, 1, 11)
    logs.dequeue(message, 2, 12)
    recovery = recover(logs, tmp_path)
    assert [places(recovery, queue) for queue in (1, 2, 3)] == [[], [], [(13, message)]]
    assert live_messages(recovery)[0][3] == [(3, 13, 0, 0, 0)]
    logs.dequeue(message, 3, 13, last=True)
    assert live_messages(recover(logs, tmp_path)) == []


def test_a_delete_ends_every_place(tmp_path: Path) -> None:
    """Message-Delete: none of the message's places comes back."""
    logs = Logs()
    message = logs.start()
    logs.enqueue(message, 1, 1)
    logs.enqueue(message, 2, 1)
    logs.delete(message)
    recovery = recover(logs, tmp_path)
    assert live_messages(recovery) == [] and places(recovery, 1) == places(recovery, 2) == []


def test_defect_9_a_start_without_place_is_homeless(tmp_path: Path) -> None:
    """Qpid defect 9: a crash between Start and Enqueue: the message is not live, so it pins nothing; nothing is lost."""
    logs = Logs()
    logs.start()
    kept = logs.publish(1, 1)
    recovery = recover(logs, tmp_path)
    assert [message for _, message, _, _ in live_messages(recovery)] == [kept]
    assert recovery.report.lost_count == 0 and recovery.homeless == []


def test_chunked_messages(tmp_path: Path) -> None:
    """Qpid defect 2: content in several records comes back whole; without its last chunk (torn) the message ended."""
    logs = Logs()
    total = 2 + 2 + 6 + 900
    whole = logs.start(b"x" * 900, first=400)
    logs.messages.add(lb.CHUNK, lb.chunk(400, b"x" * 400), undo_prev=whole)
    other = logs.publish(1, 9)
    logs.messages.add(lb.CHUNK, lb.chunk(800, b"x" * (total - 800)), undo_prev=whole)
    logs.enqueue(whole, 1, 1)
    torn = logs.start(b"y" * 900, first=400)
    logs.messages.add(lb.CHUNK, lb.chunk(400, b"y" * 400), undo_prev=torn)
    recovery = recover(logs, tmp_path)
    assert [(entry[0], entry[1], entry[3]) for entry in entries_of(recovery, 1)] == [(1, whole, 900), (9, other, 4)]
    sizes = {message: size for _, message, size, _ in live_messages(recovery)}
    assert sizes[whole] == (24 + 16 + 400) + (24 + 4 + 400 + 4) + (24 + 4 + total - 800 + 6)
    assert recovery.report.lost_count == 0


@pytest.mark.parametrize("unclean", [True, False])
def test_redelivered(tmp_path: Path, unclean: bool) -> None:
    """After an unclean stop every entry counts as delivered; after a clean one those that Queue-Redelivered names."""
    logs = Logs()
    for position in range(1, 8):
        logs.publish(1, position)
    logs.messages.add(lb.REDELIVERED, lb.ranges(1, [(2, 3), (6, 99)]))
    recovery = recover(logs, tmp_path, unclean=unclean)
    flagged = [entry[0] for entry in entries_of(recovery, 1) if entry[4]]
    assert flagged == (list(range(1, 8)) if unclean else [2, 3, 6, 7])


@pytest.mark.parametrize("unclean", [True, False])
def test_a_mark_of_deliveries_bounds_what_is_flagged(tmp_path: Path, unclean: bool) -> None:
    """After an unclean stop the entries up to the queue's last mark count as delivered, by level; a level that the mark leaves out has
    none. Ranges are flagged all the same. A queue without a mark is flagged whole."""
    logs = Logs()
    for queue in (1, 2, 3):
        for level in (0, 1, 2):
            for index in range(1, 6):
                logs.publish(queue, level << 56 | index)
    logs.messages.add(lb.DELIVERED, lb.mark(1, [5, 5, 5]))
    logs.messages.add(lb.DELIVERED, lb.mark(1, [2, 4]))
    logs.messages.add(lb.DELIVERED, lb.mark(2, [0]))
    logs.messages.add(lb.REDELIVERED, lb.ranges(2, [(3, 3)]))
    recovery = recover(logs, tmp_path, unclean=unclean)
    flagged = {queue: [(entry[0] >> 56, entry[0] & 0xFF) for entry in entries_of(recovery, queue) if entry[4]] for queue in (1, 2, 3)}
    near = [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (1, 4)]
    whole = [(level, index) for level in (0, 1, 2) for index in range(1, 6)]
    assert flagged == ({1: near, 2: [(0, 3)], 3: whole} if unclean else {1: [], 2: [(0, 3)], 3: []})
    assert recovery.delivered == {1: (2, 4), 2: (0,)}


def test_where_a_mark_of_deliveries_makes_no_sense_all_is_flagged(tmp_path: Path) -> None:
    """It says more levels than its bytes have: it may have covered anything."""
    logs = Logs()
    logs.publish(1, 1)
    logs.publish(2, 7)
    logs.messages.add(lb.DELIVERED, lb.mark(2, [6]))
    assert [entries_of(recover(logs, tmp_path, unclean=True), queue)[0][4] for queue in (1, 2)] == [True, False]
    logs.messages.add(lb.DELIVERED, lb.mark(1, [0])[:-1])
    recovery = recover(logs, tmp_path, unclean=True)
    assert [entries_of(recovery, queue)[0][4] for queue in (1, 2)] == [True, True]
    assert recovery.report.malformed == 1


@pytest.mark.parametrize("clean", [(True, True), (True, False), (False, True)])
def test_a_clean_stop_needs_both_logs(tmp_path: Path, clean: tuple[bool, bool]) -> None:
    """Whether the stop was clean is read from the logs: both must end with the block of a clean stop."""
    logs = Logs()
    logs.publish(1, 1)
    logs.begin()
    for log, flag in zip((logs.messages, logs.transactions), clean):
        log.sync()
        if flag:
            log.sync(flags=1)
    recovery = recover(logs, tmp_path, unclean=None)
    assert [entry[4] for entry in entries_of(recovery, 1)] == [clean != (True, True)]


def test_marks(tmp_path: Path) -> None:
    """The highest position of each level: from marks, entries that are long gone, and rows of commits; per level."""
    logs = Logs()
    gone = logs.publish(1, 40)
    logs.dequeue(gone, 1, 40, last=True)
    logs.messages.add(lb.QUEUE_MARK, lb.mark(2, [7, 0, 9]))
    logs.publish(2, 2 << 56 | 12)
    tx = logs.begin()
    logs.commit(tx, [(3, 5, 4)])
    recovery = recover(logs, tmp_path)
    assert recovery.marks == {1: (40,), 2: (7, 0, 12), 3: (8,)}


def test_priority_levels_order_the_entries(tmp_path: Path) -> None:
    """Entries of several levels: by level, then by index."""
    logs = Logs()
    wanted = [(level << 56 | index, logs.publish(1, level << 56 | index)) for index in (1, 2) for level in (2, 0, 1)]
    assert places(recover(logs, tmp_path), 1) == sorted(wanted)


# --- queues -----------------------------------------------------------------------------------------------------------------------


def test_defect_13_unknown_queues(tmp_path: Path) -> None:
    """Qpid defect 13: a queue id that SQL gave out and no longer has: its entries ended, and it is named. One that SQL never gave out:
    the store does not open, and both ids are in the text."""
    logs = Logs()
    logs.publish(50, 1)
    both = logs.start()
    logs.enqueue(both, 50, 2)
    logs.enqueue(both, 1, 1)
    recovery = recover(logs, tmp_path, high=50)
    assert recovery.unknown_queues == [50] and entries_of(recovery, 50) == [] and places(recovery, 1) == [(1, both)]
    with pytest.raises(StoreError, match=r"queue 50.*up to 49"):
        recover(logs, tmp_path, high=49)


def test_queue_end(tmp_path: Path) -> None:
    """A deleted queue: its entries ended, though the definitions may still name it; it needs no further end."""
    logs = Logs()
    logs.publish(7, 1)
    message = logs.start()
    logs.enqueue(message, 7, 2)
    logs.enqueue(message, 1, 5)
    logs.messages.add(lb.QUEUE_END, lb.mark(7, [])[:8])
    for known in ({1, 2, 3}, {1, 7}):
        recovery = recover(logs, tmp_path, known=known)
        assert entries_of(recovery, 7) == [] and recovery.unknown_queues == [] and places(recovery, 1) == [(5, message)]
        assert 7 not in recovery.marks


# --- copies -----------------------------------------------------------------------------------------------------------------------


def test_a_copy_replaces_what_is_known(tmp_path: Path) -> None:
    """Message-Copy: the message's places are those it names; the content is where the copy is; the id stays."""
    logs = Logs()
    message = logs.start()
    for queue in (1, 2):
        logs.enqueue(message, queue, 1)
    logs.dequeue(message, 1, 1)
    lsn = logs.copy(message, [(2, 1, 77, 0, 0)])
    recovery = recover(logs, tmp_path)
    assert entries_of(recovery, 2) == [(1, message, 77, 4, True, False)] and entries_of(recovery, 1) == []
    assert [(where, ident, listed) for where, ident, _, listed in live_messages(recovery)] == [(lsn, message, [])]
    again = logs.copy(message, [(2, 1, 77, 0, 0), (3, 4, 0, 0, 0)])
    recovery = recover(logs, tmp_path)
    assert [live[:2] for live in live_messages(recovery)] == [(again, message)]
    logs.dequeue(message, 2, 1)
    logs.dequeue(message, 3, 4, last=True)
    assert live_messages(recover(logs, tmp_path)) == []


def test_the_base_passes_the_original_of_a_copy(tmp_path: Path) -> None:
    """Only the copy is above the base: the message comes back under its old id, and its later dequeue finds it."""
    logs = Logs()
    first, second = logs.publish(1, 1), logs.publish(1, 2)
    for position in range(3, 60):
        logs.dequeue(logs.publish(2, position), 2, position, last=True)
    copies = [logs.copy(message, [(1, position, 0, 0, 0)]) for position, message in ((1, first), (2, second))]
    logs.dequeue(first, 1, 1, last=True)
    logs.messages.sync(base=copies[0])
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(2, second)]
    assert [live[:2] for live in live_messages(recovery)] == [(copies[1], second)]


def test_a_torn_copy_does_not_count(tmp_path: Path) -> None:
    """The chunks of a copy were not all written: the older content counts on, with the copy's places and what came after it."""
    logs = Logs()
    message = logs.start(b"x" * 500)
    logs.enqueue(message, 1, 1)
    logs.enqueue(message, 2, 1)
    logs.copy(message, [(1, 1, 0, 0, 0), (2, 1, 0, 0, 0)], b"x" * 500, first=100)
    logs.dequeue(message, 2, 1)
    recovery = recover(logs, tmp_path)
    assert [live[:2] for live in live_messages(recovery)] == [(message, message)]
    assert places(recovery, 1) == [(1, message)] and places(recovery, 2) == []
    logs.messages.add(lb.CHUNK, lb.chunk(100, b"x" * 410), undo_prev=message)
    recovery = recover(logs, tmp_path)
    assert [live[1] for live in live_messages(recovery)] == [message] and live_messages(recovery)[0][0] > message


# --- transactions -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "rollback", "open", "prepare"])
def test_outcomes(tmp_path: Path, end: str) -> None:
    """One transaction enqueues on two queues and dequeues from a third: all of it is seen after commit, nothing after rollback or when
    it was open, and after prepare the entry is held and the new ones wait."""
    logs = Logs()
    old = logs.publish(3, 1)
    tx = logs.begin(b"xid")
    one, two = logs.publish(1, 0, tx=tx), logs.publish(2, 8, tx=tx, expires=5)
    logs.dequeue(old, 3, 1, tx=tx)
    if end in ("prepare", "commit"):
        logs.outcome(lb.PREPARE, tx)
    if end == "commit":
        logs.commit(tx, [(1, 6, 1)])
    if end == "rollback":
        logs.outcome(lb.ROLLBACK, tx)
    recovery = recover(logs, tmp_path)
    found = recovery.transactions[tx]
    assert found.xid == b"xid"
    assert (places(recovery, 1), places(recovery, 2)) == (([(6, one)], [(8, two)]) if end == "commit" else ([], []))
    assert places(recovery, 3) == ([] if end in ("commit", "prepare") else [(1, old)])
    assert held(recovery, 3) == ([(1, old)] if end == "prepare" else [])
    assert found.state == {"commit": COMMITTED, "rollback": ROLLED_BACK, "open": ROLLED_BACK, "prepare": PREPARED}[end]
    assert found.was_open == (end == "open") and not found.start_lost
    assert found.references == {"commit": 2, "rollback": 1, "open": 1, "prepare": 3}[end]
    if end == "prepare":
        assert found.enqueues == [(1, one, 0, 0, 4, 0), (2, two, 5, 8, 4, -1)] and found.dequeues == [(3, 1, old)]
        listed = {message: listed for _, message, _, listed in live_messages(recovery)}
        assert listed == {old: [(3, 1, 0, 0, tx)], one: [(1, lb.waiting(0), 0, tx, 0)], two: [(2, 8, 5, tx, 0)]}
    else:
        assert found.enqueues == found.dequeues == []
    assert recovery.homeless == {"commit": [old], "rollback": [one, two], "open": [one, two], "prepare": []}[end]


def test_defect_1_the_transaction_reference_rule(tmp_path: Path) -> None:
    """Qpid defect 1: a transaction that the log no longer has. Its messages ended further along: fine. One that did not end: lost and
    named, whether it was enqueued or dequeued by it; never an error, never a guess."""
    logs = Logs()
    tx = logs.begin()
    ended = logs.publish(1, 1, tx=tx)
    lost = logs.publish(1, 2, tx=tx)
    plain = logs.publish(1, 3)
    logs.dequeue(plain, 1, 3, tx=tx)
    kept = logs.publish(1, 4)
    logs.commit(tx)
    logs.dequeue(ended, 1, 1)
    logs.outcome(lb.TX_DELETE, tx)
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(4, kept)] and tx not in recovery.transactions
    assert [(item.message_id, item.queue_id, item.position) for item in recovery.report.lost] == [(lost, 1, 2), (plain, 1, 3)]
    assert "does not have" in str(recovery.report.lost[0])


def test_positions_of_a_commit_follow_the_order_of_the_calls(tmp_path: Path) -> None:
    """Entries without a position take those of the Commit's rows, per queue, by their running numbers; an ack by such a position finds
    them."""
    logs = Logs()
    tx, other = logs.begin(), logs.begin()
    messages = []
    for _ in range(6):
        message = logs.start()
        logs.enqueue(message, 1, 0, tx=tx)
        logs.publish(1, 0, tx=other)
        logs.enqueue(message, 2, 0, tx=tx)
        messages.append(message)
    logs.commit(tx, [(1, 10, 6), (2, 20, 6)])
    logs.dequeue(messages[2], 1, 12)
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(10 + n, messages[n]) for n in range(6) if n != 2]
    assert places(recovery, 2) == [(20 + n, messages[n]) for n in range(6)]


def test_positions_of_a_commit_when_the_base_passed_some_of_them(tmp_path: Path) -> None:
    """The first messages of a transaction ended and the base went past them: the others keep their positions."""
    logs = Logs()
    tx = logs.begin()
    messages = [logs.publish(1, 0, tx=tx) for _ in range(5)]
    logs.commit(tx, [(1, 10, 5)])
    logs.dequeue(messages[0], 1, 10, last=True)
    logs.dequeue(messages[1], 1, 11, last=True)
    logs.messages.sync(base=messages[2])
    logs.dequeue(messages[3], 1, 13, last=True)
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(12, messages[2]), (14, messages[4])]


def test_positions_of_a_commit_when_one_of_its_messages_was_copied(tmp_path: Path) -> None:
    """The base passed the Start of a copied message, but not its Enqueue: every entry keeps its position."""
    logs = Logs()
    tx = logs.begin()
    old, new = logs.start(), logs.start()
    logs.enqueue(new, 1, 0, tx=tx)
    logs.enqueue(old, 1, 0, tx=tx)
    logs.commit(tx, [(1, 10, 2)])
    logs.copy(old, [(1, 11, 0, tx, 0)])
    logs.messages.sync(base=new)
    assert places(recover(logs, tmp_path), 1) == [(10, new), (11, old)]


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_positions_of_a_commit_after_copies_of_what_waited(tmp_path: Path, passed: int) -> None:
    """Messages were copied while they waited for their positions: each keeps its number in the Commit's row, wherever the base is."""
    logs = Logs()
    tx = logs.begin(b"x")
    messages = [logs.publish(1, 0, tx=tx) for _ in range(4)]
    copies = [logs.copy(message, [(1, lb.waiting(number), 0, tx, 0)]) for number, message in enumerate(messages[:2])]
    if passed:
        logs.messages.sync(base=[0, messages[1], messages[2]][passed])
    logs.commit(tx, [(1, 10, 4)])
    assert places(recover(logs, tmp_path), 1) == [(10 + n, message) for n, message in enumerate(messages)]
    logs.dequeue(messages[1], 1, 11)
    logs.dequeue(messages[3], 1, 13, last=True)
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(10, messages[0]), (12, messages[2])]
    assert [lsn for lsn, *_ in live_messages(recovery)] == [messages[2], copies[0]] and recovery.report.lost == []


@pytest.mark.parametrize("numbers", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_position_is_told_from_one_record(tmp_path: Path, numbers: tuple[int, ...], gone: int) -> None:
    """Whatever became of a transaction's other enqueues (one is not in the log), and in whatever order their records stand: each has the
    position that its number says, before and after it was copied, and a dequeue by it finds it."""
    logs = Logs()
    tx = logs.begin(b"x")
    messages = [logs.start(b"%d" % number) for number in range(3)]
    for number in numbers:
        if number != gone:
            logs.enqueue(messages[number], 1, lb.waiting(number), tx=tx)
    left = [number for number in range(3) if number != gone]
    logs.copy(messages[left[0]], [(1, lb.waiting(left[0]), 0, tx, 0)])
    logs.commit(tx, [(1, 10, 1), (1, 20, 2)])
    at = [10, 20, 21]
    assert places(recover(logs, tmp_path), 1) == [(at[number], messages[number]) for number in left]
    for number in left:
        logs.dequeue(messages[number], 1, at[number], last=True)
    assert places(recover(logs, tmp_path), 1) == []


def test_a_row_without_positions(tmp_path: Path) -> None:
    """A row whose first position is 0 stands for enqueues that are lost: who has such a number is named as lost, too."""
    logs = Logs()
    tx = logs.begin(b"x")
    lost, kept = logs.publish(1, 0, tx=tx), logs.publish(1, 0, tx=tx)
    logs.commit(tx, [(1, 0, 1), (1, 7, 1)])
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(7, kept)] and [(item.message_id, item.position) for item in recovery.report.lost] == [(lost, 0)]
    assert recovery.marks == {1: (7,)}


def test_in_doubt_enqueues_come_in_the_order_of_the_calls(tmp_path: Path) -> None:
    """Per queue always, copied or not; over queues as the log tells it."""
    logs = Logs()
    tx = logs.begin(b"x")
    calls = [(queue, logs.start()) for queue in (1, 2, 1, 1, 2)]
    for queue, message in calls:
        logs.enqueue(message, queue, 0, tx=tx)
    logs.outcome(lb.PREPARE, tx)
    assert [item[:2] for item in recover(logs, tmp_path).transactions[tx].enqueues] == calls
    for number, place in ((2, 2), (0, 0)):
        logs.copy(calls[number][1], [(1, lb.waiting(place // 2), 0, tx, 0)])
    found = recover(logs, tmp_path).transactions[tx].enqueues
    for queue in (1, 2):
        wanted = [message for one, message in calls if one == queue]
        assert [(item[1], item[5]) for item in found if item[0] == queue] == [(message, n) for n, message in enumerate(wanted)]


def test_a_position_on_the_lowest_priority_does_not_wait(tmp_path: Path) -> None:
    """Level 255 sets the uppermost bits, as a waiting number does: it is a position all the same."""
    logs = Logs()
    tx = logs.begin()
    message = logs.publish(1, 255 << 56 | 3, tx=tx)
    logs.commit(tx)
    assert places(recover(logs, tmp_path), 1) == [(255 << 56 | 3, message)]


def test_several_rows_of_one_queue(tmp_path: Path) -> None:
    """A Commit may give a queue's entries several runs of positions; the numbers count over them in their order."""
    logs = Logs()
    tx = logs.begin()
    messages = [logs.publish(1, 0, tx=tx) for _ in range(5)]
    other = logs.publish(2, 0, tx=tx)
    logs.commit(tx, [(1, 10, 2), (2, 7, 1), (1, 20, 1), (1, 30, 2)])
    logs.messages.sync(base=messages[1])
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == list(zip((11, 20, 30, 31), messages[1:])) and places(recovery, 2) == [(7, other)]
    assert recovery.marks == {1: (31,), 2: (7,)}


def test_a_commit_without_a_position_is_named(tmp_path: Path) -> None:
    """A committed enqueue that got no position: lost and named, not put anywhere."""
    logs = Logs()
    tx = logs.begin()
    message = logs.publish(1, 0, tx=tx)
    logs.commit(tx, [(2, 10, 1)])
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [] and [item.message_id for item in recovery.report.lost] == [message]


def test_a_message_touched_twice_in_one_transaction(tmp_path: Path) -> None:
    """The same transaction moves a message from one queue to another, and puts another one twice on one queue (qpid defect 5)."""
    logs = Logs()
    moved = logs.publish(1, 1)
    tx = logs.begin()
    logs.dequeue(moved, 1, 1, tx=tx)
    logs.enqueue(moved, 2, 0, tx=tx)
    twice = logs.start()
    logs.enqueue(twice, 2, 0, tx=tx)
    logs.enqueue(twice, 2, 0, tx=tx)
    logs.commit(tx, [(2, 5, 3)])
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [] and places(recovery, 2) == [(5, moved), (6, twice), (7, twice)]
    assert recovery.transactions[tx].references == 2 and named_transactions(recovery) == [(moved, tx), (twice, tx)]


def test_defect_10_a_prepared_transaction_without_messages_stays(tmp_path: Path) -> None:
    """Qpid defect 10: its messages are on deleted queues, or it has none: the prepared transaction is still in doubt."""
    logs = Logs()
    empty, deleted = logs.begin(b"empty"), logs.begin(b"deleted")
    logs.publish(50, 0, tx=deleted)
    for tx in (empty, deleted):
        logs.outcome(lb.PREPARE, tx)
    recovery = recover(logs, tmp_path)
    assert [(tx.xid, tx.state) for tx in recovery.transactions.values()] == [(b"empty", PREPARED), (b"deleted", PREPARED)]
    assert recovery.report.prepared == 2


def test_defect_11_a_rollback_at_recovery_is_to_be_logged(tmp_path: Path) -> None:
    """Qpid defect 11: what recovery rolled back says so; once the Rollback is in the log, it does not any more."""
    logs = Logs()
    tx = logs.begin()
    logs.publish(1, 0, tx=tx)
    recovery = recover(logs, tmp_path)
    assert recovery.transactions[tx].was_open and recovery.transactions[tx].state == ROLLED_BACK and recovery.report.rolled_back == 1
    logs.outcome(lb.ROLLBACK, tx)
    recovery = recover(logs, tmp_path)
    assert not recovery.transactions[tx].was_open and recovery.transactions[tx].state == ROLLED_BACK


def test_a_transaction_whose_start_was_not_durable(tmp_path: Path) -> None:
    """The message log is synced first: its records may name a transaction that the transaction log lost at its tail. It has rolled
    back, it is listed so that this can be logged, and the highest id named is told (a new one must be higher)."""
    logs = Logs()
    logs.begin()
    logs.sync()
    kept = logs.publish(1, 1)
    durable = {sequence: bytes(data) for sequence, data in logs.transactions.files.items()}
    lost = logs.begin()
    logs.publish(1, 0, tx=lost)
    logs.dequeue(kept, 1, 1, tx=lost)
    logs.write(tmp_path)
    for sequence, data in durable.items():
        (tmp_path / "transactions" / container_name(sequence)).write_bytes(data)
    recovery = recover_from(tmp_path)
    assert places(recovery, 1) == [(1, kept)] and recovery.report.lost == []
    found = recovery.transactions[lost]
    assert (found.state, found.was_open, found.start_lost, found.references) == (ROLLED_BACK, True, True, 1)
    assert recovery.named_tx_max == lost


def test_tx_copy_end_heuristic_notes(tmp_path: Path) -> None:
    """Tx-Copy replaces what was known; End and Heuristic are kept; the last Note of a key counts, an empty one removes it."""
    logs = Logs()
    tx = logs.begin(b"long xid")
    message = logs.publish(1, 0, tx=tx)
    for state, rows in ((2, []), (3, [(1, 9, 1)])):
        logs.outcome(lb.TX_COPY, tx, lb.tx_copy(state, 0, 0, b"long xid", rows))
    logs.outcome(lb.END, tx)
    logs.outcome(lb.HEURISTIC, tx, b"\1")
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"")):
        logs.transactions.add(lb.NOTE, lb.note(1, key, value))
    logs.messages.sync(base=logs.messages.base)
    recovery = recover(logs, tmp_path)
    found = recovery.transactions[tx]
    assert (found.xid, found.state, found.rows, found.ended, found.heuristic) == (b"long xid", COMMITTED, [(1, 9, 1)], True, 1)
    assert places(recovery, 1) == [(9, message)] and recovery.notes == {(1, b"a"): b"3"}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("state", ["open", "prepared", "committed", "ended", "rolled back"])
def test_sets_of_transactions(tmp_path: Path, state: str, copied: bool) -> None:
    """What a prepared set acquired is held and in no other delivery; a committed one's that still stands is to be dequeued, and comes back
    nowhere; everything else about sets means nothing. A Tx-Copy has the rows of all of them."""
    logs = Logs()
    messages = {position: logs.publish(1, position) for position in (1, 2, 3, 5, 6, 9)}
    other = logs.publish(2, 1 << 56 | 4)
    tx = logs.begin(b"set")
    rows = [(1, 2, 4), (1, 9, 1), (2, 1 << 56 | 3, 2), (77, 1, 5)]
    logs.outcome(lb.ACQUIRE_SET, tx, lb.acquire_set(rows[:2], 7))
    logs.outcome(lb.ACQUIRE_SET, tx, lb.acquire_set(rows[2:], 7))
    number = {"open": 1, "prepared": 2, "rolled back": 4}.get(state, 3)
    if number > 1:
        logs.outcome(lb.PREPARE, tx)
    if number == 3:
        logs.commit(tx)
    elif number == 4:
        logs.outcome(lb.ROLLBACK, tx)
    if state == "ended":
        logs.outcome(lb.END, tx)
    if copied:
        ended = state == "ended"
        logs.transactions.sync()
        logs.outcome(lb.TX_COPY, tx, lb.tx_copy(number, 0, ended, b"set", [], None if ended else rows, 0 if ended else 7))
    logs.dequeue(messages[3], 1, 3, last=True)  # from it, or anybody: it stands there no more
    recovery = recover(logs, tmp_path)
    everything = {(1, position, message) for position, message in messages.items() if position != 3} | {(2, 1 << 56 | 4, other)}
    mine = {item for item in everything if item[1] in (2, 5, 9, 1 << 56 | 4)}
    assert {(queue, *item) for queue in (1, 2) for item in held(recovery, queue)} == (mine if state == "prepared" else set())
    taken = mine if state == "committed" else set()
    assert {one[:3] for one in recovery.taken} == taken and {one[3] for one in recovery.taken} <= {7}
    free = {(queue, *item) for queue in (1, 2) for item in places(recovery, queue)}
    assert free == everything - taken - (mine if state == "prepared" else set())
    assert [entry[4] for entry in entries_of(recovery, 1)] == [not entry[5] for entry in entries_of(recovery, 1)]
    assert recovery.report.entries == len(everything - taken) and not recovery.report.lost
    assert recovery.transactions[tx].sets == ([] if state == "ended" else rows)


def test_a_copy_carries_its_transactions(tmp_path: Path) -> None:
    """A Message-Copy names who enqueues and who wants to dequeue; the original is below the base."""
    logs = Logs()
    adds, takes = logs.begin(b"adds"), logs.begin(b"takes")
    message = logs.publish(1, 0, tx=adds)
    lsn = logs.copy(message, [(1, lb.waiting(7), 3, adds, 0), (2, 6, 0, 0, takes)])
    logs.messages.sync(base=lsn)
    for tx in (adds, takes):
        logs.outcome(lb.PREPARE, tx)
    recovery = recover(logs, tmp_path)
    assert recovery.transactions[adds].enqueues == [(1, message, 3, 0, 4, 7)]
    assert recovery.transactions[takes].dequeues == [(2, 6, message)] and held(recovery, 2) == [(6, message)]
    assert sorted(named_transactions(recovery)) == sorted([(message, adds), (message, takes)])


# --- damage -----------------------------------------------------------------------------------------------------------------------


def test_defect_14_a_damaged_message_is_named_and_the_rest_comes_back(tmp_path: Path) -> None:
    """Qpid defect 14: one flipped bit in a durable Start: that message is lost and named; all others come back, as delivered before."""
    logs = Logs()
    messages = []
    for position in range(1, 60):
        messages.append(logs.publish(1, position))
        logs.sync()
    victim = messages[20]
    logs.messages.files[victim // 4096][victim % 4096 + 50] ^= 1
    recovery = recover(logs, tmp_path, unclean=False)
    assert places(recovery, 1) == [(n + 1, message) for n, message in enumerate(messages) if message != victim]
    assert [(lost.message_id, lost.queue_id, lost.position) for lost in recovery.report.lost] == [(victim, 1, 21)]
    assert len(recovery.report.damage) == 1 and all(entry[4] for entry in entries_of(recovery, 1))


def test_a_damaged_enqueue_is_named(tmp_path: Path) -> None:
    """The content is there and the record that says where it stood is not: named as lost, its queue unknown."""
    logs = Logs()
    message = logs.start()
    lsn = logs.enqueue(message, 1, 1)
    logs.sync()
    other = logs.publish(1, 2)
    logs.sync()
    logs.messages.files[1][lsn % 4096 + 30] ^= 1
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(2, other)]
    assert [(lost.message_id, lost.queue_id) for lost in recovery.report.lost] == [(message, 0)]


def test_a_damaged_chunk_loses_its_message_only(tmp_path: Path) -> None:
    """A chunk that was durable does not check: the message is lost and named."""
    logs = Logs()
    message = logs.start(b"x" * 900, first=400)
    lsn = logs.messages.add(lb.CHUNK, lb.chunk(400, b"x" * 510), undo_prev=message)
    logs.enqueue(message, 1, 1)
    logs.sync()
    other = logs.publish(1, 2)
    logs.sync()
    logs.messages.files[1][lsn % 4096 + 100] ^= 1
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(2, other)] and [lost.message_id for lost in recovery.report.lost] == [message]


def test_a_damaged_transaction_log_refuses(tmp_path: Path) -> None:
    """A lost Commit would look like an open transaction: the store does not open, and the text says where and what helps."""
    logs = Logs()
    for _ in range(5):
        tx = logs.begin()
        logs.commit(tx)
        logs.sync()
    logs.transactions.files[1][600] ^= 1
    with pytest.raises(StoreError, match=r"transaction log is damaged.*repair"):
        recover(logs, tmp_path)


def test_two_messages_of_one_position(tmp_path: Path) -> None:
    """Never two entries at one position: the first message stays, the other is named."""
    logs = Logs()
    first, second, third = logs.publish(1, 5), logs.publish(1, 5), logs.publish(1, 2)
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(2, third), (5, first)] and [lost.message_id for lost in recovery.report.lost] == [second]


def test_records_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    """Records that check but are too short, of unknown types, or about nothing: counted, the rest comes back."""
    logs = Logs()
    kept = logs.publish(1, 1)
    for kind in (lb.START, lb.CHUNK, lb.ENQUEUE, lb.DEQUEUE, lb.COPY, lb.QUEUE_MARK, lb.REDELIVERED, lb.QUEUE_END):
        logs.messages.add(kind, b"abc", undo_prev=kept)
    logs.messages.add(lb.COPY, b"\xff" * 60, undo_prev=kept)
    logs.messages.add(lb.REDELIVERED, lb.ranges(1, [(1, 1)])[:-8])
    logs.messages.add(200, b"abc")
    logs.delete(999)
    recovery = recover(logs, tmp_path)
    assert places(recovery, 1) == [(1, kept)]
    assert (recovery.report.malformed, recovery.report.unknown_kinds, recovery.report.stray) == (10, 1, 1)


def test_a_second_recovery_finds_the_same(tmp_path: Path) -> None:
    """Recovery writes nothing: files are byte for byte the same, and so is what it finds."""
    logs = Logs()
    tx = logs.begin(b"x")
    for position in range(1, 40):
        logs.publish(1, position)
        logs.publish(2, 0, tx=tx)
    logs.outcome(lb.PREPARE, tx)
    logs.write(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.flog")}
    one, two = recover_from(tmp_path), recover_from(tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.flog")}
    assert live_messages(one) == live_messages(two) and one.transactions == two.transactions
    assert [entries_of(one, queue) for queue in (1, 2)] == [entries_of(two, queue) for queue in (1, 2)]


def test_the_numbers_of_the_decision_table_in_c() -> None:
    """recovery_work.pxd repeats the enumerations of decisions.py as C constants: they are the same."""
    assert [int(decisions.Enqueue[name]) for name in ("PLAIN", "COMMITTED", "ROLLED_BACK", "OPEN", "PREPARED", "UNKNOWN")] == list(range(6))
    for name in ("PLAIN", "COMMITTED", "ROLLED_BACK", "OPEN", "PREPARED", "UNKNOWN"):
        assert decisions.Dequeue[name] == decisions.Enqueue[name] + 1
    assert [int(item) for item in decisions.Content] == [0, 1, 2, 3] and [int(item) for item in decisions.Queue] == [0, 1, 2]
    assert [int(item) for item in decisions.Outcome] == [0, 1, 2, 3, 4, 5]
