"""A dead letter in a stream is on disk before the end of its original in the message log; not on a full disk, where acks go on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flintmq.ports import DequeueReason
from tests.store_stream.rig import header
from tests.store_stream.test_stream_store import Node, read_all
from tests.store_stream.test_ticket_race import During
from tests.support.stored import StoredContent
from tests.twins.sim_disk import SimDisk

QUEUE, STREAMS = 2, (3, 4)
KNOWN = {QUEUE, *STREAMS}


class Dying:
    """A queue whose messages die into streams. `originals`: number -> (ticket, message id, position)."""

    def __init__(self, rng: random.Random, tell: bool) -> None:
        self.node = Node(set(KNOWN), size=16384)
        self.rng = rng
        self.tell = tell
        self.originals: dict[int, tuple[int, int, int]] = {}
        self.alive: list[int] = []
        self.history: list[tuple[int, list[int]]] = []  # position of the journal, originals that were durable then

    def publish(self) -> None:
        number = len(self.originals)
        store = self.node.store
        content = StoredContent(b"", b"queue", header(b""), b"%d " % number + bytes(self.rng.choice((20, 700, 3000))))
        message = store.append_content(content)
        self.originals[number] = (store.enqueue(QUEUE, number + 1, message), message, number + 1)
        self.alive.append(number)

    def die(self) -> int:
        """One becomes a dead letter. Returns the ticket of the original's end."""
        number = self.alive.pop(self.rng.randrange(len(self.alive)))
        store, (_, message, position) = self.node.store, self.originals[number]
        queue_id = self.rng.choice(STREAMS)
        stream = self.node.streams.open(queue_id)
        stream.append(b"ex", b"key", header(b""), store.content(message).body)
        if self.tell:
            self.node.streams.letter(queue_id)
        return int(store.dequeue(QUEUE, position, DequeueReason.REJECT, message_id=message))

    def note(self) -> None:
        durable = self.node.store.durable_lsn
        self.history.append((self.node.disk.position, [n for n, (ticket, _, _) in self.originals.items() if ticket <= durable]))

    def live(self, steps: int) -> None:
        for _ in range(steps):
            kind = self.rng.choice(("publish", "publish", "die", "die", "flush", "maintain", "prepare"))
            if kind == "publish":
                self.publish()
            elif kind == "die" and self.alive:
                self.die()
            elif kind == "flush":
                self.node.store.flush()
            elif kind == "maintain":
                self.node.store.maintain()
            else:
                self.node.streams.prepare()
            self.note()
        self.node.pump()
        self.note()


def lost(image: Any, wanted: list[int]) -> set[int]:
    """Which of these originals are neither in the queue nor in a stream when the image is opened."""
    node = Node(set(KNOWN), SimDisk.from_image(image), size=16384)
    found = {int(node.store.content(entry.message_id).body.split(b" ")[0]) for entry in node.store.entries(QUEUE)}
    for queue_id in STREAMS:
        found.update(int(body.split(b" ")[0]) for body in read_all(node.streams.open(queue_id)).values())
    node.store.close(clean=False)
    return set(wanted) - found


def losses(seed: int, tell: bool, limit: int) -> int:
    """Lives through a history, loses power at each point of it; how often something was lost."""
    dying = Dying(random.Random(seed), tell)
    dying.live(40)
    count = 0
    for position in range(dying.node.disk.position + 1):
        wanted = max((durable for at, durable in dying.history if at <= position), key=len, default=[])
        for image in dying.node.disk.images(position, limit, position):
            count += bool(lost(image, wanted))
    dying.node.store.close()
    return count


@pytest.mark.parametrize("seed", range(6))
def test_no_letter_is_lost(seed: int) -> None:
    """Power is lost at every point: each message that was durable is in its queue, or in the stream that it died into, or in both."""
    assert losses(seed, True, 4) == 0


def test_without_the_order_letters_are_lost() -> None:
    """The check above sees what it looks for."""
    assert sum(losses(seed, False, 4) for seed in range(3)) > 0


def test_a_letter_waits_for_a_container_and_the_end_of_its_original_with_it() -> None:
    """Nothing of the message log is written before the stream has its container, and the letter is in it."""
    dying = Dying(random.Random(0), True)
    dying.publish()
    dying.node.pump()
    end = dying.die()
    store = dying.node.store
    for _ in range(3):
        store.flush()
        assert store.durable_lsn < end
    assert dying.node.streams.prepare() == 1
    store.flush()
    assert store.durable_lsn >= end
    store.close()


def test_a_stream_that_goes_on_during_a_pass_is_written_before_the_others() -> None:
    """Its container comes while the writer is writing other streams: the message log waits for the next pass."""
    node = Node(set(KNOWN))
    one, two = (node.streams.open(queue_id) for queue_id in STREAMS)
    node.append(two)
    node.pump()
    content = StoredContent(b"", b"queue", header(b""), b"0 ")
    message = node.store.append_content(content)
    node.store.enqueue(QUEUE, 1, message)
    node.append(one)
    node.streams.letter(STREAMS[0])
    node.store.flush()
    assert one.starved
    end = node.store.dequeue(QUEUE, 1, DequeueReason.REJECT, message_id=message)
    node.append(two)
    node.disk.latency_ms["sync"] = 1
    node.disk.clock = During(one.prepare)
    node.store.flush()
    assert node.disk.clock.function is None and not one.starved
    node.disk.clock = None
    assert one.visible == 1 or node.store.durable_lsn < end
    node.pump()
    assert one.visible == 1 and node.store.durable_lsn >= end
    node.store.close()


def test_acks_go_on_when_the_disk_has_no_room_for_the_letter() -> None:
    """A full disk: the other logs do not wait for a stream that can't have a container; with room again the letter is written."""
    dying = Dying(random.Random(0), True)
    dying.publish()
    dying.publish()
    dying.node.pump()
    node = dying.node
    node.disk.fail("create", forever=True, error=28, path="streams")
    for _ in range(2):  # the second one finds a stream for which nobody waits
        end = dying.die()
        for _ in range(3):
            node.store.flush()
            node.streams.prepare()
        assert node.store.durable_lsn >= end
    node.disk.heal()
    node.pump()
    assert sum(node.streams.open(queue_id).visible for queue_id in STREAMS) == 2
    node.store.close()


def test_a_deleted_stream_holds_nobody_up() -> None:
    """Its stream is deleted while a letter waits in it for a container: then there is nothing to wait for."""
    dying = Dying(random.Random(0), True)
    dying.publish()
    dying.node.pump()
    end = dying.die()
    dying.node.store.flush()
    for queue_id in STREAMS:
        dying.node.streams.delete(queue_id)
    dying.node.store.flush()
    dying.node.store.flush()
    assert dying.node.store.durable_lsn >= end
    dying.node.store.close()
