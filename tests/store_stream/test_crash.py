"""Power is lost at every point of a stream's life: nothing visible is lost or changed, offsets stay dense, nothing is damaged.

Images come from tests/twins/sim_disk.py: every subset and damaged version of un-synced sectors and names, within a budget.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.drivers.stream_reader import StreamReader
from tests.store_stream.rig import MESSAGES, STORE, Rig
from tests.twins.sim_disk import SimDisk


class Life:
    """A rig whose history is noted: (journal position, visible, first) after each step."""

    def __init__(self, size: int, disk: Any = None) -> None:
        self.rig = Rig(size, disk)
        self.history = [(0, 0, 0)]
        self.note()

    def note(self) -> None:
        stream = self.rig.stream
        self.history.append((self.rig.disk.position, stream.visible, stream.first))

    def promised(self, position: int) -> int:
        """What was visible for sure when the disk had done so many operations."""
        return max(visible for at, visible, _ in self.history if at <= position)

    def first_most(self, position: int) -> int:
        """The highest first offset that there can have been then."""
        return min((first for at, _, first in self.history if at >= position), default=self.history[-1][2])

    def flush(self) -> None:
        for _ in range(100):
            what = self.rig.writer.flush()
            self.note()
            if what != 1 and not self.rig.stream.prepare():
                return

    def do(self, step: str, rng: random.Random) -> None:
        rig = self.rig
        if step == "small":
            for _ in range(rng.randint(1, 5)):
                rig.append(rng.randbytes(rng.randint(0, 300)))
            self.flush()
        elif step == "unsynced":
            for _ in range(rng.randint(1, 3)):
                rig.append(rng.randbytes(rng.randint(0, 900)))
        elif step == "large":
            rig.append(rng.randbytes(rng.randint(3000, 9000)))
            self.flush()
        elif step == "huge":
            rig.append(rng.randbytes(rng.randint(9000, 30000)))
            self.flush()
        elif step == "idle":
            self.flush()
            rig.clock.advance(ms=1_100)
            rig.stream.maintain()
            rig.clock.advance(ms=1_100)
            rig.stream.maintain()
            self.flush()
        elif step == "cold":
            rig.clock.advance(ms=20_000)
            rig.stream.maintain()
            self.flush()
        elif step == "retain":
            rig.stream.retain(2 * rig.size, 0)
        elif step in ("kill", "stop"):
            if step == "stop":
                self.flush()
            rig.reopen(clean=step == "stop")
            for offset in [offset for offset in rig.sent if offset >= rig.stream.visible]:
                del rig.sent[offset]  # never visible: another message may get the offset
        self.note()


def on_image(image: Any, size: int) -> Rig:
    """The stream that a start finds on that disk."""
    disk = SimDisk.from_image(image)
    disk.make_dir(STORE)
    return Rig(size, disk)


def check(life: Life, image: Any, sent: dict[int, bytes], rng: random.Random, again: bool) -> None:
    """The image opens, shows what was promised, and goes on; with `again`, so does what the next crash leaves."""
    rig = on_image(image, life.rig.size)
    promised = life.promised(image.position)
    what = f"position {image.position}, choice {image.choice}"
    assert rig.stream.damage == [] and not rig.stream.broken, what
    assert rig.stream.visible >= promised, what
    assert rig.stream.first <= life.first_most(image.position), what
    found = rig.read_all()
    assert sorted(found) == list(range(rig.stream.first, rig.stream.visible)), what
    for offset, body in found.items():
        assert sent[offset] == body, what
    at = rig.append(b"new")
    assert at == rig.stream.visible, what
    rig.append(rng.randbytes(5000))
    rig.pump()
    rig.stream.maintain()
    assert rig.read_all() == {**found, at: b"new", at + 1: rig.sent[at + 1]}, what
    if not again:
        rig.close(clean=False)
        return
    disk = rig.disk
    for position in range(0, disk.position + 1, 3):
        for second in disk.images(position, 3, position):
            other = on_image(second, rig.size)
            assert other.stream.damage == [], what
            seen = other.read_all()
            for offset, body in found.items():
                assert seen[offset] == body, f"{what}, then position {position}, choice {second.choice}"
            other.close(clean=False)
    rig.close(clean=False)


WORKLOADS = {
    "small": ["small", "small", "unsynced", "small", "idle", "small", "kill", "small", "stop", "small", "cold", "small"],
    "long": ["large", "small", "huge", "small", "kill", "huge", "idle", "stop", "large", "small"],
    "kept short": [
        "large",
        "large",
        "large",
        "huge",
        "idle",
        "retain",
        "small",
        "large",
        "idle",
        "retain",
        "kill",
        "large",
        "retain",
        "small",
    ],
    "restarts": ["small", "idle", "kill", "kill", "small", "stop", "stop", "unsynced", "kill", "small", "idle", "stop", "idle", "small"],
}


def run(steps: list[str], rng: random.Random, limit: int, every: int = 1) -> int:
    """Lives through the steps, then checks images of every point of it. Returns how many."""
    life = Life(8192)
    kept: list[tuple[int, dict[int, bytes]]] = []
    for step in steps:
        life.do(step, rng)
        kept.append((life.rig.disk.position, dict(life.rig.sent)))
    images = 0
    for position in range(0, life.rig.disk.position + 1, every):
        sent = next((sent for at, sent in kept if at >= position), kept[-1][1])
        for image in life.rig.disk.images(position, limit, position):
            images += 1
            check(life, image, sent, rng, again=images % 97 == 0)
    life.rig.close(clean=False)
    return images


@pytest.mark.parametrize("name", WORKLOADS)
def test_power_loss_anywhere(name: str) -> None:
    """After power loss at any point everything visible is there, as it was, at its offset; the stream goes on behind it."""
    assert run(WORKLOADS[name], random.Random(name), 24) > 100


STEPS = ("small", "small", "unsynced", "large", "huge", "idle", "cold", "retain", "kill", "stop")


@pytest.mark.parametrize("seed", range(12))
def test_power_loss_in_any_life(seed: int) -> None:
    """The same for lives made up of any steps."""
    rng = random.Random(seed)
    assert run([rng.choice(STEPS) for _ in range(16)], rng, 6) > 20


def test_offset_of_an_unfinished_message_is_given_again() -> None:
    """A long message that was only half written leaves no trace: the next one gets its offset, and readers see that one."""
    rig = Rig(8192)
    rig.append(b"first")
    rig.pump()
    rig.append(b"x" * 30_000)  # over several containers
    rig.disk.fail("create", nth=1, forever=True, error=28)
    rig.pump()
    assert rig.stream.visible == 1
    rig.disk.heal()
    rig.reopen(clean=False)
    assert (rig.stream.visible, rig.stream.next) == (1, 1)
    assert rig.append(b"second") == 1
    rig.pump()
    assert rig.read_all() == {0: b"first", 1: b"second"}
    rig.reopen()
    assert rig.read_all() == {0: b"first", 1: b"second"}
    assert StreamReader(rig.stream).read(1)[0] == MESSAGES
    rig.close()


@pytest.mark.parametrize("kind", ["sync", "write", "rename", "create", "allocate", "sync_dir", "unlink"])
def test_every_call_fails_once(kind: str) -> None:
    """Whichever call on the disk fails, once: nothing visible is lost by it, then or after the restart."""
    for nth in range(1, 40):
        rng = random.Random(nth)
        life = Life(8192)
        life.do("small", rng)
        life.rig.disk.fail(kind, nth=nth)
        seen: dict[int, bytes] = {}
        try:
            for step in ("small", "large", "huge", "idle", "small", "retain", "small"):
                life.do(step, rng)
                seen.update(life.rig.read_all())
        except Exception as error:
            if not isinstance(error, OSError) and type(error).__name__ != "StoreError":
                raise
        struck = bool(life.rig.disk.failures)
        visible, first = life.rig.stream.visible, life.rig.stream.first
        life.rig.disk.heal()
        life.rig.close(clean=False)
        image = next(iter(life.rig.disk.images(None, 1, nth)))
        after = on_image(image, 8192)
        assert after.stream.damage == []
        assert after.stream.visible >= visible
        found = after.read_all()
        assert sorted(found) == list(range(after.stream.first, after.stream.visible)) and after.stream.first <= first
        for offset, body in seen.items():
            if offset >= first:
                assert found[offset] == body
        after.close(clean=False)
        if not struck:
            return
