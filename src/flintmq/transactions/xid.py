"""The name of a distributed transaction branch: X/Open's xid as AMQP 0-10 carries it (struct dtx.xid), within its virtual host.

in: three fields from a client and the vhost of its connection, the store's bytes, or the text an operator typed. out: an immutable,
hashable value.

I1  Two xids are the same branch only if all fields are equal; the format id counts (leaving it out makes strangers meet), and so
    does the vhost: clients of one cannot name, end or see the transactions of another.
I2  decode(encode(x)) == x, parse(str(x)) == x; different xids have different bytes and different texts.
"""

from __future__ import annotations

from flintmq.slotted import slotted
from flintmq.transactions.xa_status import Condition, TransactionRefused

GLOBAL_ID_BYTES_MAX = 64  # X/Open MAXGTRIDSIZE
BRANCH_ID_BYTES_MAX = 64  # X/Open MAXBQUALSIZE
FORMAT_MAX = 0xFFFFFFFE  # X/Open's -1 is the null xid: it names nothing
VHOST_BYTES_MAX = 255  # a shortstr
_FIXED_BYTES = 6
ENCODED_BYTES_MAX = _FIXED_BYTES + GLOBAL_ID_BYTES_MAX + BRANCH_ID_BYTES_MAX + VHOST_BYTES_MAX
_TEXT_EXPECTED = "xid: expected format:global:branch@vhost, the ids in hex"


@slotted(frozen=True, order=True)
class Xid:
    """`format`: 0 to FORMAT_MAX; `global_id`: 1 to 64 bytes; `branch_id`: 0 to 64 bytes; `vhost`: 1 to 255 bytes of UTF-8.

    Raises: TransactionRefused (COMMAND_INVALID) for anything else: the fields come from clients.
    """

    format: int
    global_id: bytes
    branch_id: bytes = b""
    vhost: str = "/"

    def __post_init__(self) -> None:
        if not 0 <= self.format <= FORMAT_MAX:
            raise TransactionRefused(Condition.COMMAND_INVALID, f"xid: format {self.format} is not within 0 and {FORMAT_MAX}")
        if not 1 <= len(self.global_id) <= GLOBAL_ID_BYTES_MAX:
            raise TransactionRefused(Condition.COMMAND_INVALID, f"xid: a global id has 1 to {GLOBAL_ID_BYTES_MAX} bytes")
        if len(self.branch_id) > BRANCH_ID_BYTES_MAX:
            raise TransactionRefused(Condition.COMMAND_INVALID, f"xid: a branch id has at most {BRANCH_ID_BYTES_MAX} bytes")
        try:
            fits = 1 <= len(self.vhost.encode()) <= VHOST_BYTES_MAX
        except UnicodeEncodeError:  # a lone surrogate, from an operator's terminal
            fits = False
        if not fits:
            raise TransactionRefused(Condition.COMMAND_INVALID, f"xid: a vhost has 1 to {VHOST_BYTES_MAX} bytes of UTF-8")

    def encode(self) -> bytes:
        """The store's xid: u32 format (big endian), u8 lengths of both ids, global id, branch id, vhost. At most ENCODED_BYTES_MAX."""
        head = self.format.to_bytes(4, "big") + bytes((len(self.global_id), len(self.branch_id)))
        return head + self.global_id + self.branch_id + self.vhost.encode()

    @classmethod
    def decode(cls, encoded: bytes) -> Xid:
        """Inverse of `encode`. Raises: ValueError when these bytes were not made by it."""
        if len(encoded) < _FIXED_BYTES:
            raise ValueError(f"not an encoded xid: {encoded.hex()}")
        branch_at = _FIXED_BYTES + encoded[4]
        vhost_at = branch_at + encoded[5]
        global_id, branch_id = bytes(encoded[_FIXED_BYTES:branch_at]), bytes(encoded[branch_at:vhost_at])
        try:  # an id that is cut off leaves no vhost, and that is refused
            return cls(int.from_bytes(encoded[:4], "big"), global_id, branch_id, encoded[vhost_at:].decode())
        except (TransactionRefused, UnicodeDecodeError):
            raise ValueError(f"not an encoded xid: {encoded.hex()}") from None

    def __str__(self) -> str:
        """For operators, logs and `parse`: `format:global id in hex:branch id in hex@vhost`."""
        return f"{self.format}:{self.global_id.hex()}:{self.branch_id.hex()}@{self.vhost}"

    @classmethod
    def parse(cls, text: str) -> Xid:
        """Inverse of `str`. Raises: TransactionRefused (COMMAND_INVALID)."""
        ids, _, vhost = text.partition("@")
        parts = ids.split(":")
        if len(ids) > 16 + 2 * ENCODED_BYTES_MAX or len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
            raise TransactionRefused(Condition.COMMAND_INVALID, _TEXT_EXPECTED)
        try:
            fields = int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2])
        except ValueError:
            raise TransactionRefused(Condition.COMMAND_INVALID, _TEXT_EXPECTED) from None
        return cls(*fields, vhost)
