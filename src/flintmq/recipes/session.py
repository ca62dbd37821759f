"""Commits of one client whose outcome is known in the end.

in: commits. out: whether they happened; no UnknownOutcome.

R1  Each commit compares the client's session row, and puts a marker. After an unknown outcome the session row gets another number: the
    commit can't happen any more (E4), and its marker says whether it has.
R2  Only the client writes its session row. A commit that fails because the number changed meanwhile is sent again with the new one.
R3  A marker goes with a later commit. A client that dies leaves its session row and as many markers as it had commits under way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from flintmq.engines.engine import Commit, Engine, Unavailable, UnknownOutcome

# markers that one commit takes along: more than it makes, so that they get fewer
_MARKERS = 8
# seconds between two tries to reach an engine, and tries: half a minute
_PAUSE_S = 0.1
_TRIES = 300


class Session:
    """Args: engine; place: what the session's keys begin with. One event loop; any number of commits at a time."""

    def __init__(self, engine: Engine, place: bytes) -> None:
        self._engine = engine
        self.id = secrets.token_bytes(12)
        self._row = place + b"s" + self.id
        self._markers = place + b"m" + self.id
        self._number = 0  # of the session row; 0: there is none
        self._made = 0
        self._over: list[bytes] = []  # markers that nobody asks for any more
        self._lock = asyncio.Lock()  # of whoever changes the number

    async def commit(
        self,
        conditions: Sequence[tuple[bytes, bytes | None]] = (),
        puts: Mapping[bytes, bytes] | None = None,
        deletes: Sequence[bytes] = (),
    ) -> bool:
        """As Engine.commit. Raises: as it, but UnknownOutcome only where the engine stays away for half a minute."""
        while True:
            if not self._number:
                await self._renew(0)
            number = self._number
            self._made += 1
            marker = self._markers + self._made.to_bytes(8, "big")
            over, self._over = self._over[:_MARKERS], self._over[_MARKERS:]
            whole = Commit([(self._row, b"%d" % number), *conditions], {**(puts or {}), marker: b""}, [*deletes, *over])
            try:
                is_done = await self._engine.commit(whole)
            except UnknownOutcome:
                await self._renew(number)
                is_done = await self._has(marker)
                if not is_done:
                    self._over += over
                    continue
            except BaseException:
                self._over += [*over, marker]
                raise
            if is_done:
                self._over.append(marker)
                return True
            self._over += over
            async with self._lock:  # whoever changes the number has ended
                if number == self._number:
                    return False

    async def _renew(self, number: int) -> None:
        """No commit that compared this number can happen from now on."""
        async with self._lock:
            if self._number != number:
                return
            before = b"%d" % number if number else None
            for _ in range(_TRIES):
                try:
                    await self._engine.commit(Commit([(self._row, before)], {self._row: b"%d" % (number + 1)}))
                    break  # False: an earlier try of this loop happened
                except (UnknownOutcome, Unavailable):
                    await asyncio.sleep(_PAUSE_S)
            else:
                raise UnknownOutcome(f"{self._engine.name}: whether a commit happened is not known, and the engine does not answer")
            self._number = number + 1

    async def _has(self, marker: bytes) -> bool:
        for _ in range(_TRIES):
            try:
                return (await self._engine.get([marker]))[0] is not None
            except Unavailable:
                await asyncio.sleep(_PAUSE_S)
        raise UnknownOutcome(f"{self._engine.name}: whether a commit happened is not known, and the engine does not answer")

    async def close(self) -> None:
        """Leaves nothing behind. Raises: as Engine.commit."""
        if self._number:
            await self._engine.commit(Commit(deletes=[self._row], clears=[(self._markers, self._markers + b"\xff" * 9)]))
            self._number, self._over = 0, []
