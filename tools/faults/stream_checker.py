"""The verdict over the journals of a campaign over streams: what readers and groups saw in all lives, beside what was promised.

in: events of `journal.load`. out: `checker.Report` with violations and counts.

  lost        confirmed (or committed), or delivered once, not taken by retention, and absent when the stream is read at the end
  moved       an offset that showed one message shows another one
  twice       a message at two offsets of one stream
  phantom     delivered without having been published there, or published in a transaction that was not committed
  corrupt     body, size, checksum or properties differ from what was published
  reorder     offsets against the order of a publisher, or of publishes that began after others were confirmed
  gap         a reader of its own does not get the next offset and is not told that some are lost, or begins at the wrong one
  skipped     a group never got an offset that is kept; or more are missing than it was told; or it was told of a loss that there was not
  dropped     a message that came back (or was never settled) came no more, and no dead letter tells why
  unburied    fewer dead letters than groups that refused a message or gave it up for the last time
  undead      a dead letter without a refusal, or without as many deliveries as the limit allows
  resurrected delivered after its settlement was sure: in the same session or life, after a clean stop, or REWIND_S and more before a kill
  unflagged   delivered to a group twice without the redelivered flag, or recovered from an unclean stop without it
  duplicate   delivered to a member while another one held it
  overlimit   delivered to a group in one life more often than x-delivery-limit allows
  undrained, stalled, protocol, definition    the broker kept messages back, gave no answer, broke the protocol, forgot a declaration

K1  What nobody can know is no failure: unconfirmed messages may be there or not, unconfirmed settlements may have been done or not.
K2  A kill takes back what a group settled in the last moments; `rewind_us_max` of the counts is the most that was seen.
K3  Retention takes from the front only. What was confirmed and never seen may be gone when all of these hold: the stream has a bound, no
    message that must be older is kept, and there are as many unseen offsets in front.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools.faults import journal as j
from tools.faults.checker import Publish, Report, Violation

VERDICTS = (
    "lost", "moved", "twice", "phantom", "corrupt", "reorder", "gap", "skipped", "dropped", "unburied", "undead", "resurrected",
    "unflagged", "duplicate", "overlimit", "undrained", "stalled", "protocol", "definition",
)  # fmt: skip
# What was settled so many seconds before a kill must stay settled. The promise is stream_cursor_ms (0.1 s); a busy machine adds to it.
REWIND_S = 1.5
BOUNDS = ("x-max-age", "x-max-length-bytes")


@dataclass(slots=True)
class _Session:
    life: int
    knowns: list[int] = field(default_factory=list)
    seats: dict[str, str | int] = field(default_factory=dict)
    alone: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # stream -> (offset, lost) as they came

    def known(self, stamp: int) -> int | None:
        """When it was sure that what it sent at `stamp` had been done."""
        at = bisect_right(self.knowns, stamp)
        return self.knowns[at] if at < len(self.knowns) else None


@dataclass(slots=True)
class _Read:
    stamp: int
    session: str
    life: int
    redelivered: bool


@dataclass(slots=True)
class _Settled:
    stamp: int
    session: str
    how: str
    tx: str


@dataclass(slots=True)
class _Tale:
    """One offset in one group."""

    reads: list[_Read] = field(default_factory=list)
    settled: list[_Settled] = field(default_factory=list)


@dataclass(slots=True)
class _Stream:
    """What is known of one stream."""

    arguments: dict[str, Any] = field(default_factory=dict)
    places: dict[int, j.Ref] = field(default_factory=dict)
    where: dict[j.Ref, int] = field(default_factory=dict)
    reader: str = ""  # the session that read it to its end
    end: int = -1
    first_kept: int = 0
    lost: dict[str, int] = field(default_factory=dict)  # group -> what the broker says is lost to it
    told: Counter[str] = field(default_factory=Counter)  # group -> sum of x-stream-lost
    group_ends: dict[str, int] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)  # group -> life in which it was surely there
    from_start: set[str] = field(default_factory=set)
    seats: Counter[str] = field(default_factory=Counter)  # group -> sessions that joined it
    tales: defaultdict[str, defaultdict[int, _Tale]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(_Tale)))

    @property
    def keeps(self) -> bool:
        return not any(bound in self.arguments for bound in BOUNDS)


class _Check:
    def __init__(self, rewind_s: float) -> None:
        self.rewind_ns = int(rewind_s * 1e9)
        self.rewind_max = 0
        self.report = Report()
        self.sessions: dict[str, _Session] = {}
        self.publishes: dict[j.Ref, Publish] = {}
        self.txs: dict[str, str] = {}  # transaction -> "" (asked to commit) | "ok" | "rolled"
        self.tx_publishes: defaultdict[str, list[j.Ref]] = defaultdict(list)
        self.ended: dict[int, tuple[str, int]] = {}
        self.streams: defaultdict[str, _Stream] = defaultdict(_Stream)
        # (stream it died in, reason, message) -> where it was read -> by whom -> how often
        self.letters: defaultdict[tuple[str, str, j.Ref], defaultdict[str, Counter[str]]]
        self.letters = defaultdict(lambda: defaultdict(Counter))

    def bad(self, kind: str, stream: str, what: j.Ref | int | None, detail: str) -> None:
        shown = "-" if what is None else f"@{what}" if isinstance(what, int) else f"{what[0]}.{what[1]}"
        self.report.violations.append(Violation(kind, stream, shown, detail))

    # --- reading ----------------------------------------------------------------------------------------------------
    def read(self, event: j.Event) -> None:
        stamp, kind, *rest = event
        counts = self.report.counts
        if kind == j.READ:
            self._delivered(stamp, *rest)
        elif kind == j.PUBLISH:
            producer, sequence, queues, size, crc, tx = rest
            counts["published"] += 1
            self.publishes[producer, sequence] = Publish(stamp, self.sessions[producer].life, tuple(queues), size, crc, tx)
            if tx:
                self.tx_publishes[tx].append((producer, sequence))
        elif kind == j.CONFIRM:
            producer, sequences, accepted = rest
            counts["confirmed" if accepted else "nacked"] += len(sequences)
            for sequence in sequences:
                publish = self.publishes.get((producer, sequence))
                if publish is None or (accepted and publish.confirmed is not None):
                    self.bad("protocol", "-", (producer, sequence), "confirm for a tag that is not open")
                elif accepted:
                    publish.confirmed = stamp
        elif kind == j.SETTLE:
            session, stream, group, offsets, how, tx = rest
            counts[how] += len(offsets)
            for offset in offsets:
                self.streams[stream].tales[group][offset].settled.append(_Settled(stamp, session, how, tx))
        elif kind == j.KNOWN:
            self.sessions[rest[0]].knowns.append(stamp)
        elif kind == j.SEAT:
            self._seat(*rest)
        elif kind == j.COMMIT:
            self.txs[rest[0]] = ""
        elif kind == j.OUTCOME:
            self.txs[rest[0]] = rest[1]
            counts[f"tx_{rest[1]}"] += 1
            if rest[1] == "ok":
                for ref in self.tx_publishes[rest[0]]:
                    self.publishes[ref].confirmed = stamp
        elif kind == j.OPEN:
            self.sessions[rest[0]] = _Session(rest[1])
        elif kind == j.CLOSE:
            if rest[1]:
                self.sessions[rest[0]].knowns.append(stamp)
        elif kind == j.LIFE:
            counts["lives"] += rest[1] == "ready"
            if rest[1] != "ready":
                self.ended[rest[0]] = (rest[1], stamp)
        elif kind == j.STREAM:
            self.streams[rest[1]].arguments = rest[2]
        elif kind == j.END:
            self._ended(*rest)
        elif kind == j.FIGURES:
            stream = self.streams[rest[0]]
            stream.first_kept, stream.lost = rest[1], rest[2]
        elif kind == j.FAULT:
            self.bad(rest[1], "-", None, f"{rest[0]}: {rest[2]}")

    def _seat(self, session: str, stream: str, group: str, start: str | int) -> None:
        mine = self.sessions[session]
        if not group:
            mine.seats[stream] = start
            mine.alone[stream] = []
            return
        self.streams[stream].born.setdefault(group, mine.life)
        self.streams[stream].seats[group] += 1
        if start == 0:
            self.streams[stream].from_start.add(group)

    def _ended(self, session: str, stream: str, group: str, offset: int) -> None:
        if group:
            self.streams[stream].group_ends[group] = offset
        else:
            self.streams[stream].reader, self.streams[stream].end = session, offset

    def _delivered(
        self, stamp: int, session: str, name: str, group: str, offset: int, producer: str, sequence: int, size: int, crc: int,
        redelivered: int, intact: int, lost: int, death: list[str],
    ) -> None:  # fmt: skip
        counts, ref = self.report.counts, (producer, sequence)
        counts["delivered"] += 1
        counts["redelivered"] += redelivered
        stream, mine = self.streams[name], self.sessions[session]
        # Where the reader stands counts whatever the message is.
        if group:
            stream.told[group] += lost
            counts["lost_told"] += lost
            stream.tales[group][offset].reads.append(_Read(stamp, session, mine.life, bool(redelivered)))
        elif offset >= 0 and name in mine.alone:
            mine.alone[name].append((offset, lost))
        publish = self.publishes.get(ref)
        if not intact:
            return self.bad("corrupt", name, offset, f"{size} bytes whose checksum or properties do not agree, in {session}")
        if publish is None or (name not in publish.queues and not (death and death[1] in publish.queues)):
            return self.bad("phantom", name, ref, f"never published there, at offset {offset} in {session}")
        if (size, crc) != (publish.size, publish.crc):
            return self.bad("corrupt", name, ref, f"{size} bytes crc {crc:08x}, published {publish.size} crc {publish.crc:08x}")
        if death:
            self.letters[death[1], death[0], ref][name][session] += 1
        if offset >= 0:
            before = stream.places.setdefault(offset, ref)
            if before != ref:
                return self.bad("moved", name, ref, f"at offset {offset} in {session}, where {before[0]}.{before[1]} was")
            # A dead letter is a message of its own: there may be several of one original.
            if not death and stream.where.setdefault(ref, offset) != offset:
                self.bad("twice", name, ref, f"at the offsets {stream.where[ref]} and {offset}")
        return None

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def judge(self) -> Report:
        for ref, publish in self.publishes.items():
            if publish.tx and self.txs.get(publish.tx, "rolled") == "rolled":
                for queue in publish.queues:
                    if ref in self.streams[queue].where:
                        self.bad("phantom", queue, ref, "published in a transaction that was not committed")
        for name in sorted({queue for publish in self.publishes.values() for queue in publish.queues}):
            stream = self.streams[name]
            if not stream.arguments:
                continue  # a queue: for dead letters
            if stream.end < 0:
                self.bad("undrained", name, None, "nobody read it to its end")
                continue
            self._order(name, stream)
            self._kept(name, stream)
            for group in stream.born:
                if group not in stream.group_ends:
                    self.bad("undrained", name, None, f"group {group} was not taken to the end")
                else:
                    self._group(name, stream, group, stream.tales[group])
            self._buried(name, stream)
        self._alone()
        counts = self.report.counts
        counts["letters"] = sum(map(self._letters, self.letters))
        counts["retained"] = sum(stream.first_kept for stream in self.streams.values())
        counts["rewind_us_max"] = self.rewind_max // 1000
        return self.report

    def _letters(self, key: tuple[str, str, j.Ref]) -> int:
        """How many there are: a stream shows its letters to every reader, a queue gives each away once."""
        return sum(max(by.values()) if self.streams[target].arguments else sum(by.values()) for target, by in self.letters[key].items())

    def _order(self, name: str, stream: _Stream) -> None:
        newest: dict[str, int] = {}
        invoked, by = 0, ("-", 0)
        for offset, ref in sorted(stream.places.items()):
            publish = self.publishes[ref]
            if name not in publish.queues:
                continue  # a dead letter
            if newest.get(ref[0], 0) > ref[1]:
                self.bad("reorder", name, ref, f"at offset {offset}, behind number {newest[ref[0]]} of its publisher")
            newest[ref[0]] = max(newest.get(ref[0], 0), ref[1])
            if publish.confirmed is not None and publish.confirmed < invoked:
                self.bad("reorder", name, ref, f"at offset {offset}, behind {by[0]}.{by[1]} that was published after its confirm")
            if publish.stamp > invoked:
                invoked, by = publish.stamp, ref

    def _kept(self, name: str, stream: _Stream) -> None:
        """What must be there is there. `final` is what the last reader got, behind what retention took while it read."""
        final: set[int] = set()
        for offset, lost in self.sessions[stream.reader].alone[name]:
            if lost:
                final.clear()
            final.add(offset)
        first = min(final)
        for offset, ref in stream.places.items():
            if offset >= first and offset not in final:
                self.bad("lost", name, ref, f"seen at offset {offset}, absent from {first} to {stream.end}")
        kept = [stream.places[offset] for offset in final if offset in stream.places]
        sure = min((self.publishes[ref].confirmed or 1 << 63 for ref in kept), default=1 << 63)
        lowest: dict[str, int] = {}
        for producer, sequence in kept:
            lowest[producer] = min(lowest.get(producer, sequence), sequence)
        unseen = 0
        for ref, publish in self.publishes.items():
            if publish.confirmed is None or name not in publish.queues or ref in stream.where:
                continue
            unseen += 1
            older = publish.stamp > sure or lowest.get(ref[0], ref[1]) < ref[1]
            if stream.keeps or older:
                self.bad("lost", name, ref, f"confirmed in life {publish.life}, never seen, the stream was kept from {first} on")
        room = first - sum(offset < first for offset in stream.places)
        if unseen > room and not stream.keeps:
            self.bad("lost", name, None, f"{unseen} confirmed messages were never seen, but only {room} offsets in front of {first}")
        if stream.keeps and first > 0:
            self.bad("lost", name, 0, f"nothing before offset {first}, though the stream has no bound")

    def _alone(self) -> None:
        for name, session in self.sessions.items():
            for stream, reads in session.alone.items():
                start, keeps = session.seats[stream], self.streams[stream].keeps
                if not reads:
                    continue
                wanted = 0 if start == "first" else start if isinstance(start, int) else None
                if wanted is not None and (reads[0][0] < wanted or (keeps and reads[0][0] != wanted)):
                    self.bad("gap", stream, reads[0][0], f"the first one of {name}, which began at {start}")
                for (before, _), (offset, lost) in pairwise(reads):
                    if offset != before + 1 + lost:
                        self.bad("gap", stream, offset, f"after {before} in {name}, {lost} were told to be lost")
                if keeps and any(lost for _, lost in reads):
                    self.bad("gap", stream, None, f"{name} was told of a loss, though the stream has no bound")

    # --- groups -----------------------------------------------------------------------------------------------------
    def _group(self, name: str, stream: _Stream, group: str, tales: dict[int, _Tale]) -> None:
        read = {offset for offset, tale in tales.items() if tale.reads}
        start = 0 if group in stream.from_start or not read else min(read)
        missing = [offset for offset in range(start, stream.group_ends[group] + 1) if offset not in read]
        here = [offset for offset in missing if offset >= stream.first_kept or stream.keeps]
        if here:
            self.bad("skipped", name, here[0], f"{len(here)} of the offsets that are kept never came to group {group}")
        told = max(stream.told[group], stream.lost.get(group, 0))
        if len(missing) > told:
            self.bad("skipped", name, missing[0], f"{len(missing)} offsets never came to group {group}, which was told of {told}")
        if stream.keeps and told:
            self.bad("skipped", name, None, f"group {group} was told that {told} are lost, though the stream has no bound")
        self.report.counts["lost_to_groups"] += len(missing)
        # told in a message that nobody read: its consumer's end, or the broker's, came first
        self.report.counts["lost_not_heard"] += max(0, len(missing) - stream.told[group])
        limit = stream.arguments.get("x-delivery-limit")
        for offset, tale in tales.items():
            # what was rolled back, or never committed, settled nothing
            tale.settled = [one for one in tale.settled if not one.tx or self.txs.get(one.tx, "rolled") != "rolled"]
            if tale.reads:
                self._flags(name, stream, group, offset, tale)
                self._settled(name, group, offset, tale)
                self._held(name, group, offset, tale)
                most = max(Counter(read.life for read in tale.reads).values())
                if limit is not None and most > limit + 1:
                    self.bad("overlimit", name, offset, f"{most} times to group {group} in one life, the limit is {limit}")

    def _flags(self, name: str, stream: _Stream, group: str, offset: int, tale: _Tale) -> None:
        publish = self.publishes.get(stream.places.get(offset, ("", 0)))
        for number, read in enumerate(tale.reads):
            if read.redelivered:
                continue
            if number:
                self.bad("unflagged", name, offset, f"delivery {number + 1} to group {group}, in {read.session}")
            elif publish is not None:
                since = max(publish.life, stream.born.get(group, read.life))
                killed = [life for life in range(since, read.life) if self.ended.get(life, ("", 0))[0] == "killed"]
                if killed:
                    self.bad("unflagged", name, offset, f"there in life {killed[0]}, recovered in life {read.life} for group {group}")

    def _settled(self, name: str, group: str, offset: int, tale: _Tale) -> None:
        for done in tale.settled:
            if done.how == "requeue":
                continue
            mine = self.sessions[done.session]
            known = mine.known(done.stamp)
            end, at = self.ended.get(mine.life, ("", 0))
            for read in tale.reads:
                if read.stamp < done.stamp:
                    continue
                why = ""
                if read.session == done.session:
                    why = "in the same session"
                elif known is None:
                    continue
                elif read.life == mine.life:
                    why = "in the same life" if read.stamp > known else ""
                elif end == "stopped":
                    why = "before a clean stop"
                elif end == "killed":
                    self.rewind_max = max(self.rewind_max, at - known)
                    why = f"{(at - known) / 1e9:.3f} s before a kill" if at - known > self.rewind_ns else ""
                if why:
                    text = f"{done.how} in {done.session} {why}, then delivered to {read.session} of group {group}"
                    self.bad("resurrected", name, offset, text)

    def _held(self, name: str, group: str, offset: int, tale: _Tale) -> None:
        for first in tale.reads:
            session = self.sessions[first.session]
            ends = [one.stamp for one in tale.settled if one.session == first.session and one.stamp > first.stamp]
            if not ends or session.known(min(ends)) is None:
                continue  # the broker may have seen its end before we did
            for other in tale.reads:
                if other is not first and other.life == first.life and first.stamp < other.stamp < min(ends):
                    self.bad("duplicate", name, offset, f"{other.session} got it while {first.session} of group {group} held it")

    def _buried(self, name: str, stream: _Stream) -> None:
        """What came to nothing has a letter for each group, and letters have a cause."""
        limit = stream.arguments.get("x-delivery-limit")
        buries = "x-dead-letter-exchange" in stream.arguments
        wanted: Counter[int] = Counter()
        rejected: set[int] = set()
        most: Counter[int] = Counter()
        for group, tales in stream.tales.items():
            for offset, tale in tales.items():
                if not tale.reads:
                    continue
                rejected |= {offset} if any(one.how == "reject" for one in tale.settled) else set()
                most[offset] = max(most[offset], len(tale.reads) + stream.seats[group])  # each may have ended with it unread
                last = max(tale.reads, key=lambda read: read.stamp)
                how = next((one.how for one in tale.settled if one.session == last.session and one.stamp > last.stamp), "")
                if how == "ack" or offset < stream.first_kept:
                    continue
                if buries and (how == "reject" or limit is not None):
                    wanted[offset] += 1
                elif how != "reject":
                    self.bad("dropped", name, offset, f"{how or 'not settled'} in {last.session} of group {group}, and never again")
        there: Counter[int] = Counter()
        for died_in, reason, ref in self.letters:
            if died_in != name or ref not in stream.where:
                continue
            offset = stream.where[ref]
            there[offset] += self._letters((died_in, reason, ref))
            if reason == "rejected" and offset not in rejected:
                self.bad("undead", name, ref, f"a letter of offset {offset} that nobody refused")
            elif reason == "delivery_limit" and (limit is None or most[offset] < limit + 1):
                self.bad("undead", name, ref, f"given up after {most[offset]} deliveries at most, the limit is {limit}")
        for offset, number in wanted.items():
            if there[offset] < number:
                came_back = any(t[offset].reads and not any(s.how == "reject" for s in t[offset].settled) for t in stream.tales.values())
                self.bad(
                    "dropped" if came_back else "unburied", name, offset, f"{number} groups have done with it, {there[offset]} letters"
                )


def check(events: Iterable[j.Event], *, rewind_s: float = REWIND_S) -> Report:
    """The verdict over events in stamp order. `rewind_s`: REWIND_S."""
    state = _Check(rewind_s)
    for event in events:
        state.read(event)
    return state.judge()


def main() -> int:
    """Verdict over journal files of a campaign over streams: prints one JSON line; exit 0, or 65 with violations."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.stream_checker", description=main.__doc__)
    parser.add_argument("journals", nargs="+", type=Path)
    parser.add_argument("--rewind-s", type=float, default=REWIND_S)
    given = parser.parse_args()
    report = check(j.load(given.journals), rewind_s=given.rewind_s)
    print(json.dumps(report.to_json()))
    return 0 if report.ok else 65


if __name__ == "__main__":
    raise SystemExit(main())
