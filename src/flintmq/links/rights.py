"""Rights of a link: the user for whom it acts, and what it may reach. No other module decides that.

in: a link's owner and URIs, users and permissions as they are now. out: why it may not, or what it may.

R1  The owner is the user who set the parameter. It must still be there, and still be one who may set it: a link ends with the rights of
    its owner.
R2  Another host is reached where the operator's list allows it. Without a list an administrator's links reach any host, other users'
    links none.
R3  A URI names files of this machine only when its owner is an administrator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flintmq.access import tags
from flintmq.definitions.change_line import Refused
from flintmq.moves.hosts import HostRules
from flintmq.moves.uri import MASK, Uri
from flintmq.moves.values import read_uris

# members of parameters that have URIs
URIS = {"shovel": ("src-uri", "dest-uri"), "federation-upstream": ("uri",)}
NOT_REACHED = "links of user {user!r} may not reach other hosts: an operator allows hosts by --shovel-host, an administrator reaches any"


def uris_in(component: str, value: Any, vhost: str) -> list[Uri]:
    """The URIs of a parameter; an upstream's without a virtual host means the one of the parameter.

    Raises: UriError, KeyError, TypeError for a value that was kept before values were checked.
    """
    default = "/" if component == "shovel" else vhost
    return [uri for name in URIS.get(component, ()) for uri in read_uris(value[name], default)]


class Rights:
    """Args: broker; hosts: patterns of the operator (moves.hosts)."""

    def __init__(self, broker: Any, hosts: Sequence[str]) -> None:
        self._broker = broker
        self._rules = HostRules(hosts) if hosts else None
        self.hosts = tuple(hosts)

    def _is_administrator(self, owner: str) -> bool:
        record = self._broker.users.get(owner)
        return record is not None and tags.ADMINISTRATOR in record.tags

    def refusal(self, owner: str | None, vhost: str, uris: Sequence[Uri]) -> str | None:
        """Why a link with these URIs may not run now; None: it may. R1, R2, R3."""
        if owner is None:
            return "nobody owns it: set it again"
        record = self._broker.users.get(owner)
        if record is None:
            return f"its owner, user {owner!r}, is deleted: set it again"
        try:
            tags.authorize("parameter.change", record.tags, self._broker.permissions.has_vhost(owner, vhost))
        except tags.NotAuthorised:
            return f"its owner, user {owner!r}, may not set parameters in vhost {vhost!r} any more"
        for uri in uris:
            wrong = self._reaches(owner, uri)
            if wrong is not None:
                return wrong
        return None

    def _reaches(self, owner: str, uri: Uri) -> str | None:
        administrator = self._is_administrator(owner)
        if uri.files and not administrator:
            return "cacertfile, certfile and keyfile are for administrators: they are files of the broker's machine"
        if uri.host is None:
            if uri.user is None and (uri.vhost not in self._broker.vhosts or not self._broker.permissions.has_vhost(owner, uri.vhost)):
                return f'user "{owner}" may not connect to vhost "{uri.vhost}"'
            return None
        return NOT_REACHED.format(user=owner) if self._rules is None and not administrator else None

    def check(self, user: str | None, component: str, value: Any, vhost: str) -> None:
        """Whether a user may set this parameter. Raises: Refused, in RabbitMQ's form."""
        if user is None:
            return
        for uri in uris_in(component, value, vhost):
            wrong = self._reaches(user, uri)
            if wrong is not None:
                raise Refused("bad_request", f"Validation failed\n\n{wrong}\n")
            if uri.password == MASK:
                raise Refused(
                    "bad_request", f"Validation failed\n\nthe password {MASK} stands for one that is not shown: give the password\n"
                )

    def reachable(self, owner: str) -> tuple[str, ...] | None:
        """The patterns of hosts that a link of this owner may reach; None: any."""
        every = self._rules is None or "*" in self.hosts
        return None if every and self._is_administrator(owner) else self.hosts
