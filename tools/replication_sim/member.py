"""A member: its disk, and what it does with each message. No clock, no thread, no network: the world calls.

in: messages. out: messages, `confirmed`: what it told its clients is safe.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tools.replication_sim.rules import Block, Config, End, Rules

# the coordinator's place in the network
COORDINATOR = 0
# a block that only says that an epoch began
EPOCH_BEGAN = 0


@dataclass(frozen=True, slots=True)
class Letter:
    """A message. `body` depends on `kind`."""

    kind: str
    sender: int
    receiver: int
    epoch: int
    body: tuple[Any, ...] = ()


class Disk:
    """Writes that are not synced may be lost, the last ones first."""

    def __init__(self) -> None:
        self.log: list[Block] = []
        self.promised = 0
        self._synced: tuple[list[Block], int] = ([], 0)
        self._written: list[tuple[str, Any]] = []

    def cut(self, length: int) -> None:
        if length < len(self.log):
            self._write("cut", length)

    def append(self, block: Block) -> None:
        self._write("append", block)

    def promise(self, epoch: int) -> None:
        if epoch != self.promised:
            self._write("promise", epoch)

    def _write(self, kind: str, argument: Any) -> None:
        self._written.append((kind, argument))
        self._apply(kind, argument)

    def _apply(self, kind: str, argument: Any) -> None:
        if kind == "cut":
            del self.log[argument:]
        elif kind == "append":
            self.log.append(argument)
        else:
            self.promised = argument

    @property
    def is_synced(self) -> bool:
        return not self._written

    def sync(self) -> None:
        self._synced = (list(self.log), self.promised)
        self._written.clear()

    def lose_power(self, chance: random.Random) -> None:
        """Some of what was not synced is there, the rest is not."""
        written = self._written[: chance.randint(0, len(self._written))]
        self.log, self.promised = list(self._synced[0]), self._synced[1]
        for kind, argument in written:
            self._apply(kind, argument)
        self.sync()

    @property
    def end(self) -> End:
        return (self.log[-1][0] if self.log else 0, len(self.log))


class Phase(Enum):
    FOLLOWS = "follows"
    CAMPAIGNS = "asked the coordinator"
    SEALS = "collects the word of a majority"
    FETCHES = "reads the best log"
    SYNCS = "brings a majority up to its log"
    ACTIVATES = "tells the coordinator"
    LEADS = "leads"


@dataclass(slots=True)
class Leadership:
    """What a candidate or leader knows; gone with a restart."""

    epoch: int = 0
    active: Config = frozenset()
    config: Config = frozenset()
    ends: dict[int, End] = field(default_factory=dict)
    source: int = 0
    began_index: int = 0
    has: dict[int, int] = field(default_factory=dict)  # member -> index up to which it has the leader's blocks on disk
    next: dict[int, int] = field(default_factory=dict)  # member -> index behind which it gets the next ones
    confirmed: int = 0


class Member:
    """Args: send: puts a message on its way; told: called with (member, epoch, index, block) for each block that it confirms."""

    def __init__(self, number: int, rules: Rules, send: Callable[[Letter], None], told: Callable[[int, int, int, Block], None]) -> None:
        self.number = number
        self.rules = rules
        self.disk = Disk()
        self.phase = Phase.FOLLOWS
        self.lead = Leadership()
        self.confirmed = 0  # index up to which blocks are known to be confirmed
        self.asked = 0  # number of the last request to the coordinator
        self._send = send
        self._told = told
        self._when_synced: list[Callable[[], None]] = []

    def restart(self) -> None:
        """After a kill: only the disk is left."""
        self.phase, self.lead, self.confirmed = Phase.FOLLOWS, Leadership(), 0
        self._when_synced.clear()

    # --- disk -------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        self.disk.sync()
        due, self._when_synced = self._when_synced, []
        for action in due:
            action()

    def _after_sync(self, action: Callable[[], None], needed: bool) -> None:
        if needed and not self.disk.is_synced:
            self._when_synced.append(action)
        else:
            action()

    def _say(self, kind: str, receiver: int, epoch: int, *body: Any) -> None:
        self._send(Letter(kind, self.number, receiver, epoch, body))

    # --- who leads --------------------------------------------------------------------------------------------------

    def campaign(self, config: Config | None = None) -> None:
        """Asks the coordinator for an epoch; `config`: with other members, which a leader may ask for."""
        if config is not None and self.phase is not Phase.LEADS:
            return
        self.asked += 1
        self.phase = Phase.CAMPAIGNS
        self._say("campaign", COORDINATOR, 0, self.asked, config)

    def step_down(self) -> None:
        self.phase = Phase.FOLLOWS

    def receive(self, letter: Letter) -> None:
        getattr(self, f"_on_{letter.kind}")(letter)

    def _on_elected(self, letter: Letter) -> None:
        asked, active, config = letter.body
        if self.phase is not Phase.CAMPAIGNS or asked != self.asked:
            return
        self.lead = Leadership(letter.epoch, active, config)
        self.phase = Phase.SEALS
        self.again()

    def _on_denied(self, letter: Letter) -> None:
        if self.phase is Phase.CAMPAIGNS and letter.body[0] == self.asked:
            self.step_down()

    def again(self) -> None:
        """Says once more what has no answer yet."""
        lead = self.lead
        if self.phase is Phase.SEALS:
            for member in self.rules.seals(lead.active, lead.config) | {self.number}:
                if member not in lead.ends:
                    self._say("seal", member, lead.epoch)
        elif self.phase is Phase.FETCHES:
            self._say("fetch", lead.source, lead.epoch)
        elif self.phase is Phase.ACTIVATES:
            self._say("activate", COORDINATOR, lead.epoch, lead.config)
        if self.phase in (Phase.SYNCS, Phase.ACTIVATES, Phase.LEADS):
            for member in lead.config - {self.number}:
                self._send_blocks(member)

    def _on_seal(self, letter: Letter) -> None:
        if self.rules.refuses(letter.epoch, self.disk.promised):
            self._say("refused", letter.sender, letter.epoch, self.disk.promised)
            return
        self._promise(letter.epoch)

        def answer() -> None:
            self._say("sealed", letter.sender, letter.epoch, self.disk.end)

        self._after_sync(answer, self.rules.promise_is_synced())

    def _promise(self, epoch: int) -> None:
        self.disk.promise(epoch)
        if self.phase is not Phase.FOLLOWS and self.lead.epoch < epoch and self.phase is not Phase.CAMPAIGNS:
            self.step_down()

    def _on_refused(self, letter: Letter) -> None:
        if letter.body[0] > self.lead.epoch and letter.epoch == self.lead.epoch and self.phase is not Phase.CAMPAIGNS:
            self.step_down()

    def _on_sealed(self, letter: Letter) -> None:
        lead = self.lead
        if self.phase is not Phase.SEALS or letter.epoch != lead.epoch:
            return
        lead.ends[letter.sender] = letter.body[0]
        sealed = self.rules.seals(lead.active, lead.config)
        if self.number in lead.ends and self.rules.is_majority(sealed, lead.ends):
            lead.source = self.rules.best({member: end for member, end in lead.ends.items() if member in sealed or member == self.number})
            if lead.source == self.number or not self.rules.takes_best():
                self._begin_epoch()
            else:
                self.phase = Phase.FETCHES
                self.again()

    def _on_fetch(self, letter: Letter) -> None:
        if letter.epoch == self.disk.promised:
            self._say("log", letter.sender, letter.epoch, tuple(self.disk.log))
        elif self.rules.refuses(letter.epoch, self.disk.promised):  # or the candidate would ask for ever
            self._say("refused", letter.sender, letter.epoch, self.disk.promised)

    def _on_log(self, letter: Letter) -> None:
        if self.phase is not Phase.FETCHES or letter.epoch != self.lead.epoch or letter.sender != self.lead.source:
            return
        self._take(0, letter.body[0])
        self.disk.cut(len(letter.body[0]))
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        lead = self.lead
        self.disk.append((lead.epoch, EPOCH_BEGAN))
        lead.began_index = len(self.disk.log)
        lead.next = dict.fromkeys(lead.config, lead.began_index - 1)
        self.phase = Phase.SYNCS
        self._own_ack()
        self.again()

    # --- blocks -----------------------------------------------------------------------------------------------------

    def submit(self, content: int) -> bool:
        """A client's record. False: this member does not lead."""
        if self.phase is not Phase.LEADS:
            return False
        self.disk.append((self.lead.epoch, content))
        self._own_ack()
        self.again()
        return True

    def _own_ack(self) -> None:
        lead, length = self.lead, len(self.disk.log)

        def answer() -> None:
            if self.lead is lead:
                self._has(self.number, length)

        self._after_sync(answer, self.rules.synced_before_ack())

    def _send_blocks(self, member: int) -> None:
        lead, log = self.lead, self.disk.log
        behind = min(lead.next.get(member, len(log)), len(log))
        epoch = log[behind - 1][0] if behind else 0
        self._say("blocks", member, lead.epoch, behind, epoch, tuple(log[behind:]), lead.confirmed)

    def _on_blocks(self, letter: Letter) -> None:
        index, epoch, blocks, confirmed = letter.body
        if self.rules.refuses(letter.epoch, self.disk.promised):
            self._say("refused", letter.sender, letter.epoch, self.disk.promised)
            return
        self._promise(letter.epoch)
        if not self.rules.matches(self.disk.log, index, epoch):
            self._say("differs", letter.sender, letter.epoch, index)
            return
        self._take(index, blocks)
        upto = index + len(blocks)
        self.confirmed = max(self.confirmed, min(confirmed, upto))

        def answer() -> None:
            self._say("has", letter.sender, letter.epoch, upto)

        self._after_sync(answer, self.rules.synced_before_ack())

    def _take(self, index: int, blocks: tuple[Block, ...]) -> None:
        kept = self.rules.cut(self.disk.log, index, blocks)
        self.disk.cut(kept)
        for block in blocks[kept - index :] if kept >= index else blocks:
            self.disk.append(block)

    def _on_differs(self, letter: Letter) -> None:
        lead = self.lead
        if letter.epoch == lead.epoch and self.phase in (Phase.SYNCS, Phase.ACTIVATES, Phase.LEADS):
            lead.next[letter.sender] = max(0, min(lead.next.get(letter.sender, 0), letter.body[0]) - 1)
            self._send_blocks(letter.sender)

    def _on_has(self, letter: Letter) -> None:
        if self.rules.counts_ack(letter.epoch, self.lead.epoch) and self.phase in (Phase.SYNCS, Phase.ACTIVATES, Phase.LEADS):
            self._has(letter.sender, letter.body[0])

    def _has(self, member: int, index: int) -> None:
        lead = self.lead
        if self.phase not in (Phase.SYNCS, Phase.ACTIVATES, Phase.LEADS):
            return
        lead.has[member] = max(index, lead.has.get(member, 0))
        lead.next[member] = max(lead.next.get(member, 0), min(index, len(self.disk.log)))
        if self.phase is Phase.SYNCS and self._is_held(lead.began_index):
            self.phase = Phase.ACTIVATES
            self.again()
        self._confirm()

    def _is_held(self, index: int) -> bool:
        lead = self.lead
        return self.rules.is_majority(lead.config, [member for member, has in lead.has.items() if has >= index])

    def _on_activated(self, letter: Letter) -> None:
        if self.phase is Phase.ACTIVATES and letter.epoch == self.lead.epoch:
            if letter.body[0]:
                self.phase = Phase.LEADS
                self._confirm()
            else:
                self.step_down()

    def _confirm(self) -> None:
        """Everything up to the last block that a majority has on disk. A majority has the block with which this epoch began, or it were not
        active: so nothing is confirmed by counting blocks of an earlier epoch alone."""
        lead, log = self.lead, self.disk.log
        if not self.rules.confirms(self.phase is Phase.LEADS):
            return
        held = [index for index in range(lead.confirmed + 1, len(log) + 1) if self._is_held(index)]
        for index in range(lead.confirmed + 1, max(held, default=0) + 1):
            self._told(self.number, lead.epoch, index, log[index - 1])
            lead.confirmed = index
        self.confirmed = max(self.confirmed, lead.confirmed)
