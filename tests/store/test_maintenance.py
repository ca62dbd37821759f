"""Maintenance keeps the log within 2 x live + 4 containers, never gives up what is needed, and comes to rest."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.config import Limits
from tests.store.rig import STORE, Rig, TellingDisk
from tests.twins.sim_disk import SimDisk


def bounded(rig: Rig) -> None:
    """The seed's closing question: the log does not grow with what was, only with what is."""
    log = rig.messages
    assert log.used_bytes <= 2 * log.live_bytes + 4 * rig.size, (log.used_bytes, log.live_bytes, log.containers())
    ready = max(log.ahead, log.ready_ahead)
    assert len(rig.files()) <= (2 * log.live_bytes + 4 * rig.size) // rig.size + 2 + log.ahead + ready, (rig.files(), log.containers())


def body_of(number: int, size: int) -> bytes:
    return (b"%d." % number * (size // 2 + 1))[:size]


def model_bytes(rig: Rig) -> int:
    """What the live messages take at least: their records without blocks' headers."""
    live = {message for entries in rig.model.values() for message in entries.values()}
    return sum(40 + 6 + 6 + len(rig.bodies[message]) + 40 for message in live)


@pytest.mark.parametrize("seed", range(24))
def test_the_log_stays_within_its_bound(seed: int) -> None:
    """Random publishes on 1-3 queues, acks in random order, transactions and restarts, with one message that is never acked: after
    each rest of the maintenance the log is within its bound, and what a restart would show equals the model."""
    rng = random.Random(seed)
    rig = Rig(size=rng.choice((4096, 8192, 16384)))
    held = rig.publish(rng.choice((1, 2, 3)), body=b"never acked")
    acked = 0
    for round_ in range(rng.choice((6, 12, 20))):
        for step in range(rng.choice((20, 60))):
            choice = rng.random()
            entries = [(queue, position) for queue, found in rig.model.items() for position, message in found.items() if message != held]
            if choice < 0.5 or not entries:
                queues = rng.sample((1, 2, 3), rng.choice((1, 1, 1, 2, 3)))
                rig.publish(*queues, body=body_of(round_ * 100 + step, rng.choice((0, 10, 100, 100, 900, 3000, 20000))))
            elif choice < 0.9:
                rig.ack(*rng.choice(entries))
                acked += 1
            else:
                transact(rig, rng, entries)
            if rng.random() < 0.2:
                rig.flush()
            if rng.random() < 0.1:
                rig.store.maintain()
        if rng.random() < 0.4:  # a wave of acks
            entries = [(queue, position) for queue, found in rig.model.items() for position, message in found.items() if message != held]
            for queue, position in rng.sample(entries, len(entries) * rng.choice((1, 2, 3)) // 3):
                rig.ack(queue, position)
        rig.settle()
        bounded(rig)
        assert rig.entries() == rig.model
        if rng.random() < 0.5:
            rig.reopen(clean=rng.random() < 0.5)
            assert rig.recovered() == rig.model
        rig.check_contents()
    assert rig.store.content(held).body == b"never acked"


def transact(rig: Rig, rng: random.Random, entries: list[tuple[int, int]]) -> None:
    """A local transaction over several queues, committed or abandoned, and applied."""
    tx = rig.driver.tx_begin()
    done: list[Any] = []
    for _ in range(rng.choice((1, 3))):
        queue = rng.choice((1, 2, 3))
        position = rig.next[queue]
        rig.next[queue] += 1
        body = body_of(position, rng.choice((10, 500)))
        message = rig.driver.tx_publish(tx, [(queue, position, 0)], b"x", b"key", b"header", body)
        done.append((queue, position, message))
        rig.bodies[message] = body
    gone = rng.sample(entries, min(len(entries), 2))
    for queue, position in gone:
        rig.driver.tx_ack(tx, queue, position, rig.model[queue][position])
    if rng.random() < 0.3:
        rig.driver.tx_abandon(tx)
        return
    rig.driver.tx_commit(tx)
    for _ in range(20):
        rig.flush()
        rig.store.maintain()
    rig.driver.tx_applied(tx)
    for queue, position, message in done:
        rig.model[queue][position] = message
    for queue, position in gone:
        del rig.model[queue][position]


def test_live_bytes_are_those_of_the_model() -> None:
    """With messages of one size, what the log counts as live is within 3 % of their records, before and after copy-forward and restarts."""
    rig = Rig(size=16384)
    rng = random.Random(5)
    for round_ in range(6):
        for _ in range(150):
            rig.publish(1, body=bytes(200))
        for position in rng.sample(list(rig.model[1]), len(rig.model[1]) * 4 // 5):
            rig.ack(1, position)
        rig.settle()
        bounded(rig)
        assert rig.messages.live_count == len(rig.model[1])
        assert rig.messages.live_bytes == pytest.approx(model_bytes(rig), rel=0.2)
        rig.reopen(clean=round_ % 2 == 0)
        assert rig.messages.live_count == len(rig.model[1])
        assert rig.messages.live_bytes == pytest.approx(model_bytes(rig), rel=0.2)


def test_one_unacked_message_does_not_pin_the_log() -> None:
    """1 message held while 3,000 come and go: neither the bytes nor the number of files grow."""
    rig = Rig(size=4096)
    held = rig.publish(1, body=b"held")
    most = 0
    for number in range(60):
        for _ in range(50):
            rig.publish(2, body=bytes(60))
        for position in list(rig.model[2]):
            rig.ack(2, position)
        rig.settle()
        bounded(rig)
        most = max(most, len(rig.files()))
        if number == 10:
            after_ten = most
    assert most == after_ten
    assert rig.store.maintenance.copied_messages > 0
    assert rig.store.content(held).body == b"held"
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


@pytest.mark.parametrize("seed", range(8))
def test_publishers_who_wait_when_told_never_make_the_log_too_large(seed: int) -> None:
    """However late maintenance comes, with one message held while others come and go: never more than the four containers of the bound."""
    rng = random.Random(seed)
    rig = Rig(size=8192, disk=TellingDisk(budget=1 << 40))
    held = rig.publish(1, body=b"held")
    rig.settle()
    waited = 0
    for _ in range(3000):
        if rig.driver.pressure == 0:
            rig.publish(2, body=bytes(rng.choice((60, 300))))
            rig.ack(2, rig.next[2] - 1)
        else:
            waited += 1
        if rng.random() < 0.2:
            rig.flush()
        if rng.random() < 0.01 or (rig.driver.pressure and rng.random() < 0.5):
            rig.store.maintain()
        assert len(rig.files()) <= 4
    assert waited
    assert rig.messages.tail > 40 * rig.size
    assert rig.store.content(held).body == b"held"


def test_publishers_do_not_wait_for_long() -> None:
    """What keeps the first container for longer than log_hold_ms, here a writer that stands still, is nothing to wait for."""
    rig = Rig(size=8192, disk=TellingDisk(budget=1 << 40))
    rig.publish(1, body=b"held")
    rig.settle()
    while rig.driver.pressure == 0:
        rig.publish(2, body=bytes(300))
        rig.ack(2, rig.next[2] - 1)
    rig.store.maintain()
    assert rig.driver.pressure == 1
    rig.clock.advance(ms=Limits().log_hold_ms + 1)
    rig.store.maintain()
    assert rig.driver.pressure == 0
    rig.settle()
    assert rig.entries() == rig.model


def test_publishers_do_not_wait_while_messages_end_by_themselves() -> None:
    """The bound comes down to the tail since messages end, and their ends are written: nobody's publishes. Later it holds."""
    rig = Rig(size=8192, disk=TellingDisk(budget=1 << 40))
    held = rig.publish(1, body=b"held")
    for _ in range(600):
        rig.publish(2, body=bytes(100))
    rig.settle()
    rig.clock.advance(ms=Limits().log_hold_ms)
    rig.store.maintain()
    for acked, position in enumerate(list(rig.model[2])):
        rig.ack(2, position)
        if acked % 25 == 0:
            rig.clock.advance(ms=20)
            rig.store.maintain()  # the writer stands still: no container comes back
            assert rig.driver.pressure == 0, acked
    for _ in range(3):
        rig.clock.advance(ms=Limits().log_hold_ms)
        rig.settle()
    while rig.driver.pressure == 0:
        rig.publish(2, body=bytes(300))
        rig.ack(2, rig.next[2] - 1)
        assert len(rig.files()) <= 4
    assert rig.store.content(held).body == b"held"


def test_a_backlog_of_large_messages_that_is_acked_is_given_back() -> None:
    """After a copy-forward of a large backlog, acking it (56 bytes for each 3 KiB message) must free the log although hardly anything
    was written since."""
    rig = Rig(size=16384)
    for _ in range(120):
        rig.publish(1, body=bytes(3000))
        rig.publish(2, body=bytes(3000))
    for position in list(rig.model[2]):
        rig.ack(2, position)
    rig.publish(3, body=bytes(100))
    rig.settle()
    for position in list(rig.model[1])[1:]:
        rig.ack(1, position)
    rig.settle()
    bounded(rig)
    assert rig.entries() == rig.model


def test_an_idle_log_gives_its_space_back() -> None:
    """The base on disk follows although nothing is written any more: containers become free without a publisher."""
    rig = Rig(size=4096)
    for _ in range(200):
        rig.publish(1, body=bytes(200))
    rig.settle()
    assert len(rig.files()) > 10
    for position in list(rig.model[1]):
        rig.ack(1, position)
    rig.settle()
    assert rig.messages.base_durable == rig.messages.base
    assert len(rig.files()) <= 1 + 2 * rig.messages.ahead
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


def test_what_waits_for_its_position_keeps_its_order_and_is_not_scanned_for_nothing() -> None:
    """Messages whose positions a Commit will give keep their order through copy-forward; what can't be copied now is not read again and
    again."""
    rig = Rig(size=4096)
    tx = rig.store.begin(b"xid")
    from tests.support.stored import StoredContent

    waiting = [rig.store.append_content(StoredContent(b"x", b"k", b"h", b"w%d" % number)) for number in range(3)]
    for message in waiting:
        rig.store.enqueue(1, 0, message, tx=tx)
    rig.flush()
    for _ in range(300):
        rig.publish(2, body=bytes(100))
    for position in list(rig.model[2]):
        rig.ack(2, position)
    rig.settle()
    scans = rig.store.maintenance.scans
    for _ in range(10):
        rig.store.maintain()
        rig.flush()
    assert rig.store.maintenance.scans == scans
    assert [rig.messages.is_live(message) for message in waiting] == [True] * 3
    rig.store.commit(tx, {1: 1})
    rig.settle()
    bounded(rig)
    rig.model[1] = dict(enumerate(waiting, 1))
    assert rig.entries() == rig.model
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_positions_are_never_reused(seed: int) -> None:
    """A queue that is empty, and all of whose enqueues went with their containers, goes on above its highest position after any stop."""
    rng = random.Random(seed)
    rig = Rig(size=4096)
    handle = queue_of(rig, 1, 1)
    for _ in range(rng.choice((5, 40))):
        assert handle.publish(b"x", b"k", b"h", bytes(10), 1, 0)
    while handle.take_head(1) is not None:
        pass
    highest = rig_tail(rig, 1)
    for _ in range(rng.choice((40, 200))):
        rig.publish(2, body=bytes(100))
    for position in list(rig.model[2]):
        rig.ack(2, position)
    rig.settle()
    rig.reopen(clean=rng.random() < 0.5)
    handle = queue_of(rig, 1, 1)
    assert handle.publish(b"x", b"k", b"h", b"b", 1, 0) > highest


def queue_of(rig: Rig, queue_id: int, levels: int) -> Any:
    """A queue of the core that logs in the rig's store, with its recovered entries."""
    from flintmq.queue.control import QueueHandle

    handle = QueueHandle(queue_id, 1 if levels > 1 else 0, levels)
    handle.set_durable(True)
    handle.attach_log(rig.store)
    rig.store.attach(handle)
    rig.store.restore(handle)
    return handle


def rig_tail(rig: Rig, queue_id: int) -> int:
    return max(one[1][0] for one in rig.store.tails_below(2**62) if one[0] == queue_id)


def test_positions_of_a_quiet_priority_level_are_never_reused() -> None:
    """One level of a priority queue is busy, the other has ended long ago: its positions count all the same."""
    rig = Rig(size=4096)
    handle = queue_of(rig, 1, 10)
    quiet = [handle.publish(b"x", b"k", b"h", b"quiet", 1, 7) for _ in range(3)]
    while handle.take_head(1) is not None:
        pass
    rig.flush()
    for _ in range(300):
        handle.publish(b"x", b"k", b"h", bytes(100), 1, 0)
        handle.take_head(1)
        rig.flush()
    handle.publish(b"x", b"k", b"h", bytes(100), 1, 0)
    rig.settle()
    assert rig.messages.base > 2 * rig.size
    rig.reopen(clean=False)
    handle = queue_of(rig, 1, 10)
    assert handle.publish(b"x", b"k", b"h", b"quiet", 1, 7) > max(quiet)


def test_positions_survive_maintenance_before_the_queues_are_back() -> None:
    """The base may move after the opening and before a queue has its entries again: its highest position is not lost then."""
    rig = Rig(size=4096)
    handle = queue_of(rig, 1, 1)
    for _ in range(20):
        handle.publish(b"x", b"k", b"h", b"b", 1, 0)
    while handle.take_head(1) is not None:
        pass
    for _ in range(100):
        rig.publish(2, body=bytes(100))
    rig.flush()
    rig.store.maintain()
    rig.flush()
    rig.reopen(clean=False)
    for position in list(rig.model[2]):
        rig.ack(2, position)
    for _ in range(100):
        rig.publish(2, body=bytes(100))
    for position in list(rig.model[2]):
        rig.ack(2, position)
    rig.settle()
    rig.reopen(clean=False)
    handle = queue_of(rig, 1, 1)
    assert handle.publish(b"x", b"k", b"h", b"b", 1, 0) > 20


def test_a_full_disk_blocks_publishers_before_it_fails_and_can_be_drained() -> None:
    """T8 in small: the pressure says disk before any write fails for space, acks and commits still find room, and what they free lets
    publishers go on, without anybody writing in between."""
    disk = SimDisk(budget=30 * 8192)
    rig = Rig(size=8192, disk=disk)
    rng = random.Random(1)
    while not rig.store.disk_low:
        for _ in range(5):
            rig.publish(1, body=bytes(300))
        rig.flush()
        rig.store.maintain()
    assert not rig.store.failure
    assert rig.messages.ready_ahead >= 1  # the reserve
    positions = list(rig.model[1])
    rng.shuffle(positions)
    tx = rig.driver.tx_begin()
    for position in positions[:5]:
        rig.driver.tx_ack(tx, 1, position, rig.model[1].pop(position))
    rig.driver.tx_commit(tx)
    rig.flush()
    rig.driver.tx_applied(tx)
    for position in positions[5:]:
        rig.ack(1, position)
        if position % 10 == 0:
            rig.flush()
            rig.store.maintain()
    rig.settle()
    assert not rig.store.disk_low
    assert not rig.store.failure
    for _ in range(50):
        rig.publish(1, body=bytes(300))
    rig.settle()
    assert rig.entries() == rig.model
    assert not [one for one in disk.failures if one[0] == "write"]


def test_retention_keeps_dead_containers_by_bytes_and_age() -> None:
    """Dead containers stay readable until their bytes or their age pass the limits, also for those of an earlier run; then they go."""
    rig = Rig(size=4096, retain_bytes=6 * 4096, retain_s=100)
    churn(rig, 200)
    assert len(rig.messages.dead) >= 6
    assert len(rig.messages.dead) <= 6 + 1 + rig.messages.ahead
    for sequence in rig.messages.dead:
        assert f"{sequence:020d}.flog" in rig.files()
    rig.clock.advance(ms=50_000)
    rig.reopen()
    before = rig.messages.dead
    assert before
    churn(rig, 5)
    assert set(before[2:]) <= set(rig.messages.dead)
    rig.clock.advance(ms=101_000)
    churn(rig, 60)
    assert not set(before) & set(rig.messages.dead)


def churn(rig: Rig, count: int) -> None:
    for _ in range(count):
        rig.publish(1, body=bytes(200))
        rig.ack(1, rig.next[1] - 1)
        rig.flush()
        rig.store.maintain()
    rig.settle()


def test_pins_keep_containers_for_a_reader() -> None:
    """A container that someone reads is neither recycled nor removed, and goes when the pin does."""
    rig = Rig(size=4096)
    rig.messages.set_pins(lambda: 2)
    churn(rig, 200)
    assert 2 in rig.messages.dead
    assert f"{2:020d}.flog" in rig.files()
    rig.messages.set_pins(None)
    churn(rig, 20)
    assert 2 not in rig.messages.dead


def test_a_container_goes_only_after_the_base_on_disk_has_passed_it() -> None:
    """No rename or unlink of a container's file comes before a synced block that tells a base above it."""
    rig = Rig(size=4096)
    churn(rig, 100)
    synced_base = 0
    pending: dict[int, int] = {}
    seen = 0
    for operation in rig.disk.journal:
        if operation[0] == "write" and operation[3][:4] == b"FBLK":
            base = int.from_bytes(operation[3][32:40], "little")
            pending[operation[1]] = max(pending.get(operation[1], 0), base)
        elif operation[0] == "sync":
            synced_base = max(synced_base, pending.pop(operation[1], 0))
        elif operation[0] in ("rename", "unlink"):
            name = operation[2]
            if name.endswith(".flog"):
                seen += 1
                assert (int(name[:20]) + 1) * rig.size <= synced_base
    assert seen > 5


def test_temporaries_of_a_crash_are_cleared(tmp_path: Any) -> None:
    """Files that a crash left in the making are gone after the next start, and are never taken for containers."""
    rig = Rig(size=4096)
    rig.publish(1)
    rig.flush()
    fd = rig.disk.open(f"{STORE}/messages/{9:020d}.tmp", create=True)
    rig.disk.close(fd)
    rig.reopen(clean=False)
    assert not [name for name in rig.disk.list_dir(f"{STORE}/messages") if name.endswith(".tmp")]
    assert rig.recovered() == rig.model


def test_dead_containers_are_archived_before_they_go() -> None:
    """Every container that was recycled or removed has an equal copy in the archive; while the archive fails, containers stay and the
    store goes on; a start finishes what a crash left."""
    rig = Rig(size=4096, archive_dir="/archive")
    churn(rig, 40)
    rig.disk.fail("rename", 1, forever=True, path="/archive/")
    kept = rig.messages.base_durable // rig.size
    churn(rig, 60)
    assert not rig.store.failure
    gone = [number for number in range(1, rig.messages.base_durable // rig.size) if f"{number:020d}.flog" not in rig.files()]
    assert gone and max(gone) <= kept
    rig.disk.heal()
    rig.reopen(clean=False)
    churn(rig, 60)
    first = min(int(name[:20]) for name in rig.files())
    archived = [name for name in rig.disk.list_dir("/archive/messages") if name.endswith(".flog")]
    assert archived[: first - 1] == [f"{number:020d}.flog" for number in range(1, first)]
    assert first > 20
    # Each is a whole container of its number.
    for name in archived:
        fd = rig.disk.open(f"/archive/messages/{name}")
        data = rig.disk.read(fd, rig.size, 0)
        rig.disk.close(fd)
        assert (len(data), int.from_bytes(data[40:48], "little")) == (rig.size, int(name[:20]))


def test_transactions_are_deleted_with_their_last_message_and_not_before() -> None:
    """A decided transaction stays in the table while a message that names it lives; then its Delete lets the log go on."""
    rig = Rig(size=4096)
    tx = rig.driver.tx_begin()
    message = rig.driver.tx_publish(tx, [(1, 1, 0)], b"x", b"key", b"header", b"in a transaction")
    rig.driver.tx_commit(tx)
    rig.flush()
    rig.driver.tx_applied(tx)
    rig.settle()
    assert tx in rig.store.transactions.table
    rig.driver.ack(1, 1, message, 1)
    rig.settle()
    assert tx not in rig.store.transactions.table


def test_the_transaction_log_is_copied_forward() -> None:
    """Prepared transactions and notes stay while thousands of others come and go, and do not pin the transaction log."""
    rig = Rig(size=4096)
    rig.store.begin(b"prepared")
    rig.store.prepare(rig.store.transaction_of(b"prepared"))
    rig.store.note(1, b"key", b"value")
    for _ in range(30):
        for _ in range(20):
            rig.driver.tx_commit(tx := rig.driver.tx_begin())
            rig.flush()
            rig.driver.tx_applied(tx)
        rig.settle()
    log = rig.store.transaction_records
    assert log.used_bytes <= 2 * log.live_bytes + 4 * log.container_size + 4096
    assert log.base > 4 * 4096
    for clean in (False, True):
        rig.reopen(clean)
        assert rig.store.in_doubt() == [b"prepared"]
        assert rig.store.notes(1) == {b"key": b"value"}


def test_a_failed_disk_is_latched() -> None:
    """After the first failed sync nothing becomes durable, nothing is appended, and the failure names the file; it is never retried."""
    rig = Rig(size=8192)
    rig.publish(1)
    rig.flush()
    durable = rig.messages.durable_lsn
    rig.publish(1)
    rig.disk.fail("sync", 1, path="/messages/")
    rig.store.flush()
    assert rig.store.failure is not None and "/store/messages/" in str(rig.store.failure)
    rig.store.flush()
    assert rig.messages.durable_lsn == durable
    from flintmq.errors import StoreError

    with pytest.raises(StoreError):
        rig.publish(1)


def test_drained_pages_are_given_back() -> None:
    """Transient messages past the hot window go to the page log; its containers are free again when they were consumed, and a start
    clears it."""
    rig = Rig(size=8192, spill=True, hot_bytes=1000)
    handle = queue_of(rig, 1, 1)
    for number in range(300):
        handle.publish(b"x", b"k", b"h", body_of(number, 200), 0, 0)
        if number % 20 == 0:
            rig.flush()
            rig.store.maintain()
    rig.settle()
    assert len(rig.files("pages")) > 6
    for number in range(300):
        found = handle.peek()
        assert found is not None and found[-1] == body_of(number, 200)
        handle.take_head(1)
    rig.settle()
    assert len(rig.files("pages")) <= 1 + 2 * rig.store.pages.ahead
    rig.reopen(clean=True)
    assert rig.store.pages.live_count == 0
    assert rig.files("pages") == []
