"""Workloads of the store on the simulated disk, and the check of what a crash leaves of them.

in: a seed. out: a recording (campaign.Recording): the disk with its journal, the oracle of what was asked for and told, and `check`.
A recording has one to three lives of the store; between them power fails, or only the process dies. Images are of the last one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from flintmq.errors import StoreError
from flintmq.ports import DequeueReason
from tests.support.stored import StoredContent
from tests.twins.disk_images import DiskState, Image
from tests.twins.sim_disk import SimDisk
from tools.crash.campaign import Violation
from tools.crash.model import Live, Operation, Oracle, State, Transaction

DIRECTORY = "/store"
STORE_UUID = bytes(range(16))
FIRST_QUEUES = (1, 2, 3, 4)
QUEUES_MIN = 2
CONTAINER_SIZES = (4096, 8192, 4096, 16384)
STEPS = (40, 80, 160, 240)
REASONS = list(DequeueReason)
# of an image whose recovery is crashed, too: steps of the recovery, images at each
NESTED_STEPS = 8
NESTED_IMAGES = 3
# Kinds of workloads: operations as often as they stand here, and the share of acks that take the oldest entry (the others any).
_MIXED = (
    *["publish"] * 10,
    *["ack"] * 7,
    *["fan"] * 3,
    *["begin", "tx work", "tx work", "tx work", "end", "end"],
    *["flush"] * 6,
    *["maintain"] * 3,
    *["declare", "drop"],
)
_CHURN = (*["publish"] * 10, *["fan"] * 2, *["ack"] * 8, "tx work", "end", *["flush"] * 8, *["maintain"] * 6)
_TRANSACTIONS = (*["publish"] * 3, *["ack"] * 3, *["begin"] * 3, *["tx work"] * 8, *["end"] * 8, *["flush"] * 8, *["maintain"] * 4)
_SMALL = (
    *["publish"] * 3,
    *["fan"] * 2,
    *["ack"] * 3,
    *["small"] * 8,
    "tx work",
    "end",
    *["flush"] * 6,
    *["maintain"] * 4,
    "declare",
    "drop",
)
KINDS = {"mixed": (_MIXED, 0.6), "churn": (_CHURN, 0.95), "transactions": (_TRANSACTIONS, 0.8)}
SMALL = {"small": (_SMALL, 0.8)}
# every so many-th seed has small transactions; the others keep the workloads that seeds of tests name
SMALL_EVERY = 7
# two of so many seeds write checkpoints, one in so many steps
CHECKPOINTS_EVERY = 3
CHECKPOINT_STEPS = 9
# what goes on between the steps of a checkpoint
MEANWHILE = ("publish", "publish", "fan", "ack", "ack", "tx work", "end", "maintain", "flush")


def open_store(disk: SimDisk, container_size: int, queues: set[int], high_water: int, directory: str = DIRECTORY, **options: Any) -> Any:
    """The store under test, without background threads. queues, high_water: what the definitions say; options: see StoreOptions."""
    from tests.drivers.store_driver import DrivenStore

    disk.make_dir(directory)
    return DrivenStore.open(
        disk,
        directory,
        container_size=container_size,
        initial_containers=2,
        store_uuid=STORE_UUID,
        known_queues=set(queues),
        queue_high_water=high_water,
        threads=False,
        **options,
    )


def driver_of(store: Any) -> Any:
    """The message path's calls on a LogStore; None for a store that has none."""
    if type(store).__name__ != "DrivenStore":
        return None
    from tests.drivers.log_driver import LogDriver

    return LogDriver(store)


def content_of(number: int, size: int, shape: int | None = None) -> StoredContent:
    """A content that differs from every other number's in all parts; with a shape, in its body alone from the others of that shape."""
    tag = b"%d." % number
    body = (tag * (size // len(tag) + 1))[:size]
    name = tag if shape is None else b"shape %d." % shape
    return StoredContent(b"x" + name, b"key." + name, b"header " + name, body)


def read_state(store: Any, queues: Iterable[int]) -> tuple[State, dict[int, tuple[int, int, int, bool]]]:
    """What the recovery of a store that was just opened found, in the oracle's form, and by message (one of its places: queue, position,
    expiry, held). Raises Violation for a wrong order."""
    found: set[tuple[object, ...]] = set()
    by_message: dict[int, tuple[int, int, int, bool]] = {}
    driver = driver_of(store)
    for queue in queues:
        last = 0
        if driver is not None:
            entries = driver.recovered(queue)
        else:
            entries = [
                (entry.position, entry.message_id, entry.expires_at_ms, entry.in_doubt_tx != 0, True) for entry in store.entries(queue)
            ]
        for position, message, expires, held, _ in entries:
            if position <= last:
                raise Violation(f"queue {queue}: position {position} after {last}")
            last = position
            found.add((queue, position, message, expires, held))
            by_message[message] = (queue, position, expires, held)
    xids = list(store.in_doubt())
    if len(set(xids)) != len(xids):
        raise Violation(f"an in-doubt transaction is there twice: {xids}")
    found.update(("in doubt", bytes(xid)) for xid in xids)
    return frozenset(found), by_message


def check_contents(store: Any, messages: Iterable[int], contents: dict[int, StoredContent]) -> None:
    """Raises Violation when a message is a stranger, or its bytes differ."""
    for message in messages:
        if message not in contents:
            raise Violation(f"message {message} was never written")
        found = store.content(message)
        if found != contents[message]:
            raise Violation(f"message {message} has other bytes: {str(found)[:120]} instead of {str(contents[message])[:120]}")


def check_unharmed(store: Any) -> None:
    """Power loss damages nothing that was durable: a recovery that speaks of damage, or of something lost, is wrong."""
    report = getattr(store, "report", None)
    if report is not None and (report.damage or report.lost_count or report.malformed):
        raise Violation(f"recovery says: damage {[str(one) for one in report.damage][:2]}, lost {[str(one) for one in report.lost][:2]}")


def core_of(store: Any, queue: int) -> Any:
    """A queue that logs in this store."""
    from flintmq.queue.control import QueueHandle

    core: Any = QueueHandle(queue, 0, 1)
    core.set_durable(True)
    core.attach_log(store)
    return core


def check_same_log(opener: Callable[[SimDisk], Any], disk: SimDisk, queues: Iterable[int]) -> None:
    """A start from a checkpoint counts what lives in each container as one that reads the whole log does."""
    living = []
    for whole in (False, True):
        again = disk.restart()
        if whole:
            for name in again.list_dir(f"{DIRECTORY}/index"):
                again.unlink(f"{DIRECTORY}/index/{name}")
        store = opener(again)
        if driver_of(store) is None:
            return
        for queue in queues:
            store.restore(core_of(store, queue))
        store.restored()
        while store.pager.figures["burials"]:
            store.pager.once()
        living.append([(number, live) for number, live, *_ in store.messages.containers() if live])
    if living[0] != living[1]:
        raise Violation(f"from the checkpoint so many live in containers: {living[0]}, from the whole log {living[1]}")


def ack(store: Any, queue: int, position: int, message: int, reason: DequeueReason = DequeueReason.ACK) -> int:
    """Ends an entry; returns what to wait for."""
    driver = driver_of(store)
    if driver is not None:
        return driver.ack(queue, position, message, int(reason))  # type: ignore[no-any-return]
    return store.dequeue(queue, position, reason)  # type: ignore[no-any-return]


Opener = Callable[[SimDisk, int, set[int], int], Any]


# a pass writes a container at most, and what a recovery and a step of this write takes up to a dozen of the smallest
PASSES = 24


class StoreSubject:
    """The store; `steps` operations in each life (0: some number, by seed). opener: opens a store on a disk (tests use another one)."""

    def __init__(self, steps: int = 0, opener: Opener = open_store) -> None:
        self.steps = steps
        self.opener = opener

    def record(self, seed: int) -> StoreRecording:
        return StoreRecording(seed, self.steps, self.opener)


class StoreRecording:
    """See module."""

    def __init__(self, seed: int, steps: int, opener: Opener) -> None:
        rng = random.Random(seed)
        self.prepare(seed, opener)
        live = self.empty()
        steps = steps or rng.choice(STEPS)
        lives = rng.choice((1, 1, 2, 2, 3))
        for number in range(lives):
            life = Life(self, rng, live, number)
            life.run(steps)
            if number + 1 < lives:
                live = self._crash(rng, life)
        self.life = life

    @staticmethod
    def empty() -> Live:
        return Live()

    def prepare(self, seed: int, opener: Opener) -> None:
        """An empty disk and nothing written."""
        self.seed = seed
        self.opener = opener
        self.written = 0  # contents so far
        self.nested = 0  # images whose recovery was crashed, too
        self.container_size = CONTAINER_SIZES[seed % len(CONTAINER_SIZES)]
        self.kind = list(KINDS)[seed // len(CONTAINER_SIZES) % len(KINDS)] if seed % SMALL_EVERY != SMALL_EVERY - 2 else "small"
        self.disk = SimDisk()
        self.contents: dict[int, StoredContent] = {}
        # What SQL knows of queues, (journal position, queues, highest id): a change there is durable before the log hears of it.
        self.definitions: list[tuple[int, frozenset[int], int]] = [(0, frozenset(FIRST_QUEUES), max(FIRST_QUEUES))]
        self.before: dict[State, tuple[int, int]] = {}  # what the last life's recovery may show until it has finished, and after it not

    def defined(self, position: int) -> tuple[frozenset[int], int]:
        """Queues and highest queue id in SQL when `position` operations were in the journal."""
        return next((queues, high) for at, queues, high in reversed(self.definitions) if at <= position)

    def open(self, disk: SimDisk, position: int) -> Any:
        queues, high_water = self.defined(position)
        return self.opener(disk, self.container_size, set(queues), high_water)

    def acceptable(self, life: Life, position: int) -> dict[State, tuple[int, int]]:
        """What a restart may show: entries of queues that SQL does not know have ended."""
        queues, _ = self.defined(position)
        found = {
            frozenset(item for item in state if len(item) == 2 or item[0] in queues): prefix
            for state, prefix in life.oracle.acceptable(position).items()
        }
        return {**self.before, **found} if position < life.opened else found

    def _crash(self, rng: random.Random, life: Life) -> Live:
        """Ends a life somewhere in its second half. Returns what the next one starts from."""
        position = rng.randrange(self.disk.position // 2, self.disk.position + 1)
        died = rng.random() < 0.4
        if died and rng.random() < 0.6:  # where something is written and not synced
            writes = [index + 1 for index, operation in enumerate(self.disk.journal) if operation[0] == "write" and operation[2]]
            position = rng.choice(writes[len(writes) // 2 :]) if writes else position
        if died:
            state = self.disk.state(position)  # only the process died: what was un-synced is shown, and still un-synced
        else:
            state = DiskState.from_image(rng.choice(list(self.disk.images(position, 40, self.seed))))
        self.disk = SimDisk(state)
        # what recovery shows of this state is what the next life has: found out on a copy, so that the journal begins with recovery
        store = self.open(SimDisk(state.clone()), position)
        queues, high_water = self.defined(position)
        check_unharmed(store)
        shown, _ = read_state(store, range(1, high_water + 1))
        accepted = self.acceptable(life, position)
        if shown not in accepted:
            raise Violation(f"life {life.number}, {position}: {life.oracle.closest(shown, position)}")
        live = life.oracle.fold(*accepted[shown])
        self.before = accepted if died else {}
        live.entries = {place: entry for place, entry in live.entries.items() if place[0] in queues}
        undecided = live.in_doubt()
        live.transactions = {
            tx: Transaction(record.xid, True, "", list(record.enqueues), list(record.dequeues)) for tx, record in undecided.items()
        }
        self.definitions = [(0, queues, high_water)]
        return live

    def check(self, image: Image, nested: bool) -> int:
        """Recovers the image. nested: then crashes the recovery at every step of it, too, decides what is in doubt, and writes on."""
        disk = SimDisk.from_image(image)
        images = 1
        shown = self._recover(disk, image.position)
        if nested:
            check_same_log(lambda one: self.open(one, image.position), disk, self.defined(image.position)[0])
            # two recoveries, with the end of the process between them
            again = self._recover(disk.restart(), image.position)
            if again != shown:
                raise Violation(f"recovered twice, and it differs: {_difference(shown, again)}")
            # every step of the recovery for the first image that is looked at so closely, a choice of them for the others
            steps = list(range(disk.position + 1))
            if self.nested:
                steps = sorted(random.Random(image.choice).sample(steps, min(NESTED_STEPS, len(steps))))
            self.nested += 1
            for position in steps:
                for second in disk.images(position, NESTED_IMAGES, self.seed):
                    images += 1
                    found = self._recover(SimDisk.from_image(second), image.position)
                    if found != shown:
                        raise Violation(f"a second crash, at {position} ({second.choice}) of the recovery: {_difference(shown, found)}")
            self._go_on(SimDisk.from_image(image), image.position, shown)
        return images

    def _recover(self, disk: SimDisk, position: int) -> State:
        store = self.open(disk, position)
        shown, entries = read_state(store, range(1, self.defined(position)[1] + 1))
        if shown not in self.acceptable(self.life, position):
            raise Violation(self.life.oracle.closest(shown, position))
        check_contents(store, entries, self.contents)
        check_unharmed(store)
        return shown

    def _go_on(self, disk: SimDisk, position: int, shown: State) -> None:
        """A recovered store takes decisions and messages, and the next recovery has them."""
        store = self.open(disk, position)
        queues = sorted(self.defined(position)[0])
        _, entries = read_state(store, queues)
        expected = set(shown)
        if shown in self.life.oracle.acceptable(position):
            self._decide(store, self.life.oracle.fold(*self.life.oracle.acceptable(position)[shown]), expected)
            # A queue may be gone that a transaction in doubt speaks of: its commit, which was asked for before, was not durable.
            expected = {item for item in expected if len(item) == 2 or item[0] in queues}
        new = store.append_content(content_of(-1, 3000))
        store.enqueue(queues[0], 1 << 40, new)
        expected.add((queues[0], 1 << 40, new, 0, False))
        for message, entry in list(entries.items())[:2]:
            if (entry[0], entry[1], message, entry[2], entry[3]) in expected and not entry[3]:
                ack(store, entry[0], entry[1], message)
                expected.discard((entry[0], entry[1], message, entry[2], False))
        told: list[bool] = []
        last = store.enqueue(queues[1], 1 << 40, new)
        expected.add((queues[1], 1 << 40, new, 0, False))
        store.on_durable(last, lambda: told.append(True))
        for _ in range(PASSES):
            store.flush()
            store.maintain()
        if not told:
            raise Violation("after the recovery nothing becomes durable")
        image = next(iter(disk.images(limit=2)))
        for candidate in disk.images(limit=2):
            image = candidate  # the last one: nothing that is un-synced
        after = self.open(SimDisk.from_image(image), position)
        found, messages = read_state(after, queues)
        if found != frozenset(expected):
            raise Violation(f"what was written after the recovery: {_difference(frozenset(expected), found)}")
        check_contents(after, messages, {**self.contents, new: content_of(-1, 3000)})

    @staticmethod
    def _decide(store: Any, live: Live, expected: set[tuple[object, ...]]) -> None:
        """Commits what is in doubt."""
        for number, (tx, record) in enumerate(sorted(live.in_doubt().items())):
            following = {queue: (2 << 40) + number * 1000 for queue, _, _, _ in record.enqueues}
            store.commit(tx, dict(following))
            expected.discard(("in doubt", record.xid))
            for item in [item for item in expected if len(item) == 5 and item[:2] in record.dequeues]:
                expected.discard(item)
            for queue, message, expires, given in record.enqueues:
                expected.add((queue, given or following[queue], message, expires, False))
                following[queue] += not given


def _difference(left: State, right: State) -> str:
    return f"missing {sorted(map(str, left - right))[:6]}, new {sorted(map(str, right - left))[:6]}"


class Life:
    """One life of the store: random operations, each told to the oracle."""

    def __init__(self, recording: StoreRecording, rng: random.Random, base: Live, number: int) -> None:
        self.recording = recording
        self.rng = rng
        self.disk = recording.disk
        self.store = recording.open(self.disk, 0)
        self.driver = driver_of(self.store)
        self.oracle = Oracle(base)
        self.number = number
        self.live = base.copy()  # with everything asked for so far
        queues, self.high_water = recording.defined(0)
        self.queues = sorted(queues)
        self.next_position = {
            queue: 1 + max([position for owner, position in base.entries if owner == queue], default=0) for queue in queues
        }
        self.open: dict[int, dict[str, Any]] = {}  # transactions that have not ended
        self.taken: set[tuple[int, int]] = {place for record in base.in_doubt().values() for place in record.dequeues}
        self.unready: set[tuple[int, int]] = set()  # entries of commits that were not told yet
        for tx, record in base.in_doubt().items():
            counts: dict[int, int] = {}
            for queue, _, _, _ in record.enqueues:
                counts[queue] = counts.get(queue, 0) + 1
            self.open[tx] = {"xid": record.xid, "prepared": True, "local": False, "queues": counts}
        self.kinds, self.oldest = {**KINDS, **SMALL}[recording.kind]
        self.checkpoints = random.Random(recording.seed * 8 + number) if recording.seed % CHECKPOINTS_EVERY else None
        self.acked: list[tuple[tuple[int, int], tuple[int, int]]] = []  # the last ones
        self.pinned = 0  # an entry of this message is never taken when it can be helped
        self.xids = 0
        self.opened = self.disk.position

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.rng.choice(self.kinds))
            if self.checkpoints is not None and self.driver is not None and self.checkpoints.randrange(CHECKPOINT_STEPS) == 0:
                self.checkpoint()
        self.store.flush()
        if self.rng.random() < 0.5:
            self.store.close(clean=True)

    def step(self, kind: str) -> None:
        """One random operation of that kind."""
        rng = self.rng
        if kind == "publish":
            self.publish([rng.choice(self.queues)])
        elif kind == "fan":
            self.publish(rng.sample(self.queues, rng.randint(2, min(4, len(self.queues)))))
        elif kind == "ack":
            for _ in range(rng.randint(1, 4)):
                self.ack()
        elif kind == "begin":
            self.begin()
        elif kind == "tx work":
            self.tx_work()
        elif kind == "end":
            self.end()
        elif kind == "small":
            self.small()
        elif kind == "flush":
            self.store.flush()
        elif kind == "maintain":
            self.store.maintain()
        elif kind == "declare" and len(self.queues) < 6:
            self.high_water += 1
            self.queues.append(self.high_water)
            self.next_position[self.high_water] = 1
            self.define()
        elif kind == "drop":
            self.drop()

    def checkpoint(self) -> None:
        """Writes a checkpoint while operations go on. Its queues are made of what was asked for when it begins, and the first publishes
        behind that: acks since are known to the log alone."""
        if self.store.recovering:
            for queue in self.queues:
                self.store.restore(core_of(self.store, queue))
            self.store.restored()
        cores = {queue: core_of(self.store, queue) for queue in self.queues}
        for core in cores.values():
            self.store.attach(core)
        # The log knows an ack before the queue does.
        self._show(cores, {**dict(self.acked), **self.live.entries})
        begun = False

        def between() -> None:
            nonlocal begun
            known = set(self.live.entries)
            for _ in range(self.checkpoints.randrange(3) if self.checkpoints else 0):
                self.step(self.checkpoints.choice(MEANWHILE) if self.checkpoints else "flush")
            if not begun:
                begun = True
                self.store.queues.clear()
                self._show(cores, {place: entry for place, entry in self.live.entries.items() if place not in known})

        self.store.checkpoints.settle()
        self.store.checkpoints.write(between)
        self.store.queues.clear()

    def _show(self, cores: dict[int, Any], entries: dict[tuple[int, int], tuple[int, int]]) -> None:
        """The entries are in the queues as a broker has them: those of commits that were not told yet are held."""
        for (queue, position), (message, expires) in sorted(entries.items()):
            # A commit's entries have lower positions than what came meanwhile: in a broker they have had them from their birth.
            if queue in cores and position > cores[queue].tail():
                body = self.recording.contents[message].body
                cores[queue].restore(position, message, len(body), False, expires, (queue, position) in self.unready)

    def tell(self, operation: Operation, lsn: int, *places: tuple[int, int]) -> None:
        self.unready.update(places)

        def told() -> None:
            self.oracle.told(operation, self.disk.position)
            self.unready.difference_update(places)

        self.store.on_durable(lsn, told)

    def size(self) -> int:
        draw = self.rng.random()
        if draw < 0.75:
            return self.rng.randrange(400)
        if draw < 0.95:
            return self.rng.randrange(400, 3000)
        return self.rng.randrange(3000, 20_000)

    def content(self, shape: int | None = None) -> StoredContent:
        self.recording.written += 1
        return content_of(self.recording.written, self.size(), shape)

    def write(self) -> int:
        content = self.content()
        message: int = self.store.append_content(content)
        self.recording.contents[message] = content  # an id that was never durable may be given out again after a crash
        return message

    def position(self, queue: int) -> int:
        self.next_position[queue] += 1
        return self.next_position[queue] - 1

    def publish(self, queues: list[int]) -> None:
        places = [(queue, self.position(queue), 1 << 50 if self.rng.random() < 0.1 else 0) for queue in queues]
        if self.driver is not None and self.rng.random() < 0.7:  # as the queue core does it
            number = self.recording.written
            content = self.content(number % 2 if number % 5 else None)
            issued = self.disk.position
            message, tickets = self.driver.publish(places, content.exchange, content.routing_key, content.header, content.body)
            self.recording.contents[message] = content
            for (queue, position, expires), ticket in zip(places, tickets, strict=True):
                self.tell(self.add(Operation("enqueue", issued, queue, position, message, expires)), ticket)
            return
        message = self.write()
        for queue, position, expires in places:
            operation = Operation("enqueue", self.disk.position, queue, position, message, expires)
            self.tell(self.add(operation), self.store.enqueue(queue, position, message, expires_at_ms=expires))

    def add(self, operation: Operation) -> Operation:
        self.live.apply(operation)
        return self.oracle.add(operation)

    def free(self) -> list[tuple[int, int]]:
        return sorted(place for place in self.live.entries if place not in self.taken and place not in self.unready)

    def ack(self) -> None:
        free = self.free()
        if not free:
            return
        # mostly the oldest, so that containers die; sometimes any, so that one old message stays
        if self.recording.kind != "mixed" and len(free) > 1:
            free.sort(key=lambda place: self.live.entries[place][0])
            self.pinned = self.pinned or self.live.entries[free[0]][0]
            free = [place for place in free if self.live.entries[place][0] != self.pinned] or free
        place = free[0] if self.rng.random() < self.oldest else self.rng.choice(free)
        message = self.live.entries[place][0]
        self.acked = [*self.acked[-2:], (place, self.live.entries[place])]
        operation = Operation("dequeue", self.disk.position, *place)
        self.add(operation)
        if self.driver is not None and self.rng.random() < 0.6:
            self.tell(operation, self.driver.ack(*place, message, self.rng.choice(REASONS)))
            return
        more = {"message_id": message} if self.driver is not None else {}
        self.tell(
            operation, self.store.dequeue(*place, self.rng.choice(REASONS), delivery_count=self.rng.randrange(3), consumer="c", **more)
        )

    def begin(self) -> None:
        xid = None
        local = self.driver is not None and self.rng.random() < 0.4
        if not local and self.rng.random() < 0.7:
            self.xids += 1
            xid = b"xid %d %d" % (self.number, self.xids)
        tx = self.driver.tx_begin() if local else self.store.begin(xid)
        self.open[tx] = {"xid": xid, "prepared": False, "local": local, "queues": {}}

    def tx_work(self) -> None:
        ready = [tx for tx, facts in self.open.items() if not facts["prepared"]]
        if not ready:
            return self.begin()
        tx = self.rng.choice(ready)
        facts = self.open[tx]
        xid = facts["xid"] or b""
        free = self.free()
        if free and self.rng.random() < 0.4:
            place = self.rng.choice(free)
            message = self.live.entries[place][0]
            self.taken.add(place)
            self.add(Operation("tx dequeue", self.disk.position, *place, tx=tx, xid=xid))
            if facts["local"]:
                self.driver.tx_ack(tx, *place, message)
            else:
                more = {"message_id": message} if self.driver is not None else {}
                self.store.dequeue(*place, DequeueReason.ACK, tx=tx, **more)
            return None
        queues = self.rng.sample(self.queues, self.rng.randint(1, min(3, len(self.queues))))
        if facts["local"]:
            content = self.content()
            issued = self.disk.position
            places = [(queue, self.position(queue), 0) for queue in queues]
            message = self.driver.tx_publish(tx, places, content.exchange, content.routing_key, content.header, content.body)
            self.recording.contents[message] = content
            for queue, position, _ in places:
                self.add(Operation("tx enqueue", issued, queue, position, message, tx=tx))
                facts["queues"].setdefault(queue, 0)
            return None
        listed = self.driver is None and bool(free)  # a LogStore lists only what stands on several queues
        message = self.live.entries[self.rng.choice(free)][0] if listed and self.rng.random() < 0.2 else self.write()
        for queue in queues:
            self.add(Operation("tx enqueue", self.disk.position, queue, 0, message, tx=tx, xid=xid))
            self.store.enqueue(queue, 0, message, tx=tx)
            facts["queues"][queue] = facts["queues"].get(queue, 0) + 1
        return None

    def small(self) -> None:
        """A transaction of a channel, as it is committed: from begin to end in one step."""
        if self.driver is None:
            return
        issued = self.disk.position
        free = self.free()
        endings = self.rng.sample(free, min(len(free), self.rng.randrange(3)))
        contents = [self.content() for _ in range(self.rng.randint(0 if endings else 1, 4))]
        queues = [self.rng.choice(self.queues) for _ in contents]
        places = [(queue, self.position(queue), 1 << 50 if self.rng.random() < 0.1 else 0) for queue in queues]
        messages, ticket, tx = self.driver.tx_small(
            [
                (*place, content.exchange, content.routing_key, content.header, content.body)
                for place, content in zip(places, contents, strict=True)
            ],
            [(*place, self.live.entries[place][0]) for place in endings],
        )
        self.recording.contents.update(zip(messages, contents, strict=True))
        kind = "tx " if tx else ""
        parts = [
            Operation(kind + "enqueue", issued, queue, position, message, expires, tx)
            for (queue, position, expires), message in zip(places, messages, strict=True)
        ]
        parts += [Operation(kind + "dequeue", issued, *place, tx=tx) for place in endings]
        if tx:
            for part in parts:
                self.add(part)
            self.store.on_durable(ticket, lambda: self.driver.tx_applied(tx))
            operation = Operation("commit", issued, tx=tx)
        else:
            operation = Operation("block", issued, parts=parts)
        self.tell(self.add(operation), ticket, *[(queue, position) for queue, position, _ in places])

    def end(self) -> None:
        if not self.open:
            return
        tx = self.rng.choice(list(self.open))
        facts = self.open[tx]
        xid = facts["xid"] or b""
        if facts["xid"] and not facts["prepared"] and self.rng.random() < 0.7:
            issued = self.disk.position
            try:
                lsn = self.store.prepare(tx)
            except StoreError as error:  # no room for its outcome: the transaction is still open
                if "room" not in str(error):
                    raise
                return
            facts["prepared"] = True
            self.tell(self.add(Operation("prepare", issued, tx=tx, xid=xid)), lsn)
            return
        del self.open[tx]
        record = self.live.transactions.get(tx, Transaction())
        if self.rng.random() < 0.3:
            operation = self.add(Operation("rollback", self.disk.position, tx=tx, xid=xid))
            self.taken.difference_update(record.dequeues)
            if facts["local"]:
                self.driver.tx_abandon(tx)  # nobody waits for it
            else:
                self.tell(operation, self.store.rollback(tx), *record.dequeues)  # they are free once it is durable
            return
        first: dict[int, int] = {}
        places = []
        if facts["local"]:
            places = [(queue, position) for queue, _, _, position in record.enqueues]
            operation = self.add(Operation("commit", self.disk.position, tx=tx))
            ticket = self.driver.tx_commit(tx)
            self.store.on_durable(ticket, lambda: self.driver.tx_applied(tx))
            self.tell(operation, ticket, *places)
            return
        for queue, count in facts["queues"].items():
            first[queue] = self.next_position[queue]
            places += [(queue, self.next_position[queue] + index) for index in range(count)]
            self.next_position[queue] += count
        operation = self.add(Operation("commit", self.disk.position, tx=tx, xid=xid, first_positions=first))
        self.tell(operation, self.store.commit(tx, first), *places)

    def define(self) -> None:
        """SQL knows the queues as they are now."""
        self.recording.definitions.append((self.disk.position, frozenset(self.queues), self.high_water))

    def drop(self) -> None:
        """Deletes a queue that no open transaction speaks of: in SQL first, then in the log, sometimes not yet (the process dies)."""
        busy = {queue for facts in self.open.values() for queue in facts["queues"]} | {queue for queue, _ in self.taken | self.unready}
        free = [queue for queue in self.queues if queue not in busy]
        if not free or len(self.queues) <= QUEUES_MIN:
            return
        queue = self.rng.choice(free)
        self.queues.remove(queue)
        self.define()
        if self.rng.random() < 0.3:
            self.store.flush()
        entries = sorted((position, entry[0]) for (owner, position), entry in self.live.entries.items() if owner == queue)
        operation = self.add(Operation("drop", self.disk.position, queue))
        self.tell(operation, self.store.drop_queue(queue))
        if self.checkpoints is not None and self.driver is not None:
            self.driver.end_queue(queue, entries)
