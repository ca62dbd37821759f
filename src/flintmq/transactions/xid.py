"""The name of a distributed transaction branch: X/Open's xid as AMQP 0-10 carries it (struct dtx.xid).

in: three fields from a client, the store's bytes, or the text an operator typed. out: an immutable, hashable value.

I1  Two xids are the same branch only if all three fields are equal; the format id counts (leaving it out makes strangers meet).
I2  decode(encode(x)) == x, parse(str(x)) == x; different xids have different bytes and different texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from flintmq.transactions.errors import Condition, TransactionRefused

GLOBAL_ID_BYTES_MAX = 64  # X/Open MAXGTRIDSIZE
BRANCH_ID_BYTES_MAX = 64  # X/Open MAXBQUALSIZE
FORMAT_MAX = 0xFFFFFFFE  # X/Open's -1 is the null xid: it names nothing
ENCODED_BYTES_MAX = 4 + 1 + GLOBAL_ID_BYTES_MAX + BRANCH_ID_BYTES_MAX


@dataclass(frozen=True, slots=True, order=True)
class Xid:
    """`format`: 0 to FORMAT_MAX; `global_id`: 1 to 64 bytes; `branch_id`: 0 to 64 bytes.

    Raises: TransactionRefused (COMMAND_INVALID) for anything else: the fields come from clients.
    """

    format: int
    global_id: bytes
    branch_id: bytes = b""

    def __post_init__(self) -> None:
        if not 0 <= self.format <= FORMAT_MAX:
            raise TransactionRefused(Condition.COMMAND_INVALID, f"xid: format {self.format} is not within 0 and {FORMAT_MAX}")
        if not 1 <= len(self.global_id) <= GLOBAL_ID_BYTES_MAX:
            raise TransactionRefused(Condition.COMMAND_INVALID, f"xid: a global id has 1 to {GLOBAL_ID_BYTES_MAX} bytes")
        if len(self.branch_id) > BRANCH_ID_BYTES_MAX:
            raise TransactionRefused(Condition.COMMAND_INVALID, f"xid: a branch id has at most {BRANCH_ID_BYTES_MAX} bytes")

    def encode(self) -> bytes:
        """The store's xid: u32 format (big endian), u8 length of the global id, global id, branch id. At most 133 bytes."""
        return self.format.to_bytes(4, "big") + bytes((len(self.global_id),)) + self.global_id + self.branch_id

    @classmethod
    def decode(cls, encoded: bytes) -> Xid:
        """Inverse of `encode`. Raises: ValueError when these bytes were not made by it."""
        length = encoded[4] if len(encoded) > 5 else 0
        if not 1 <= length <= GLOBAL_ID_BYTES_MAX or not 5 + length <= len(encoded) <= 5 + length + BRANCH_ID_BYTES_MAX:
            raise ValueError(f"not an encoded xid: {encoded.hex()}")
        number = int.from_bytes(encoded[:4], "big")
        if number > FORMAT_MAX:
            raise ValueError(f"not an encoded xid: {encoded.hex()}")
        return cls(number, bytes(encoded[5 : 5 + length]), bytes(encoded[5 + length :]))

    def __str__(self) -> str:
        """For operators, logs and `parse`: `format:global id in hex:branch id in hex`."""
        return f"{self.format}:{self.global_id.hex()}:{self.branch_id.hex()}"

    @classmethod
    def parse(cls, text: str) -> Xid:
        """Inverse of `str`. Raises: TransactionRefused (COMMAND_INVALID)."""
        parts = text.split(":")
        if len(text) > 16 + 2 * ENCODED_BYTES_MAX or len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
            raise TransactionRefused(Condition.COMMAND_INVALID, "xid: expected format:global:branch, the last two in hex")
        try:
            return cls(int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2]))
        except ValueError:
            raise TransactionRefused(Condition.COMMAND_INVALID, "xid: expected format:global:branch, the last two in hex") from None
