"""The hosts that links may reach: names, addresses and networks that an operator lists.

in: `rabbit.example.com`, `*.example.com`, `10.1.2.3`, `10.0.0.0/8`, `*`. out: yes or no for a host and the address it stands for.

H1  A name that is not listed may be reached at a listed address alone. The address that was asked about is the one to connect to: a name
    that stands for another address a moment later changes nothing.
H2  `*` is not this machine: there, users may have more rights by coming from it (RabbitMQ's loopback_users). Who means it lists it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from flintmq.errors import OperatorError


class HostRules:
    """Args: patterns. Raises: OperatorError 78."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._any = "*" in patterns
        self._names: set[str] = set()
        self._ends: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for pattern in patterns:
            self._add(pattern.lower())

    def _add(self, pattern: str) -> None:
        if pattern == "*":
            return
        try:
            self._networks.append(ipaddress.ip_network(pattern, strict=False))
            return
        except ValueError:
            pass
        name = pattern[2:] if pattern.startswith("*.") else pattern
        if not name or "/" in name or "*" in name or ":" in name:
            raise OperatorError(f"{pattern!r} is no host, address, network like 10.0.0.0/8, *.domain or *", 78)
        if pattern.startswith("*."):
            self._ends.append(pattern[1:])
        else:
            self._names.add(name)

    def allow_name(self, host: str) -> bool:
        """Whether the host may be reached wherever it is."""
        name = host.lower().rstrip(".")
        return name in self._names or any(name.endswith(end) for end in self._ends)

    def allow_address(self, address: str) -> bool:
        """Whether an address may be reached, whatever it is called."""
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if self._any and not (ip.is_loopback or ip.is_unspecified):
            return True
        return any(ip.version == network.version and ip in network for network in self._networks)
