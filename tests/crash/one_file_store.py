"""A store in one file, as simple as can be: the in-memory store plus a file of its calls. What proves the oracle and the workloads.

Records are JSON lines in blocks of whole sectors: {length, CRC} then the lines; the CRC continues that of the block before.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

from flintmq.ports import DequeueReason
from tests.support.stored import StoredContent
from tests.twins.memory_store import MemoryStore
from tests.twins.sim_disk import SimDisk

SECTOR = 512
PATH = "/store/log"
# what the variant leaves out or does wrongly
VARIANTS = (
    "no sync",
    "no directory sync",
    "no CRC",
    "told before sync",
    "half a commit",
    "commit before its messages",
    "open transactions live on",
    "forgets the prepared",
    "swaps bodies",
    "keeps deleted queues",
)


class OneFileStore:
    """See module; the methods of ports.Store that the workload uses."""

    def __init__(self, files: SimDisk, variant: str, queues: set[int]) -> None:
        self.files = files
        self.queues = queues
        self.variant = variant
        self.inner = MemoryStore()
        self.buffer: list[list[Any]] = []
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.written = 0  # records in the file
        self.chain = 0
        files.make_dir("/store")
        if "log" in files.list_dir("/store"):
            self.fd = files.open(PATH)
        else:
            self.fd = files.open(PATH, create=True)
            if variant != "no directory sync":
                files.sync_dir("/store")
        self.offset = self._recover()

    def _recover(self) -> int:
        data = self.files.read(self.fd, 1 << 30, 0)
        offset = 0
        while offset + 8 <= len(data):
            length, crc = int.from_bytes(data[offset : offset + 4], "little"), int.from_bytes(data[offset + 4 : offset + 8], "little")
            lines = data[offset + 8 : offset + 8 + length]
            if not length or len(lines) < length or (self.variant != "no CRC" and zlib.crc32(lines, self.chain) != crc):
                break
            self.chain = crc
            for line in lines.decode("utf-8", "replace").splitlines():
                self._replay(json.loads(line))
                self.written += 1
            offset += -(-(8 + length) // SECTOR) * SECTOR
        if self.variant != "open transactions live on":
            for tx, record in list(self.inner._state.transactions.items()):
                if record.state.value == "open" or self.variant == "forgets the prepared":
                    self._do("rollback", tx)
        for queue in set(self.inner._state.queues) - self.queues:
            if self.variant != "keeps deleted queues":
                self._do("drop_queue", queue)
        # what follows the last good block must not be taken for one later
        self.files.write(self.fd, bytes(max(SECTOR, len(data) - offset)), offset)
        if self.variant != "no sync":
            self.files.sync(self.fd)
        self.flush()
        return self.offset_now(offset)

    def offset_now(self, offset: int) -> int:
        return getattr(self, "offset", offset)

    def _replay(self, record: list[Any]) -> None:
        name, *arguments = record
        if name == "content":
            self.inner.append_content(StoredContent(*(base64.b64decode(part) for part in arguments)))
        elif name == "begin":
            self.inner.begin(base64.b64decode(arguments[0]) if arguments[0] else None)
        elif name == "enqueue":
            self.inner.enqueue(*arguments[:3], tx=arguments[3], expires_at_ms=arguments[4])
        elif name == "dequeue":
            self.inner.dequeue(*arguments[:2], DequeueReason.ACK, tx=arguments[2])
        elif name == "commit":
            self.inner.commit(arguments[0], {int(queue): position for queue, position in arguments[1].items()})
        else:
            getattr(self.inner, name)(*arguments)

    def _do(self, *record: Any) -> int:
        self._replay(list(record))
        self.buffer.append(list(record))
        return self.written + len(self.buffer)

    def append_content(self, content: StoredContent) -> int:
        parts = [content.exchange, content.routing_key, content.header, content.body]
        if self.variant == "swaps bodies" and len(content.body) > 2000:
            parts[3] = parts[3][::-1]
        return self._do("content", *(base64.b64encode(part).decode() for part in parts))

    def enqueue(self, queue_id: int, position: int, message_id: int, *, tx: int = 0, expires_at_ms: int = 0) -> int:
        lsn = self._do("enqueue", queue_id, position, message_id, tx, expires_at_ms)
        return 0 if tx else lsn

    def dequeue(self, queue_id: int, position: int, reason: DequeueReason, *, tx: int = 0, **facts: Any) -> int:
        lsn = self._do("dequeue", queue_id, position, tx)
        return 0 if tx else lsn

    def begin(self, xid: bytes | None = None) -> int:
        return self._do("begin", base64.b64encode(xid).decode() if xid else "")

    def prepare(self, tx: int) -> int:
        return self._do("prepare", tx)

    def commit(self, tx: int, first_positions: dict[int, int]) -> int:
        if self.variant == "half a commit":
            record = self.inner._state.transactions[tx]
            if len(record.enqueues) > 1:
                record.enqueues.pop()
        lsn = self._do("commit", tx, {str(queue): position for queue, position in first_positions.items()})
        if self.variant == "commit before its messages":
            self.flush_some(lsn)
        return lsn

    def flush_some(self, lsn: int) -> None:
        """Calls the record durable although nothing was written."""
        self._tell(lsn)

    def rollback(self, tx: int) -> int:
        return self._do("rollback", tx)

    def drop_queue(self, queue_id: int) -> int:
        return self._do("drop_queue", queue_id)

    def on_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        self.waiting.append((lsn, callback))
        self._tell(self.written)

    def _tell(self, upto: int) -> None:
        due = [callback for lsn, callback in self.waiting if lsn <= upto]
        self.waiting = [item for item in self.waiting if item[0] > upto]
        for callback in due:
            callback()

    def flush(self) -> None:
        if not self.buffer:
            return
        lines = "".join(json.dumps(record) + "\n" for record in self.buffer).encode()
        count = len(self.buffer)
        self.buffer.clear()
        self.chain = zlib.crc32(lines, self.chain)
        block = len(lines).to_bytes(4, "little") + self.chain.to_bytes(4, "little") + lines
        if not hasattr(self, "offset"):
            self.offset = self._end()
        if self.variant == "told before sync":
            self.written += count
            self._tell(self.written)
        self.files.write(self.fd, block, self.offset)
        if self.variant != "no sync":
            self.files.sync(self.fd)
        self.offset += -(-len(block) // SECTOR) * SECTOR
        if self.variant != "told before sync":
            self.written += count
            self._tell(self.written)

    def _end(self) -> int:
        data = self.files.read(self.fd, 1 << 30, 0)
        offset = chain = 0
        while offset + 8 <= len(data):
            length, crc = int.from_bytes(data[offset : offset + 4], "little"), int.from_bytes(data[offset + 4 : offset + 8], "little")
            lines = data[offset + 8 : offset + 8 + length]
            if not length or len(lines) < length or (self.variant != "no CRC" and zlib.crc32(lines, chain) != crc):
                break
            chain = crc
            offset += -(-(8 + length) // SECTOR) * SECTOR
        return offset

    def maintain(self) -> None:
        """Nothing to do."""

    def close(self, clean: bool = True) -> None:
        self.flush()
        self.files.close(self.fd)

    def entries(self, queue_id: int) -> Any:
        return self.inner.entries(queue_id)

    def in_doubt(self) -> Any:
        return self.inner.in_doubt()

    def content(self, message_id: int) -> StoredContent:
        return self.inner.content_of(message_id)
