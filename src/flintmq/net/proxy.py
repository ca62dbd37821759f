"""The PROXY protocol, versions 1 and 2: a trusted proxy says first whom it speaks for.

in: the first bytes of a connection that came from an address of --proxy-from. out: the client's address, then the bytes behind the header.

P1  The header is a must there: without one a client behind a proxy that was not told to send it could write its own. From elsewhere none is
    read: a PROXY line is then no protocol header of AMQP.
P2  The header has at most Limits.proxy_header_max bytes and Limits.tls_handshake_ms_max to come. No byte of AMQP is looked at before it.
P3  A proxy that is not on this machine can't say that its client is: the address would open what only this machine may use.

Source: the PROXY protocol, versions 1 and 2 (HAProxy).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Sequence
from typing import Any

from flintmq.core.checksum import crc32c_of
from flintmq.errors import OperatorError

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_LINE = b"PROXY "
# bytes of the longest line of version 1, with its end
_LINE_MAX = 107
_HEAD_BYTES = 16
_LOCAL, _PROXY = 0x20, 0x21
# family and transport -> bytes of the addresses, of one address
_TCP = {0x11: (12, 4), 0x21: (36, 16)}
_NO_ADDRESS = {0x00: 0, 0x31: 216}
_CRC32C = 3

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# (host, port) of the client; None: the proxy speaks for itself
OnSource = Callable[[tuple[str, int] | None], None]


class ProxyError(OSError):
    """The bytes are no header of this protocol."""


def networks(texts: Sequence[str], option: str = "--proxy-from") -> tuple[Network, ...]:
    """Addresses and networks of an operator. Args: option: that they are of, for the error. Raises: OperatorError (78)."""
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise OperatorError(f"{option}: {error}") from error


def is_trusted(host: str, trusted: Sequence[Network]) -> bool:
    """Whether a peer's address is one of these."""
    try:
        parsed = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return False
    address = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(address in network for network in trusted)


def parse(data: bytes, most: int) -> tuple[int, tuple[str, int] | None] | None:
    """(bytes of the header, the client's address) at the start of `data`. None: it is not complete. Raises: ProxyError."""
    if data.startswith(_SIGNATURE):
        return _version_2(data, most)
    if data.startswith(_LINE):
        return _version_1(data)
    if _SIGNATURE.startswith(data) or _LINE.startswith(data):
        return None
    raise ProxyError(f"the connection does not begin with a header of the PROXY protocol: {data[:12]!r}")


def _version_1(data: bytes) -> tuple[int, tuple[str, int] | None] | None:
    end = data.find(b"\r\n", 0, _LINE_MAX)
    if end < 0:
        if len(data) >= _LINE_MAX:
            raise ProxyError(f"a line of version 1 has at most {_LINE_MAX} bytes")
        return None
    parts = data[:end].split(b" ")
    if parts[1] == b"UNKNOWN":
        return end + 2, None
    if len(parts) != 6 or parts[1] not in (b"TCP4", b"TCP6"):
        raise ProxyError(f"no line of version 1: {data[:end]!r}")
    try:
        kind: Any = ipaddress.IPv4Address if parts[1] == b"TCP4" else ipaddress.IPv6Address
        source, _ = (kind(part.decode("ascii")) for part in parts[2:4])
        port, _ = (_port(part) for part in parts[4:6])
    except ValueError:
        raise ProxyError(f"no addresses in a line of version 1: {data[:end]!r}") from None
    if getattr(source, "scope_id", None) is not None:
        raise ProxyError("an address of version 1 has no scope")
    return end + 2, (str(source), port)


def _port(text: bytes) -> int:
    if not text.isdigit() or len(text) > 5 or (text[:1] == b"0" and text != b"0") or int(text) > 65535:
        raise ValueError("no port")
    return int(text)


def _version_2(data: bytes, most: int) -> tuple[int, tuple[str, int] | None] | None:
    if len(data) < _HEAD_BYTES:
        return None
    command, family, size = struct.unpack_from("!BBH", data, len(_SIGNATURE))
    if command not in (_LOCAL, _PROXY):
        raise ProxyError(f"version and command {command:#x} are unknown")
    end = _HEAD_BYTES + size
    if end > most:
        raise ProxyError(f"its header has {end} bytes; {most} are taken")
    if len(data) < end:
        return None
    source = None
    if command == _PROXY:
        if family not in _TCP and family not in _NO_ADDRESS:
            raise ProxyError(f"family and transport {family:#x} are not those of a stream")
        needed, width = _TCP.get(family, (_NO_ADDRESS.get(family, 0), 0))
        if size < needed:
            raise ProxyError(f"its addresses have {size} bytes, not {needed}")
        if width:
            raw = data[_HEAD_BYTES : _HEAD_BYTES + width]
            (port,) = struct.unpack_from("!H", data, _HEAD_BYTES + 2 * width)
            source = str(ipaddress.ip_address(raw)), port
        _check_values(data[:end], _HEAD_BYTES + needed)
    return end, source


def _check_values(header: bytes, offset: int) -> None:
    """The values behind the addresses: each ends within the header, and a checksum is right."""
    while offset < len(header):
        if offset + 3 > len(header):
            raise ProxyError("a value of its header is cut off")
        kind, size = struct.unpack_from("!BH", header, offset)
        offset += 3
        if offset + size > len(header):
            raise ProxyError("a value of its header is longer than the header")
        said = int.from_bytes(header[offset : offset + size], "big")
        if kind == _CRC32C and (size != 4 or crc32c_of(header[:offset] + bytes(4) + header[offset + 4 :]) != said):
            raise ProxyError("the checksum of its header is wrong")
        offset += size


class ProxyLayer:
    """Reads the header; everything behind it passes.

    Args: on_source: gets the address once; proxy: address of the proxy; most: bytes of a header; is_local: whether an address is of this
    machine.
    """

    NAME = "PROXY protocol"

    def __init__(self, on_source: OnSource, proxy: str, most: int, is_local: Callable[[str], bool]) -> None:
        self._on_source = on_source
        self._proxy = proxy
        self._most = most
        self._is_local = is_local
        self._data = b""
        self.established = False
        self.eof = False

    @property
    def over(self) -> bool:
        """Whether bytes pass as they are from now on."""
        return self.established

    def certificate(self) -> dict[str, Any]:
        return {}

    def receive(self, data: bytes) -> bytes:
        """Raises: ProxyError."""
        if self.established:
            return data
        self._data += data
        parsed = parse(self._data, self._most)
        if parsed is None:
            return b""
        end, source = parsed
        if source is not None and self._is_local(source[0]) and not self._is_local(self._proxy):
            raise ProxyError(f"{self._proxy} says that its client {source[0]} is on this machine")
        rest, self._data = self._data[end:], b""
        self.established = True
        self._on_source(source)
        return rest

    def send(self, clear: bytes) -> bytes:
        return clear

    def pending(self) -> bytes:
        return b""


class Layers:
    """Two layers as one: what the outer one makes of the socket's bytes goes to the inner one, and back."""

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer = outer
        self._inner = inner

    over = False

    @property
    def NAME(self) -> str:
        return str((self._inner if self._outer.established else self._outer).NAME)

    @property
    def established(self) -> bool:
        return bool(self._outer.established and self._inner.established)

    @property
    def eof(self) -> bool:
        return bool(self._outer.eof or self._inner.eof)

    def certificate(self) -> dict[str, Any]:
        names: dict[str, Any] = self._outer.certificate() or self._inner.certificate()
        return names

    def receive(self, data: bytes) -> bytes:
        clear = self._outer.receive(data)
        passed: bytes = self._inner.receive(clear) if clear else b""
        return passed

    def send(self, clear: bytes) -> bytes:
        sent: bytes = self._outer.send(self._inner.send(clear))
        return sent

    def pending(self) -> bytes:
        inner = self._inner.pending()
        waiting: bytes = self._outer.send(inner) if inner else self._outer.pending()
        return waiting
