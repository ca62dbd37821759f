"""One conversation with an LDAP server (RFC 4511): TLS, simple binds, searches; and no more of LDAP than that.

in: what to ask, until when. out: result codes and entries, or LdapError: the server can't say.

W1  A value reaches a filter as an element of its own, never as text of a filter: no value is syntax (RFC 4515 is not needed).
W2  One deadline for all of a conversation, whatever the server does; what it sends is bounded, and each length is checked.
W3  The server's certificate is checked, its name too. Bytes from before TLS are an error, not the first answer within it.
W4  Referrals are not followed.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flintmq.access.secret import Secret

# bytes of an answer: an entry has a name and some names of users
MESSAGE_BYTES_MAX = 65_536
# result codes (RFC 4511, appendix A)
SUCCESS, _SIZE_LIMIT, _NO_SUCH_OBJECT, _INVALID_DN = 0, 4, 32, 34
# the user is there or not, and may not log in with this password
NO = (_NO_SUCH_OBJECT, _INVALID_DN, 48, 49, 53)
BASE, SUBTREE = 0, 2
# asks for no attribute at all
NO_ATTRIBUTES = ("1.1",)
_STARTTLS = b"1.3.6.1.4.1.1466.20037"
# tags
_SEQUENCE, _SET, _INTEGER, _OCTETS, _ENUMERATED, _BOOLEAN = 0x30, 0x31, 0x02, 0x04, 0x0A, 0x01
_BIND, _BOUND, _SEARCH, _ENTRY, _REFERENCE, _DONE, _EXTENDED, _EXTENDED_ANSWER = 0x60, 0x61, 0x63, 0x64, 0x73, 0x65, 0x77, 0x78


class LdapError(Exception):
    """No server can say whether the login is right. `str` is for the log and has no password."""


class TooManyError(LdapError):
    """A search found more entries than it may."""


class Entry(NamedTuple):
    """values: of the attributes that were asked for, by their names in small letters."""

    dn: str
    values: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Server:
    """Where a directory is. tls: from the first byte on."""

    host: str
    port: int
    tls: bool

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


# --- BER ----------------------------------------------------------------------------------------------------------------------


def encode(tag: int, content: bytes) -> bytes:
    """An element of definite length."""
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 128 | len(length))) + length + content


def _integer(value: int, tag: int = _INTEGER) -> bytes:
    return encode(tag, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _text(value: Secret | str, tag: int = _OCTETS) -> bytes:
    return encode(tag, value.encode("utf-8", "surrogatepass"))


def read_length(data: bytes, offset: int) -> tuple[int, int] | None:
    """(length, where the content begins) of the element whose tag is at `offset`; None: more bytes are needed. Raises: LdapError."""
    if len(data) < offset + 2:
        return None
    first = data[offset + 1]
    if first < 128:
        return first, offset + 2
    count = first & 127
    if not 1 <= count <= 4:
        raise LdapError("an answer has a length that LDAP does not have")
    if len(data) < offset + 2 + count:
        return None
    size = int.from_bytes(data[offset + 2 : offset + 2 + count], "big")
    if size > MESSAGE_BYTES_MAX:
        raise LdapError(f"an answer of {size} bytes is too large")
    return size, offset + 2 + count


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element. Raises: LdapError."""
    offset = 0
    while offset < len(data):
        length = read_length(data, offset)
        if length is None or length[1] + length[0] > len(data):
            raise LdapError("an answer is cut short")
        size, start = length
        yield data[offset], data[start : start + size]
        offset = start + size


def _read_entry(content: bytes) -> Entry:
    """A SearchResultEntry. Raises: LdapError."""
    parts = list(elements(content))
    if len(parts) != 2 or parts[0][0] != _OCTETS or parts[1][0] != _SEQUENCE:
        raise LdapError("an entry that can't be read")
    values: dict[str, list[str]] = {}
    try:
        for tag, attribute in elements(parts[1][1]):
            pair = list(elements(attribute))
            if tag != _SEQUENCE or len(pair) != 2 or pair[0][0] != _OCTETS or pair[1][0] != _SET:
                raise LdapError("an entry's attribute that can't be read")
            values[pair[0][1].decode().lower()] = [value.decode() for _, value in elements(pair[1][1])]
        return Entry(parts[0][1].decode(), values)
    except UnicodeDecodeError:
        raise LdapError("an entry that is not UTF-8") from None


# --- the conversation ---------------------------------------------------------------------------------------------------------


class Conversation:
    """A connection to one server. Args: context: for TLS; end_s: monotonic seconds at which all is over.

    Raises: LdapError, of every method.
    """

    def __init__(self, server: Server, context: ssl.SSLContext | None, starttls: bool, end_s: float) -> None:
        self._end_s = end_s
        self._number = 0
        self._data = b""
        self._server = server
        try:
            self._socket = socket.create_connection((server.host, server.port), self._left_s())
        except OSError as error:
            raise self._error(str(error)) from None
        try:
            if context is not None and (server.tls or starttls):
                if not server.tls:
                    code = self._result(self._ask(encode(_EXTENDED, encode(0x80, _STARTTLS))), _EXTENDED_ANSWER)
                    if code != SUCCESS or self._data:
                        raise self._error(f"STARTTLS is refused, result {code}")
                self._secure(context)
        except (OSError, ValueError) as error:
            self.close()
            raise self._error(str(error)) from None
        except BaseException:
            self.close()
            raise

    def _secure(self, context: ssl.SSLContext) -> None:
        """TLS, within the deadline however slowly the server speaks (a time-out of the socket is for each of its pieces)."""
        self._socket.setblocking(False)
        secure = self._socket = context.wrap_socket(self._socket, server_hostname=self._server.host, do_handshake_on_connect=False)
        waits = select.poll()
        while True:
            try:
                secure.do_handshake()
                return
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            waits.register(secure, wanted)
            waits.poll(self._left_s() * 1000)

    def close(self) -> None:
        self._socket.close()

    def bind(self, dn: str, password: Secret | str) -> int:
        """A simple bind: its result code. An empty password would be an anonymous one."""
        if not password:
            raise self._error("a bind without a password")
        request = _integer(3) + _text(dn) + _text(password, 0x80)
        return self._result(self._ask(encode(_BIND, request)), _BOUND)

    def find(self, base: str, attribute: str, value: str, wanted: Sequence[str] = NO_ATTRIBUTES, most: int = 2) -> list[Entry]:
        """The entries below `base` whose attribute has this value. Raises: TooManyError for more than `most`."""
        return self._search(base, SUBTREE, encode(0xA3, _text(attribute) + _text(value)), wanted, most)

    def read(self, dn: str, wanted: Sequence[str]) -> Entry | None:
        """An entry; None: it is not there, or not to be seen."""
        entries = self._search(dn, BASE, _text("objectClass", 0x87), wanted, 1)
        return entries[0] if entries else None

    def _search(self, base: str, scope: int, condition: bytes, wanted: Sequence[str], most: int) -> list[Entry]:
        request = _text(base) + _integer(scope, _ENUMERATED) + _integer(0, _ENUMERATED)
        request += _integer(most + 1) + _integer(max(1, int(self._left_s()))) + encode(_BOOLEAN, b"\x00") + condition
        request += encode(_SEQUENCE, b"".join(map(_text, wanted)))
        self._send(encode(_SEARCH, request))
        entries: list[Entry] = []
        while True:  # ends with the deadline at the latest
            tag, content = self._receive()
            if tag == _ENTRY:
                entries.append(_read_entry(content))
                if len(entries) > most:
                    raise TooManyError(f"{self._server.name}: more than {most} entries below {base!r}")
            elif tag != _REFERENCE:
                code = self._result((tag, content), _DONE)
                if code == _SIZE_LIMIT:
                    raise TooManyError(f"{self._server.name}: more entries below {base!r} than it shows")
                if code not in (SUCCESS, _NO_SUCH_OBJECT, _INVALID_DN):
                    raise self._error(f"the search below {base!r} failed, result {code}")
                return entries

    # --- messages ---------------------------------------------------------------------------------------------------------

    def _error(self, text: str) -> LdapError:
        return LdapError(f"{self._server.name}: {text}")

    def _left_s(self) -> float:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise self._error("no answer in time")
        return left_s

    def _ask(self, request: bytes) -> tuple[int, bytes]:
        self._send(request)
        return self._receive()

    def _send(self, request: bytes) -> None:
        self._number += 1
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(encode(_SEQUENCE, _integer(self._number) + request))
        except OSError as error:
            raise self._error(str(error)) from None

    def _receive(self) -> tuple[int, bytes]:
        """Tag and content of the next answer."""
        while True:
            if self._data[:1] not in (b"", bytes((_SEQUENCE,))):
                raise self._error("an answer that is no LDAP")
            length = read_length(self._data, 0)
            if length is not None and len(self._data) >= length[0] + length[1]:
                break
            try:
                self._socket.settimeout(self._left_s())
                data = self._socket.recv(16_384)
            except OSError as error:
                raise self._error(str(error)) from None
            if not data:
                raise self._error("it hung up")
            self._data += data
        size, start = length
        message, self._data = self._data[start : start + size], self._data[start + size :]
        parts = list(elements(message))
        if len(parts) < 2 or parts[0] != (_INTEGER, _integer(self._number)[2:]):
            raise self._error("an answer to nothing that was asked")
        return parts[1]

    def _result(self, answer: tuple[int, bytes], expected: int) -> int:
        """The code of an LDAPResult."""
        tag, content = answer
        kind, code = next(elements(content), (0, b"")) if tag == expected else (0, b"")
        if kind != _ENUMERATED or not 1 <= len(code) <= 4:
            raise self._error("an answer that can't be read")
        return int.from_bytes(code, "big")
