"""Maintenance of the store's logs: containers in front of the tail, the base behind it, copy-forward, blocked publishers.

in: wake-ups of the writer, the clock. out: calls on the logs. One thread, or `once()` by a test.

Order of one pass, each step relying on the ones before: seal full containers; mark queues whose last record would go; move the base;
retire containers that the base on disk has passed; copy forward; make or recycle containers; trim; set the LSN from which on publishers
wait for a container; say whether the disk is full.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from flintmq.config import Limits
from flintmq.errors import StoreError
from flintmq.store.copy_forward import copy_container
from flintmq.store.log.log import CONTAINER_SEALED
from flintmq.store.log.managed import NO_MEANS
from flintmq.store.logs import nothing

log = logging.getLogger("flintmq.store")

# containers of the message log that nothing but acks and outcomes may use (the reserve): two, and under load as many as hold
# Limits.log_reserve_bytes
RESERVE = 2
RESERVE_MOST = 8
# of the other logs
SMALL_RESERVE = 1
# containers of the bound, on top of twice the live bytes
SPARE_CONTAINERS = 4
# containers left over by a copy on a full disk, and by one into the last container that is ready
LOW_LEFT = 1 / 4
LATE_LEFT = 1 / 16
# containers copied forward in one pass: their messages wait in write buffers for the next sync
COPY_CONTAINERS = 4
# with nothing but the reserve left, copy-forward starts when this share of the log is garbage: each bit of room counts then
LOW_GARBAGE = 0.03
# containers kept ready at most, when the writer had to wait for one
AHEAD_BYTES_MAX = 32 << 20
# a log that fills its containers more slowly than this is calm
CALM_NS = 2_000_000_000
# containers archived in one pass: the pass also makes the writer's next ones
ARCHIVE_CONTAINERS = 2
# a container with so few live messages is copied early: messages, and share of the container's bytes
EARLY_MESSAGES = 16
EARLY_SHARE = 1 / 64
# containers that a log wants ready behind the tail's: one to go on in, and the next one in the making
WANTED_AHEAD = 2
# a log under way waits for a container to come back, while this share of one is left to write, before it makes another
PATIENT_SHARE = 4
# seconds between two passes when nothing happens, and when the last one left something that only waits for a sync: on a calm log, and
# on one that fills a container in some milliseconds
IDLE_S = 1.0
BUSY_S = 0.02
# and between two looks whether contents that several queues wait for are still asked for
REST_S = 0.5
HURRY_S = 0.001


class Maintenance:
    """Maintains the logs of a LogStore."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.copied_messages = 0
        self.copied_bytes = 0
        self._stuck: tuple[int, int, int] | None = None  # the container that copy-forward could not copy, see _copy_forward
        # queue id -> LSN: everything that its last Queue-Mark leaves out comes later (queues of several levels, queues not back yet)
        self._marked: dict[int, int] = {}
        self._archive_failed = False
        self.scans = 0  # containers that copy-forward has read
        self._no_means = False  # the last pass found no file descriptor or memory
        self.busy = False  # the last pass left something that waits for a sync
        self._hurry = False  # and the message log is not calm
        self._tails: dict[str, tuple[int, int]] = {}  # log -> its tail's container, and when that was first seen
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._first = store.messages.tail // store.messages.container_size
        self._reserve = RESERVE
        self._limits = Limits()
        self._roomy = False
        self._held: tuple[int, int] | None = None  # the first container when publishers were first seen to wait for it, and that time
        # what ended most recently: (time, tail, live bytes) of the message log, once each half of Limits.log_hold_ms
        self._before = self._lately = (0, 0, 0)
        # log -> files of an empty log: as many as the operator asked for, if that is more than the bound
        self._least = {one.name: one.ahead + 1 for one in (*self._logs(), store.index.log)}

    # --- thread -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="flintmq-maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the pass under way."""
        self._stopping = True
        self.wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wake(self) -> None:
        """A pass should be made soon."""
        self.store.writer.tell_progress()

    def _run(self) -> None:
        seen = 0
        rest = 0.0
        while not self._stopping:
            seen = self.store.writer.wait_progress(seen, (HURRY_S if self._hurry else BUSY_S) if self.busy else IDLE_S)
            if self._stopping:
                return
            if time.monotonic() >= rest:
                rest = time.monotonic() + REST_S
                self.store.loader.rest()
            try:
                self.once()
                self._no_means = False
            except OSError as error:
                if error.errno in NO_MEANS:
                    self._wait_for_means(error)
                    continue
                self.store.failed(StoreError(f"{error.filename or 'a container'}: {error.strerror}"))
                return
            except StoreError:
                return  # the log has failed, and said so
            except Exception:
                log.exception("internal error in the maintenance of the store")
                self.store.hold_publishers(None)  # nobody may come to end their wait

    def _wait_for_means(self, error: OSError) -> None:
        """The process, or the system, has no descriptor or memory left. That is pressure: publishers are blocked, and the pass is made
        again until it can be."""
        if not self._no_means:
            log.error(
                "no file descriptor or memory for the logs in %s (%s): publishers are blocked until there is; raise the limit (ulimit -n)",
                self.store.messages.directory,
                error.strerror,
            )
        self._no_means = True
        self.busy = True
        self.store.logs.set_disk_low(True)

    # --- a pass -----------------------------------------------------------------------------------------------------

    def once(self) -> None:
        """One pass. Raises: OSError when a file operation fails other than for space; StoreError."""
        store = self.store
        messages, transactions = store.messages, store.transaction_records
        for one in self._logs():
            one.seal()
        store.logs.collect_released()
        self.busy = False
        self._look_at_disk()
        self._move_base()
        self._copy_forward()
        if self._excess(transactions, transactions.base // transactions.container_size):
            store.copy_transactions(transactions.base + transactions.container_size)
        self._hurry = not self._is_calm(messages)
        self._see_ending()
        for one in self._logs():
            starved = one.ready_ahead == 0
            if one is messages and starved and not one.low and one.ahead * one.container_size < AHEAD_BYTES_MAX:
                one.set_ahead(one.ahead * 2)
            self._archive(one)
            calm = self._is_calm(one)
            if one is messages and one.tail // one.container_size > self._first:
                wanted = self._limits.log_reserve_bytes
                if not calm and one.container_size * RESERVE_MOST > wanted // 3:
                    self._reserve = max(RESERVE, min(-(-wanted // one.container_size), RESERVE_MOST))
                # One more than the reserve: that it can't be made is how a full disk shows.
                one.set_ahead(max(one.ahead, self._reserve + 1))
            self._bound(one)
            self._make(one, calm)
            one.trim()
            if calm:
                one.give_back_buffers()
        self._hold()
        streams = getattr(store, "streams", None)
        if streams is not None and streams.maintain():
            self.busy = True
        self._watch_space()

    def _logs(self) -> list[Any]:
        """Those that have containers."""
        store = self.store
        index = store.index.log if store.index.begun else None
        return [one for one in (store.messages, store.transaction_records, store.pages, index) if one is not None]

    def _make(self, one: Any, calm: bool) -> None:
        """Makes the containers that the log wants now. One at a time: each takes some syncs, and meanwhile the base falls behind a log that
        fills quickly. A log that fills as quickly as they are made wants more and more: when the disk gets tight by that, publishers
        must be told first, or what they write would take the room that is kept for who ends messages."""
        while one.prepare(calm, 1):
            self.store.writer.kick()
            one.seal()
            self._move_base()
            if not self.store.disk_low and self._is_tight():
                self.busy = True
                return
            self._see_ending()
            one.set_needed(self._needed(one))

    def _see_ending(self) -> None:
        """Whether the first container of a log that is too large comes back soon: its last messages are ending."""
        messages = self.store.messages
        if (
            self._hurry
            and self._stuck is None
            and self._excess(messages, messages.base_durable // messages.container_size, WANTED_AHEAD + 1)
        ):
            first = next(iter(messages.containers()), None)
            if first is not None and self._excess(messages, first[0], self._wanted(first)):
                self.busy = True

    def _hold(self) -> None:
        """Says from where on publishers wait: from when the log fills the last of the files that it may have. Its first one comes back
        soon; would they go on, one more would be made for them. A cause that holds it for longer (a disk that stands still, a publisher's
        own transaction) is nothing to wait for; nor is a bound that came down to the tail, since messages end by the million."""
        messages = self.store.messages
        size = messages.container_size
        lsn: int | None = None
        if self._roomy and self._stuck is None and not self._is_emptying():
            first = messages.base_durable // size
            lsn = (first + max(self._files(messages)) - 1) * size
            now = self.store.clock.monotonic_ns()
            if messages.tail < lsn:
                self._held = None
            elif self._held is None or self._held[0] != first:
                self._held = (first, now)
            if self._held is not None:
                if now - self._held[1] > self._limits.log_hold_ms * 1_000_000:
                    lsn = None
                else:
                    self.busy = True
        self.store.hold_publishers(lsn)

    def _is_emptying(self) -> bool:
        """Whether what lives in the message log became less, lately, by more than half of the bytes written: expiry or consumers fill it
        with the ends of messages, and who publishes a little beside that would wait for all of them."""
        messages = self.store.messages
        now = (self.store.clock.monotonic_ns(), messages.tail, messages.live_bytes)
        if now[0] - self._lately[0] >= self._limits.log_hold_ms * 500_000:
            self._before, self._lately = self._lately, now
        written, ended = now[1] - self._before[1], self._before[2] - now[2]
        return bool(self._before[0] and ended > max(written / 2, messages.container_size))

    def _archive(self, one: Any) -> None:
        """Dead containers are copied to the archive, if there is one. While that fails they stay, and the log says so once."""
        try:
            if one.archive_dead(ARCHIVE_CONTAINERS) == ARCHIVE_CONTAINERS:
                self.busy = True
        except OSError as error:
            if not self._archive_failed:
                log.error(
                    "can't archive containers of %s in %s: %s%s; they are kept",
                    one.directory,
                    one.archive,
                    f"{error.filename}: " if error.filename else "",
                    error.strerror,
                )
            self._archive_failed = True
        else:
            self._archive_failed = False

    def _is_calm(self, one: Any) -> bool:
        """Whether new containers are filled with zeros: cheaper syncs later for twice the writing now, which under load would only
        compete with the messages for the disk."""
        now = self.store.clock.monotonic_ns()
        tail, since = self._tails.get(one.name, (0, now - CALM_NS))
        sequence = one.tail // one.container_size
        if sequence != tail:
            self._tails[one.name] = (sequence, now)
        return bool(now - since >= CALM_NS)

    def _move_base(self) -> None:
        store = self.store
        messages = store.messages
        target = messages.base_target()
        if target > messages.base:
            self._mark_queues(target)
            self.store.write_delivered(target)
            messages.advance_base()
            store.writer.kick()
        messages.retire()
        if store.transaction_records.advance_base():
            store.writer.kick()
        store.transaction_records.retire()
        if store.pages is not None:
            store.pages.advance_base()
            store.pages.retire()
        if store.index.begun and store.index.maintain():
            store.writer.kick()
            self.busy = True
        # The base is told by the next block: a log that nobody writes to must tell it, too. A full one would else never be freed,
        # since its publishers wait for that.
        if messages.base > messages.base_durable and not messages.dirty:
            messages.append(*nothing(messages))
            store.writer.kick()
        if store.transaction_records.base > store.transaction_records.base_durable and not store.transaction_records.dirty:
            store.transaction_records.append(*nothing(store.transaction_records))
            store.writer.kick()
        if messages.base > messages.base_durable or store.transaction_records.base > store.transaction_records.base_durable:
            self.busy = True

    def _mark_queues(self, target: int) -> None:
        """Writes anew the records that tell the highest positions of queues, where the base would pass them."""
        tail = self.store.messages.tail
        tails = [one for one in self.store.tails_below(target) if self._marked.get(one[0], 0) < target]
        self.store.write_marks(tails, tail)
        for queue_id, levels, handle in tails:
            if len(levels) > 1 or handle is None:
                self._marked[queue_id] = tail

    def _most(self, one: Any) -> int:
        """Files that a log may have, ready ones included: size <= 2 x live + 4 containers."""
        return int(SPARE_CONTAINERS + 2 * one.live_bytes // one.container_size)

    def _reserved(self, one: Any) -> int:
        """Containers of the reserve that must stand ready as files."""
        if self._roomy:
            return 0
        return self._reserve if one is self.store.messages and one.tail // one.container_size > self._first else SMALL_RESERVE

    def _files(self, one: Any) -> tuple[int, int]:
        """Files that a log may have by what lives in it, and those that it may have in any case; the reserve is on top."""
        reserve = self._reserved(one)
        return self._most(one) + reserve, max(SPARE_CONTAINERS + reserve, self._least[one.name])

    def _needed(self, one: Any) -> int:
        """Containers in front of the tail's that are made in any case."""
        if self.busy and self._hurry and self._reserved(one) == 0:
            # A container comes back in a moment. Till then the tail's own is enough, unless it is nearly full.
            return int(0 < one.ready_bytes * PATIENT_SHARE < one.container_size)
        return self._reserved(one) + 1

    def _bound(self, one: Any) -> None:
        """Says how many files the log may have now, and how many of them are made in any case; gives back those above that number.

        While much of the disk is free, the reserve is there: the room that it would take. Else it stands ready, on top of the bound.
        """
        one.set_needed(self._needed(one))
        most, least = self._files(one)
        one.set_most(max(most, least))
        one.shed()
        one.set_most(max(most - 1, least))  # one less, lest a container made for live messages goes again with them

    def _excess(self, one: Any, first: int, wanted: int = WANTED_AHEAD) -> bool:
        """Whether a log is too large, if its base were at container `first`: with `wanted` ones ready, more files than it may have."""
        size = one.container_size
        if one is self.store.messages and self.store.disk_low:
            used = one.tail - first * size
            return bool(used - one.live_bytes > max(used * LOW_GARBAGE, 2 * size))
        return bool(one.tail // size - first + 1 + wanted > self._most(one))

    def _wanted(self, container: tuple[int, int, int, int, int]) -> int:
        """Containers for which the room must be, before this one is copied forward: little is copied early, so that it is done long
        before the log waits for its file."""
        _, live, count, _, size = container
        return WANTED_AHEAD + (live <= EARLY_MESSAGES and size / max(count, 1) * live <= self.store.messages.container_size * EARLY_SHARE)

    def _fits(self, container: tuple[int, int, int, int, int], room: float) -> bool:
        """Whether its live messages can be written into what is ready, with `room` containers over for what ends messages. Its own file
        comes back only after that."""
        messages = self.store.messages
        size = messages.container_size
        return bool(messages.ready_bytes >= max(size, container[4]) * container[1] / container[2] + size * room)

    def _copy_forward(self) -> None:
        """While the log is too large, the oldest container's live messages move to the tail.

        A container whose messages can't all be copied stays the oldest one, and is read again only when something in it ended or a
        transaction went on: a message that can't be copied waits for a transaction's outcome, or can't be read.
        """
        messages = self.store.messages
        for _ in range(COPY_CONTAINERS):
            oldest = next((one for one in messages.containers() if one[1]), None)
            if oldest is not None and self._stuck is not None and self._stuck[0] != oldest[0]:
                self._stuck = None
            if oldest is None or oldest[3] != CONTAINER_SEALED or not self._excess(messages, oldest[0], self._wanted(oldest)):
                return
            if messages.ready_ahead == 0 and not self._fits(oldest, LATE_LEFT):
                return  # copies would only gather in memory
            sequence, live = oldest[0], oldest[1]
            if self.store.disk_low and not self._fits(oldest, LOW_LEFT):
                return
            transactions = self.store.transaction_records.tail
            if self._stuck == (sequence, live, transactions):
                return
            copied, written = copy_container(self.store.logs, sequence)
            self.scans += 1
            self.copied_messages += copied
            self.copied_bytes += written
            if copied:
                self.store.writer.kick()
                self.busy = True
            if self.store.disk_low:
                return  # one at a time: its file comes back before the next one needs room
            live_left = next((one[1] for one in messages.containers() if one[0] == sequence), 0)
            if live_left:
                self._stuck = (sequence, live_left, transactions)
                return

    def _is_tight(self) -> bool:
        """Whether less is free than publishers may need, see store.log.space."""
        messages = self.store.messages
        free = messages.free_bytes()
        return free is not None and free < (messages.reserves.resume if self.store.disk_low else messages.reserves.roomy)

    def _is_roomy(self) -> bool:
        """Whether so much of the disk is free that the reserve need not stand ready in files."""
        messages = self.store.messages
        free = messages.free_bytes()
        return (
            free is not None
            and not self.store.disk_low
            and not messages.low
            and free >= messages.reserves.resume + self._limits.log_roomy_bytes
        )

    def _look_at_disk(self) -> None:
        tight = self._is_tight()
        self._roomy = self._is_roomy()
        for one in self._logs():
            one.set_tight(tight)

    def _watch_space(self) -> None:
        store = self.store
        messages = store.messages
        low = self._is_tight() or (bool(messages.low) and messages.ready_ahead <= self._reserve)
        for other in (store.transaction_records, store.pages):
            low = low or (other is not None and bool(other.low) and other.ready_ahead == 0)
        streams = getattr(store, "streams", None)
        low = low or (streams is not None and streams.low)
        if store.disk_low != low:
            store.logs.set_disk_low(low)
            if low:
                messages.set_ahead(self._reserve + 1)  # more is not waited for before publishers go on
                log.warning(
                    "no space for more log containers in %s: publishers are blocked until messages are consumed or space is freed",
                    messages.directory,
                )
            else:
                log.warning("there is space for log containers again: publishers go on")
