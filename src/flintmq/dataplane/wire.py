"""Frames between broker and Flight service, both ends: one JSON head and one payload of bytes each way.

in: heads (dicts), payloads (bytes-like, or a list of them). out: the same at the other end of a stream socket.

    u32 length of head, u64 length of payload (little endian), head (JSON object, UTF-8), payload

W1  Lengths are checked before anything of that size is allocated. A frame that is not as it must be raises WireError, and the channel
    is closed: nothing behind it can be trusted.
W2  One request is under way on a channel at a time: `call` holds a lock from the first byte sent to the last one received.
This module is imported by the child process, too: nothing of the broker comes with it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from flintmq.config import Limits
from flintmq.errors import FlintError

_LENGTHS = struct.Struct("<IQ")
# buffers that one sendmsg takes (IOV_MAX of Linux is 1,024)
_BUFFERS = 512
# exit code of a service that can't take over the listening socket it was given (EX_PROTOCOL): the broker starts it without one
EXIT_NOT_ADOPTED = 76

Buffer = bytes | bytearray | memoryview
Payload = Buffer | Sequence[Buffer]


class WireError(FlintError):
    """The peer sent what is no frame, or ended in the middle of one."""


class ChannelClosed(FlintError):
    """The peer has closed the channel, or this end has."""


class Refused(FlintError):
    """A call was refused. `code`: a word of docs/DATAPLANE.md; `text`: for people. `str` is `CODE: text`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


def encode_head(head: dict[str, Any]) -> bytes:
    """JSON without spaces. Raises: ValueError, TypeError for what JSON does not know."""
    return json.dumps(head, separators=(",", ":"), allow_nan=False).encode("utf-8", "surrogatepass")


def decode_head(data: Buffer) -> dict[str, Any]:
    """Inverse of `encode_head`. Raises: WireError when it is no JSON object."""
    try:
        head = json.loads(bytes(data).decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"the head of a frame is no JSON: {error}") from None
    if not isinstance(head, dict):
        raise WireError("the head of a frame is no JSON object")
    return head


class Channel:
    """One end of a socket pair.

    Args: sock: a connected stream socket, owned from now on; limits: sizes of heads and payloads (dataplane_head_max, _payload_max).
    Threading: `call` from any thread; `send` and `receive` are for the one thread that serves the channel. `close` from any thread.
    """

    def __init__(self, sock: socket.socket, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.socket = sock
        self._head_max = limits.dataplane_head_max
        self._payload_max = limits.dataplane_payload_max
        self._lock = threading.Lock()
        self._closed = False
        sock.setblocking(True)

    @classmethod
    def inherited(cls, descriptor: int, limits: Limits | None = None) -> Channel:
        """The child's end, by the number of its descriptor; no process that the child starts gets it. Raises: OSError."""
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        return cls(sock, limits)

    @property
    def closed(self) -> bool:
        """True after `close`, or after the first error."""
        return self._closed

    def call(self, head: dict[str, Any], payload: Payload = b"") -> tuple[Any, bytearray]:
        """One request and its answer: (what stands under `ok`, the payload).

        Raises: Refused; ChannelClosed; WireError; ValueError when the request is too large (then nothing was sent).
        """
        with self._lock:
            self.send(head, payload)
            answer, data = self.receive()
        if "ok" in answer:
            return answer["ok"], data
        code, text = answer.get("error"), answer.get("text", "")
        if not isinstance(code, str) or not isinstance(text, str):
            self.close()
            raise WireError("an answer has neither `ok` nor `error`")
        raise Refused(code, text)

    def send(self, head: dict[str, Any], payload: Payload = b"") -> None:
        """One frame. Raises: ValueError when it is larger than allowed; ChannelClosed."""
        encoded = encode_head(head)
        parts = [payload] if isinstance(payload, bytes | bytearray | memoryview) else list(payload)
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        size = sum(len(view) for view in views)
        if len(encoded) > self._head_max or size > self._payload_max:
            raise ValueError(f"a frame of {len(encoded)} and {size} bytes is larger than {self._head_max} and {self._payload_max}")
        self._send_all([memoryview(_LENGTHS.pack(len(encoded), size) + encoded), *views])

    def receive(self) -> tuple[dict[str, Any], bytearray]:
        """The next frame: head and payload. Raises: ChannelClosed when the peer has gone between two frames; WireError."""
        head_size, payload_size = _LENGTHS.unpack(self._receive(_LENGTHS.size, first=True))
        if head_size > self._head_max or payload_size > self._payload_max:
            self.close()
            raise WireError(f"a frame of {head_size} and {payload_size} bytes is larger than {self._head_max} and {self._payload_max}")
        try:
            head = decode_head(self._receive(head_size))
        except WireError:
            self.close()
            raise
        return head, self._receive(payload_size)

    def close(self) -> None:
        """Ends the channel; the peer and whoever waits here are told. Again is no error."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # the peer was faster
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _send_all(self, views: list[memoryview]) -> None:
        index = 0
        try:
            while index < len(views):
                sent = self.socket.sendmsg(views[index : index + _BUFFERS])
                while index < len(views) and sent >= len(views[index]):
                    sent -= len(views[index])
                    index += 1
                if sent:
                    views[index] = views[index][sent:]
        except OSError as error:
            self.close()
            raise ChannelClosed(f"the channel is closed: {error.strerror or error}") from None

    def _receive(self, size: int, first: bool = False) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        received = 0
        while received < size:
            try:
                got = self.socket.recv_into(view[received:])
            except OSError as error:
                self.close()
                raise ChannelClosed(f"the channel is closed: {error.strerror or error}") from None
            if not got:
                self.close()
                if first and received == 0:
                    raise ChannelClosed("the peer has closed the channel")
                raise WireError("the peer went away in the middle of a frame")
            received += got
        return data
