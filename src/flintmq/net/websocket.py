"""AMQP over WebSocket (RFC 6455, subprotocol `amqp`): the bytes of AMQP in binary messages, cut anywhere.

in: a request to upgrade, then frames of a client. out: the answer, then AMQP's bytes; one binary message for each piece that is sent.

W1  A frame's bytes go on as they come: nothing but a frame's head, and the request, is ever kept. Both have limits.
W2  A page of another site can't log in with what a user of this machine may: a request with an Origin is refused unless the operator
    named it.
W3  Pings are answered at most once in a read, and in `_PONG_S`, so that nobody makes us write what is not read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

SUBPROTOCOL = "amqp"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_END = b"\r\n\r\n"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_CONTROL_BYTES = 125
_PONG_S = 0.05
_NORMAL, _PROTOCOL_ERROR, _UNSUPPORTED = 1000, 1002, 1003


class WebSocketError(OSError):
    """The bytes are no WebSocket of ours. `pending` has the answer."""


class WebSocketLayer:
    """Args: head_max: bytes of the request; origins: of pages that may connect, "*": any; clock: seconds, monotonic."""

    NAME = "WebSocket"

    def __init__(self, head_max: int, origins: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._head_max = head_max
        self._origins = [origin.lower() for origin in origins]
        self._clock = clock
        self._data = b""  # of the request, or of a frame's head
        self._left = 0  # of the frame that is being read
        self._opcode = _BINARY
        self._mask = b""
        self._at = 0  # of the mask
        self._control = b""
        self._in_message = False
        self._out = b""
        self._ponged_s = -_PONG_S
        self.established = False
        self.eof = False
        self.over = False

    def certificate(self) -> dict[str, Any]:
        return {}

    def pending(self) -> bytes:
        waiting, self._out = self._out, b""
        return waiting

    def send(self, clear: bytes) -> bytes:
        return self.pending() + (_frame(_BINARY, clear) if clear else b"")

    def receive(self, data: bytes) -> bytes:
        """Raises: WebSocketError."""
        if not self.established:
            self._data += data
            end = self._data.find(_END, 0, self._head_max)
            if end < 0:
                if len(self._data) >= self._head_max:
                    self._refuse(431, "the request is too long")
                return b""
            head, data = self._data[:end], self._data[end + len(_END) :]
            self._data = b""
            self._upgrade(head)
        return self._frames(data)

    # --- the request ------------------------------------------------------------------------------------------------------

    def _upgrade(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        request = lines[0].split(b" ")
        if len(request) != 3 or request[0] != b"GET" or request[2] != b"HTTP/1.1":
            self._refuse(400, "a GET of HTTP/1.1 is expected")
        fields: dict[str, list[str]] = {}
        for line in lines[1:]:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or not name or name != name.strip():
                self._refuse(400, "a header can't be read")
            fields.setdefault(name.lower(), []).append(value.strip())
        if "websocket" not in _words(fields, "upgrade") or "upgrade" not in _words(fields, "connection"):
            self._refuse(426, "this port speaks AMQP over WebSocket", "upgrade: websocket\r\n")
        if fields.get("sec-websocket-version") != ["13"]:
            self._refuse(426, "version 13 of WebSocket is expected", "sec-websocket-version: 13\r\n")
        (key,) = fields.get("sec-websocket-key", [""])[:1]
        try:
            good = len(base64.b64decode(key, validate=True)) == 16
        except (binascii.Error, ValueError):
            good = False
        if not good or len(fields["sec-websocket-key"]) != 1:
            self._refuse(400, "sec-websocket-key is not one of 16 bytes")
        if SUBPROTOCOL not in _words(fields, "sec-websocket-protocol"):
            self._refuse(400, "the subprotocol 'amqp' is expected")
        origins = fields.get("origin", [])
        if origins and "*" not in self._origins and (len(origins) > 1 or origins[0].lower() not in self._origins):
            self._refuse(403, "pages of this origin may not connect (--websocket-origin)")
        accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
        self._out += (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            f"sec-websocket-accept: {accept}\r\nsec-websocket-protocol: {SUBPROTOCOL}\r\n\r\n"
        ).encode()
        self.established = True

    def _refuse(self, status: int, reason: str, header: str = "") -> None:
        text = f"{reason}\n"
        head = f"HTTP/1.1 {status} Refused\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\n{header}"
        self._out = f"{head}\r\n{text}".encode()
        raise WebSocketError(reason)

    # --- frames -------------------------------------------------------------------------------------------------------------

    def _frames(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        offset = 0
        while not self.eof:
            if self._left == 0 and not self._mask:
                used = self._head(data[offset : offset + 14])
                offset += used
                if not self._mask:
                    break  # the head is not complete
            piece = data[offset : offset + self._left]
            if self._left and not piece:
                break
            offset += len(piece)
            self._left -= len(piece)
            clear = self._unmask(piece)
            if self._opcode >= _CLOSE:
                self._control += clear
            else:
                pieces.append(clear)
            if self._left == 0:
                self._mask = b""
                if self._opcode >= _CLOSE:
                    self._obey()
        return b"".join(pieces)

    def _head(self, data: bytes) -> int:
        """Reads a frame's head, which may come in pieces: how much of `data` it took."""
        kept = len(self._data)
        head = self._data + data
        size = 2 if len(head) < 2 else 6 + {126: 2, 127: 8}.get(head[1] & 0x7F, 0)
        if len(head) >= 2:
            self._check(head[0], head[1])
        if len(head) < size:
            self._data = head
            return len(data)
        self._data = b""
        length = head[1] & 0x7F
        self._left = int.from_bytes(head[2 : size - 4], "big") if length > _CONTROL_BYTES else length
        if self._left >> 63:
            self._fail(_PROTOCOL_ERROR, "a frame has a length below zero")
        self._mask, self._at, self._opcode = head[size - 4 : size], 0, head[0] & 0x0F
        if self._opcode < _CLOSE:
            self._in_message = not head[0] & 0x80
        return size - kept

    def _check(self, first: int, second: int) -> None:
        opcode = first & 0x0F
        if first & 0x70:
            self._fail(_PROTOCOL_ERROR, "a frame has a bit of an extension that was not agreed on")
        if not second & 0x80:
            self._fail(_PROTOCOL_ERROR, "a frame of a client is not masked")
        if opcode == _TEXT:
            self._fail(_UNSUPPORTED, "AMQP comes in binary messages")
        if opcode not in (_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG):
            self._fail(_PROTOCOL_ERROR, f"opcode {opcode} is unknown")
        if opcode >= _CLOSE:
            if second & 0x7F > _CONTROL_BYTES or not first & 0x80:
                self._fail(_PROTOCOL_ERROR, "a control frame is too long, or cut")
        elif (opcode == _CONTINUATION) != self._in_message:
            self._fail(_PROTOCOL_ERROR, "a message begins within another one, or goes on before it began")

    def _unmask(self, piece: bytes) -> bytes:
        if not piece:
            return b""
        mask = self._mask[self._at % 4 :] + self._mask[: self._at % 4]
        self._at += len(piece)
        key = (mask * (len(piece) // 4 + 1))[: len(piece)]
        return (int.from_bytes(piece, "big") ^ int.from_bytes(key, "big")).to_bytes(len(piece), "big")

    def _obey(self) -> None:
        """A control frame is complete."""
        body, self._control = self._control, b""
        if self._opcode == _CLOSE:
            self._out += _frame(_CLOSE, body[:2] or _NORMAL.to_bytes(2, "big"))
            self.eof = True
        elif self._opcode == _PING:
            now = self._clock()
            if now - self._ponged_s >= _PONG_S:
                self._ponged_s = now
                self._out += _frame(_PONG, body)

    def _fail(self, code: int, reason: str) -> None:
        self._out += _frame(_CLOSE, code.to_bytes(2, "big") + reason.encode())
        raise WebSocketError(reason)


def _frame(opcode: int, body: bytes) -> bytes:
    size = len(body)
    if size <= _CONTROL_BYTES:
        return bytes((0x80 | opcode, size)) + body
    if size < 1 << 16:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big") + body
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big") + body


def _words(fields: dict[str, list[str]], name: str) -> list[str]:
    return [word.strip().lower() for value in fields.get(name, ()) for word in value.split(",")]
