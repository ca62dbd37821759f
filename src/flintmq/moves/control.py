"""Messages between the broker and the process that moves messages, both ways: JSON objects, with descriptors beside them.

    u32 length (little endian), JSON object (UTF-8)

in: objects, bytes. out: bytes, objects. A message with the member `fd` has one descriptor, which was sent with its bytes (SCM_RIGHTS).

K1  A length is checked before anything is kept for it. A wrong one raises ControlError, and the channel is of no use any more.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from flintmq.errors import FlintError

# a plan is a parameter's value, which http_json_bytes_max bounds
MESSAGE_BYTES_MAX = 1024 * 1024
_LENGTH = struct.Struct("<I")


class ControlError(FlintError):
    """The other side sent what is no message."""


def encode(message: dict[str, Any]) -> bytes:
    """Raises: ValueError when it is too long."""
    data = json.dumps(message, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(data)} bytes")
    return _LENGTH.pack(len(data)) + data


class Decoder:
    """Bytes in any pieces -> messages."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are whole now. Raises: ControlError."""
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._held)
            if size > MESSAGE_BYTES_MAX:
                raise ControlError(f"a message of {size} bytes")
            end = _LENGTH.size + size
            if len(self._held) < end:
                return
            raw = bytes(self._held[_LENGTH.size : end])
            del self._held[:end]
            try:
                message = json.loads(raw.decode("utf-8", "surrogatepass"))
            except (ValueError, RecursionError) as error:
                raise ControlError(f"a message is no JSON: {error}") from None
            if not isinstance(message, dict):
                raise ControlError("a message is no object")
            yield message
