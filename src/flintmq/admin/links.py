"""Which HTTP connections there are, whose they are, and which one makes room for another.

in: connections that were accepted, what becomes of them. out: a Link for each that may stay; the ones that are cut. For one event loop.

K1  A connection counts from accept on, before TLS, before a header of a proxy, before a byte of it: there are never more than `most`, and
    SPARE ones besides (K4).
K2  Who makes room for a newcomer, the first of these that there is: of the address with most connections, where that has more than the
    newcomer's, or else of its own, the oldest that has not logged in; the oldest of all that has not; of that address, then of all, the one
    that has asked nothing for longest; of an address with more than twice as many, the oldest that waits for an answer.
K3  So idle sockets shut nobody out, be they of one address, or of thousands, or of one's own. Who logged in and waits for an answer (a held
    poll) makes room for small addresses only.
K4  Where nobody makes room, a newcomer still gets one of SPARE places, for a health check and nothing else (admin.app refuses the rest);
    the oldest spare one makes room for it.
K5  All is O(1), but for an address that has most: what a flood costs does not grow with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# a request's scope has its Link under this key
LINK = "flintmq.link"
# places for health checks beyond the limit, at most an eighth of it
SPARE = 64

# what a connection does: it has not logged in; it did and asks nothing; it did and waits for an answer
FRESH, IDLE, BUSY = range(3)


class Link:
    """One connection. transport: asyncio's, of the socket itself, once there is one; spare: K4; for_metrics: of the port for them
    alone; user: who logged in last, "": nobody."""

    __slots__ = ("_book", "asks", "cut", "for_metrics", "source", "spare", "state", "transport", "user")

    def __init__(self, book: Links, source: str, spare: bool) -> None:
        self._book = book
        self.source = source
        self.spare = spare
        self.transport: Any = None
        self.user = ""
        self.asks = False
        self.cut = False
        self.for_metrics = False
        self.state = FRESH

    def begins(self) -> None:
        """A request is there."""
        self.asks = True
        self._book.look(self)

    def logged_in(self, user: str) -> None:
        self.user = user
        self._book.look(self)

    def answered(self) -> None:
        self.asks = False
        self._book.look(self)

    def drop(self) -> None:
        """Cuts the connection; it counts no more."""
        self.cut = True
        self._book.gone(self)
        if self.transport is not None:
            self.transport.abort()

    def end(self) -> None:
        """The connection is gone. Again is no error."""
        self._book.gone(self)

    def move(self, source: str) -> None:
        """A trusted proxy has said whom it speaks for."""
        self._book.move(self, source)


class _Source:
    """Connections of an address, by what they do, the oldest first."""

    __slots__ = ("links",)

    def __init__(self) -> None:
        self.links: tuple[dict[Link, None], ...] = ({}, {}, {})

    def __len__(self) -> int:
        return sum(map(len, self.links))

    def first(self, state: int) -> Link | None:
        return next(iter(self.links[state]), None)


class Links:
    """Args: most: connections at a time; on_room: called when there is one less."""

    def __init__(self, most: int, on_room: Callable[[], None] = lambda: None) -> None:
        self.spare_max = min(SPARE, most // 8)
        self.most = most
        self.on_room = on_room
        self.refused = 0  # newcomers
        self.evicted = 0
        self._all: tuple[dict[Link, None], ...] = ({}, {}, {})
        self._sources: dict[str, _Source] = {}
        self._sizes: dict[int, dict[str, None]] = {}  # connections -> addresses that have so many
        self._largest = 0
        self._spare: dict[Link, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._all)) + len(self._spare)

    @property
    def is_full(self) -> bool:
        return sum(map(len, self._all)) >= self.most

    def admit(self, source: str) -> Link | None:
        """A newcomer's place; None: there is none."""
        if self.is_full:
            loser = self._loser(source)
            if loser is None:
                return self._spare_place(source)
            self.evicted += 1
            loser.drop()
        link = Link(self, source, False)
        self._add(link)
        return link

    def _loser(self, source: str) -> Link | None:
        """K2."""
        own = self._sources.get(source)
        count = 0 if own is None else len(own)
        most = next((self._sources[name] for name in self._sizes.get(self._largest, ())), None)
        larger = most if most is not None and self._largest > count + 1 else None
        for state in (FRESH, IDLE):
            for place in (larger, own):
                link = None if place is None else place.first(state)
                if link is not None:
                    return link
            link = next(iter(self._all[state]), None)
            if link is not None:
                return link
        return larger.first(BUSY) if larger is not None and self._largest > 2 * count else None

    def _spare_place(self, source: str) -> Link | None:
        """K4."""
        if not self.spare_max:
            self.refused += 1
            return None
        if len(self._spare) >= self.spare_max:
            self.refused += 1
            next(iter(self._spare)).drop()
        link = Link(self, source, True)
        self._spare[link] = None
        return link

    # --- what becomes of them ---------------------------------------------------------------------------------------------

    def look(self, link: Link) -> None:
        """Its state may be another one now."""
        state = (BUSY if link.asks else IDLE) if link.user else FRESH
        if link.spare or link.cut or link not in self._all[link.state] or (state == link.state and state != IDLE):
            return
        source = self._sources[link.source]
        for places in (self._all, source.links):
            del places[link.state][link]
            places[state][link] = None
        link.state = state

    def move(self, link: Link, source: str) -> None:
        if link not in self._all[link.state]:
            return
        self._remove(link)
        link.source = source
        self._add(link)

    def gone(self, link: Link) -> None:
        if link in self._spare:
            del self._spare[link]
        elif link in self._all[link.state]:
            self._remove(link)
        else:
            return
        self.on_room()

    def of_user(self, user: str) -> list[Link]:
        """Connections whose last request was this user's."""
        return [link for links in self._all for link in links if link.user == user]

    def _add(self, link: Link) -> None:
        source = self._sources.setdefault(link.source, _Source())
        self._resize(link.source, len(source), 1)
        self._all[link.state][link] = source.links[link.state][link] = None

    def _remove(self, link: Link) -> None:
        source = self._sources[link.source]
        self._resize(link.source, len(source), -1)
        del self._all[link.state][link], source.links[link.state][link]
        if not len(source):
            del self._sources[link.source]

    def _resize(self, name: str, count: int, change: int) -> None:
        """K5. Addresses by their number of connections."""
        here = self._sizes.get(count)
        if here is not None:
            here.pop(name, None)
            if not here:
                del self._sizes[count]
        if count + change:
            self._sizes.setdefault(count + change, {})[name] = None
        if count + change > self._largest or (count == self._largest and count not in self._sizes):
            self._largest = count + change
