"""Publishes of this node's clients to one queue that another node owns: sent in order, answered as the owner answers.

in: messages from the line of queue/handoff. out: frames on a channel that is aimed at the queue; answers to the line's receipts.

P1  Each message that came is answered and leaves its lane once: as the owner said; or refused: when it was sent and the channel or the
    link ends before, when it waits for an owner for too long, when the queue is deleted.
P2  Messages are sent in the order in which they came. At most cluster_flight_bytes_max of them, or one, are sent and not answered.
P3  None is sent before the other node has answered on the channel: one that does not own the queue yet refuses the channel alone, and what
    waits goes to it, or to another owner, with the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.cluster.link_wire import Message, WireError, publish_frames
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec

if TYPE_CHECKING:
    from flintmq.cluster.link import Link
    from flintmq.config import Limits
    from flintmq.errors import PeerError
    from flintmq.queue.handoff import SharedPort

# who is told: a receipt, or whoever asked for a publish of the broker's own; lane, bytes counted on the lane
Counted = tuple[int | Callable[[bool], object], int, int]


class Publishes:
    """Args: queue: id; want: asks for a link, for which `attach` is called; lost: the owner does not serve the queue."""

    def __init__(self, queue: bytes, port: SharedPort, limits: Limits, want: Callable[[], object], lost: Callable[[str], object]) -> None:
        self.used_s = 0.0
        self._queue = queue
        self._port = port
        self._flight_max = limits.cluster_flight_bytes_max
        self._want = want
        self._lost = lost
        self._waiting: deque[tuple[Message, Counted]] = deque()
        self._since_s = 0.0  # since when the first of them waits
        self._flying: deque[Counted] = deque()
        self._flying_bytes = 0
        self._tag = 0  # of the last message that was answered on this channel
        self._answers: dict[bool, list[Counted]] = {True: [], False: []}
        self._link: Link | None = None
        self._number = 0
        self._is_ready = False  # P3

    def add(self, message: Message, counted: Counted) -> None:
        """A message came. `pump` sends it."""
        if not self._waiting:
            self._since_s = asyncio.get_running_loop().time()
        self._waiting.append((message, counted))

    def attach(self, link: Link) -> None:
        """Messages go by this link from now on. Raises: LinkLost, PeerError: there is no channel."""
        self._number = link.open_channel(self, self._queue)
        self._link = link
        self._tag = 0
        self._is_ready = False
        self.used_s = asyncio.get_running_loop().time()
        link.send(self._number, spec.ConfirmSelect())

    def pump(self) -> None:
        """Sends what may be sent."""
        link = self._link
        if link is None:
            if self._waiting:
                self._want()
            return
        if not self._is_ready:
            return
        waiting, flying, number, frame_max = self._waiting, self._flying, self._number, link.frame_max
        while waiting and (self._flying_bytes < self._flight_max or not flying):
            message, counted = waiting.popleft()
            flying.append(counted)
            self._flying_bytes += counted[2]
            link.write(publish_frames(number, message, frame_max))

    @property
    def link(self) -> Link | None:
        return self._link

    def refuse_late(self, before_s: float) -> None:
        """Refuses what waits for an owner since before then."""
        if self._link is None and self._waiting and self._since_s < before_s:
            self.refuse_all()

    def rest(self, before_s: float) -> None:
        """Gives up a channel that nobody has used since before then."""
        if self._link is not None and not self._flying and self.used_s < before_s:
            self.detach()

    def detach(self) -> None:
        """Closes the channel: the owner is another one. Messages that were sent and not answered are refused."""
        if self._link is not None:
            self._link.close_channel(self._number)
        self._refuse_sent()

    def refuse_all(self) -> None:
        """As `detach`; and what waits is refused, too."""
        self._answers[False] += self._flying  # in their order
        self._flying.clear()
        self._answers[False] += (counted for _, counted in self._waiting)
        self._waiting.clear()
        self.detach()

    def _refuse_sent(self) -> None:
        self._link = None
        self._answers[False] += self._flying
        self._flying.clear()
        self._flying_bytes = 0
        self._since_s = asyncio.get_running_loop().time()
        self._tell()

    def _tell(self) -> None:
        for taken, answers in self._answers.items():
            if answers:
                self._answers[taken] = []
                receipts: list[int] = []
                for receiver, lane, size in answers:
                    self._port.leave(lane, size)
                    if isinstance(receiver, int):
                        receipts.append(receiver)
                    else:
                        guarded("publishes to other nodes", self._queue, receiver, taken)
                self._port.answer(receipts, taken)

    # --- the channel ----------------------------------------------------------------------------------------------------

    def on_answer(self, tag: int, multiple: bool, taken: bool) -> None:
        """The owner answers in the order of tags."""
        count = tag - self._tag
        if not 1 <= count <= len(self._flying) or not (multiple or count == 1):
            raise WireError(f"an answer to message {tag}, which is not due")
        self._tag = tag
        answers = self._answers[taken]
        for _ in range(count):
            counted = self._flying.popleft()
            self._flying_bytes -= counted[2]
            answers.append(counted)

    def on_read(self) -> None:
        self.used_s = asyncio.get_running_loop().time()
        self._tell()
        self.pump()

    def on_message(self, tag: int, redelivered: bool, message: Message) -> None:
        """Nothing is consumed here."""

    def on_method(self, method: Any) -> None:
        """confirm.select-ok."""
        self._is_ready = True
        self.pump()

    def on_closed(self, error: PeerError) -> None:
        self._refuse_sent()
        self._lost(error.text)

    def on_lost(self, reason: str) -> None:
        self._refuse_sent()
        self._lost(reason)
