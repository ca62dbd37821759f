"""The vhosts of a node.

in: names from connection.open and management. out: VirtualHost objects. "/" always exists.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import Definitions, VhostRecord
from flintmq.vhost.virtual_host import VirtualHost


class VhostRegistry:
    """Args: definitions; make: builds a VirtualHost for a name (sets its hooks; must not call `restore`)."""

    def __init__(self, definitions: Definitions, make: Callable[[str], VirtualHost]) -> None:
        self._definitions = definitions
        self._make = make
        self._lock = threading.Lock()
        self._vhosts: dict[str, VirtualHost] = {}

    def restore(self) -> None:
        """Makes every vhost that Definitions holds, with its contents."""
        for record in self._definitions.load_vhosts():
            vhost = self._make(record.name)
            vhost.restore()
            self._vhosts[record.name] = vhost

    def get(self, name: str) -> VirtualHost:
        """Raises: PeerError 530 `vhost x not found`."""
        found = self._vhosts.get(name)
        if found is None:
            raise PeerError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
        return found

    def add(self, name: str, description: str = "") -> VirtualHost:
        """Creates a vhost, or returns the one that is there."""
        with self._lock:
            known = self._vhosts.get(name)
            if known is None:
                self._definitions.save_vhost(VhostRecord(name, description))
                known = self._vhosts[name] = self._make(name)
            return known

    def __iter__(self) -> Iterator[VirtualHost]:
        return iter(list(self._vhosts.values()))
