"""One container of a log as record batches (see scan.pxd; docs/FORMAT.md, "Reading").

in: a container file, or its bytes. out: record batches of the tables `records` or `log_messages`; what was damaged, torn, incomplete.

I1  Nothing is handed out whose CRC does not match its own LSN. The whole file is read into our memory first, then its header again: a
    container that was recycled meanwhile raises ContainerGone and gives no row.
I2  What does not check below `end` (or below a later block's durable hint) is damage: an error, or counted with PERMISSIVE, where the
    good records of a damaged block are still given. What does not check above it is a torn tail: counted, never given.
I3  The end of a container is believed only when the next one's first block names our last block, or there is no next one to ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import cython
from cython import NULL, address, bint, cast, cclass, declare, gil, nogil, p_char, pointer
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.flintmq.arrow.containers import Containers, view_t
from cython.cimports.flintmq.arrow.records import PUT_DONE, PUT_MORE, PUT_SHORT, R_BODY, RowMaker
from cython.cimports.flintmq.arrow.table import Table, column_t
from cython.cimports.flintmq.arrow.text import M_BODY
from cython.cimports.flintmq.store.log.reader import block_check, block_salvage, block_search
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER, CONTAINER_HEADER, SALVAGE_EFFORT, SECTOR, align8, align_sector, block_begun, block_decode, block_t, record_decode,
    record_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcmp

from flintmq.arrow import schema
from flintmq.store.log.containers import read_header, sequence_of

LOGS = {"messages": 1, "transactions": 2}
STREAMS = {"records": "records", "messages": "log_messages"}
MODES = ("FAILFAST", "PERMISSIVE")
# bytes of bodies in one record batch
BATCH_BYTES = declare(uint64_t, 32 * 1024 * 1024)
# stretches of damage that are told one by one
TOLD_MAX = 1000


class LogDamaged(Exception):
    """A container that was durable once does not check. `lsn`: where."""

    def __init__(self, text: str, lsn: int) -> None:
        super().__init__(text)
        self.lsn = lsn


class ContainerGone(Exception):
    """The container is not there (any more): given back or recycled. Online, only a snapshot keeps containers where they are."""


@cclass
class ContainerScan:
    """Iterator of record batches over one container. After it ended: `records` and `blocks` read, `damage` (texts; PERMISSIVE),
    `torn` (1: a torn tail was left out), `incomplete` (messages whose chunks are missing), `warnings` (texts for all of these).

    Args: see scan_container.
    """

    def __init__(self, path, log, stream, *, columns, body, base, end, mode, rows_max, memory, store_uuid):
        if log not in LOGS or stream not in STREAMS or mode not in MODES:
            raise ValueError(f"log {log!r}, stream {stream!r}, mode {mode!r}: not among {list(LOGS)}, {list(STREAMS)}, {list(MODES)}")
        if stream == "messages" and log != "messages":
            raise ValueError("the stream of messages is in the message log")
        name = STREAMS[stream]
        self.log = log
        self.messages = stream == "messages"
        self.columns = schema.TABLES[name]
        self.wanted = frozenset(column for column, _, _ in schema.select(name, columns))
        self.schema = schema.arrow_schema(name, columns)
        body_max = schema.body_limit(body)
        self.base = base
        self.end_known = end is not None
        self.end = end if end is not None else 0
        self.strict = mode == "FAILFAST"
        self.rows_max = max(1, min(rows_max, 1 << 20))
        self.damage = []
        self.warnings = []
        if isinstance(path, (bytes, bytearray, memoryview)):
            data = bytes(path)
            self.path = ""
            header = read_header(data)
        else:
            data = None
            self.path = os.fspath(path)
            try:
                with open(self.path, "rb") as file:
                    header = read_header(file.read(CONTAINER_HEADER))
            except FileNotFoundError as error:
                raise ContainerGone(f"{self.path} is gone") from error
        number = sequence_of(os.path.basename(self.path)) or 0
        if header is None or not header.known:
            self.ended = True
            self._damaged(0, 0, "the container's header does not check")
            return
        if header.log_id != LOGS[log]:
            raise ValueError(f"{self.path or 'the container'} belongs to another log than {log}")
        if store_uuid is not None and header.store_uuid != store_uuid:
            raise ContainerGone(f"{self.path or 'the container'} belongs to another store")
        self.sequence = header.sequence
        if number and self.sequence != number:
            raise ContainerGone(f"{self.path} holds container {self.sequence} by now")
        if not 0 < self.sequence < 1 << 33:
            raise ValueError(f"{self.path or 'the container'} has the impossible sequence number {self.sequence}")
        size = header.size
        directory = os.path.dirname(os.path.abspath(self.path)) if self.path else ""
        self.containers = Containers(directory, header.store_uuid, LOGS[log], memory, size)
        self.maker = RowMaker(self.containers, self.sequence, stream == "messages", self.wanted, body_max)
        self.start = self.sequence * size
        self.offset = CONTAINER_HEADER
        if data is not None:
            self.containers.give(self.sequence, data.ljust(size, b"\0")[:size])

    def __iter__(self):
        return self

    def __next__(self):
        rows: uint32_t
        table: Table
        if self.ended:
            raise StopIteration
        with self.containers.lock:
            if not self.started:
                self._load()
            table = Table(self.columns, self.wanted, self.schema, self.rows_max)
            rows = self._fill(table)
            self.containers.raise_error()
        if rows == 0:
            raise StopIteration
        return table.finish(rows)

    def _load(self) -> c_int:
        """Reads the whole container, then its header again."""
        header: bytes
        self.view = self.containers.open(self.sequence)
        if self.view == NULL:
            self.ended = True
            self.containers.raise_error()
            raise ContainerGone(f"{self.path} was recycled")
        self.view.pins = 1
        self.containers.load(self.view, 0, self.containers.container_size)
        self.containers.raise_error()
        if self.path:
            try:
                with open(self.path, "rb") as file:
                    header = file.read(CONTAINER_HEADER)
            except FileNotFoundError:
                header = b""
            if len(header) != CONTAINER_HEADER or memcmp(PyBytes_AS_STRING(header), self.view.bytes, CONTAINER_HEADER) != 0:
                self.ended = True
                raise ContainerGone(f"{self.path} was recycled while it was read")
        self.started = True  # not before all of it is there: after a failed read it is read anew
        return 0

    def _damaged(self, lsn: uint64_t, upto: uint64_t, text: str | None) -> c_int:
        """Raises with FAILFAST, else notes it. [lsn, upto): the stretch; 0: all of it."""
        where = self.path or f"container {self.sequence}"
        if lsn:
            where += f": LSN {lsn}" + (f" to {upto}" if upto else "")
        message = f"{where}: {text}"
        if self.strict:
            self.ended = True
            raise LogDamaged(message, lsn)
        if len(self.damage) < TOLD_MAX:
            self.damage.append(message)
            self.warnings.append(message)
        return 0

    def _torn_at(self, lsn: uint64_t) -> None:
        self.torn = 1
        self.warnings.append(f"{self.path or f'container {self.sequence}'}: torn tail at LSN {lsn} left out: it was never durable")

    # --- blocks

    def _next_block(self) -> bint:
        """Finds the next block of the chain in this container; false: there is none."""
        size: uint64_t = self.containers.container_size
        lsn: uint64_t
        block_offset: uint64_t
        hint: uint64_t
        first: uint64_t
        other: block_t
        while self.offset + BLOCK_HEADER <= size:
            lsn = self.start + self.offset
            if self.end_known and lsn >= self.end:
                return False
            if (
                block_decode(self.view.bytes + self.offset, lsn, size - self.offset, self.containers.log, address(self.block))
                and self.block.epoch >= self.epoch
                and (self.last == 0 or self.block.previous == self.last)
            ):
                return True
            # No block continues the chain here: is there a good one further on, and was this place durable?
            first = 0
            hint = 0
            block_offset = self.offset
            while True:
                block_offset = block_search(
                    self.view.bytes, self.start, block_offset, size, size, self.containers.log, self.epoch, address(other)
                )
                if block_offset == size or (self.end_known and other.lsn >= self.end):
                    break
                hint = max(hint, other.durable_hint)
                first = first or block_offset
                block_offset += SECTOR
            if first == 0:
                self._chain_end(lsn)
                return False
            if not self.end_known and hint <= lsn:
                self._torn_at(lsn)
                return False
            self._damaged(
                lsn,
                self.start + first,
                "no commit block where the one before ends" if first != self.offset else "the block names another one as its predecessor",
            )
            self.offset = first
            self.last = 0
        if self.offset < size or self.last:
            self._chain_end(self.start + self.offset)
        return False

    def _chain_end(self, lsn: uint64_t) -> None:
        """No block of this container follows at `lsn`: is that the end of the container?"""
        size: uint64_t = self.containers.container_size
        next_start: uint64_t = self.start + size
        first: uint64_t = next_start + CONTAINER_HEADER
        view: pointer[view_t]
        block: block_t
        written: bint = False
        p: pointer[cython.const[uint8_t]] = self.view.bytes + (lsn - self.start)
        if lsn + BLOCK_HEADER <= next_start:
            written = block_begun(p, lsn)
        if self.end_known and self.end <= next_start:
            if lsn < self.end:
                self._damaged(lsn, self.end, "no commit block, though it was durable")
            return
        view = self.containers.open(self.sequence + 1)
        if (
            view != NULL
            and self.containers.load(view, CONTAINER_HEADER, BLOCK_HEADER)
            and block_decode(view.bytes + CONTAINER_HEADER, first, size - CONTAINER_HEADER, self.containers.log, address(block))
            and block.epoch >= self.epoch
        ):
            if self.last == 0 or block.previous != self.last:
                self._damaged(lsn, next_start, "blocks are missing between this one and the next container's")
            return
        if self.end_known:
            if written or self.last == 0:
                self._damaged(lsn, next_start, "no commit block, though it was durable")
        elif written:
            self._torn_at(lsn)

    def _enter(self) -> bint:
        """Checks the records of the block that was found; false: it is torn, the container ends before it."""
        p: pointer[cython.const[uint8_t]] = self.view.bytes + self.offset
        count: uint32_t = 0
        good: bint
        hint: uint64_t = self.end
        offset: uint64_t
        other: block_t
        size: uint64_t = self.containers.container_size
        with nogil:
            good = block_check(p, address(self.block), address(count)) == self.block.length
        self.salvaging = False
        if not good and not self.end_known:
            offset = align_sector(self.offset + self.block.length)
            while True:
                offset = block_search(self.view.bytes, self.start, offset, size, size, self.containers.log, 0, address(other))
                if offset == size:
                    break
                hint = max(hint, other.durable_hint)
                offset += SECTOR
            if hint <= self.block.lsn:
                self._torn_at(self.block.lsn)
                return False
        if not good:
            self.salvaging = True
            self.effort = SALVAGE_EFFORT * self.block.length
        elif count != self.block.records:
            text = f"the block should hold {self.block.records} records and holds {count}"
            self._damaged(self.block.lsn, self.block.lsn + self.block.length, text)
        self.inside = True
        self.maker.block_us = self.block.time_us
        self.at = BLOCK_HEADER
        self.maker.item = 0
        return True

    def _fill(self, table: Table | None) -> uint32_t:
        """Rows from the next record on, until the table is full or the container has ended."""
        row: uint32_t = 0
        how: c_int = PUT_DONE
        good: uint32_t
        lsn: uint64_t
        record: record_t
        body: pointer[column_t] = table.columns + (M_BODY if self.messages else R_BODY)
        with nogil:
            while row < table.room and body.used < BATCH_BYTES:
                if not self.inside:
                    with gil:
                        if not self._next_block() or not self._enter():
                            self.ended = True
                    if self.ended:
                        break
                if self.at >= self.block.length:
                    self.inside = False
                    self.blocks += 1
                    self.last = self.block.lsn
                    self.epoch = self.block.epoch
                    self.offset = align_sector(self.offset + self.block.length)
                    continue
                lsn = self.block.lsn + self.at
                if not record_decode(
                    self.view.bytes + self.offset + self.at,
                    lsn,
                    self.block.length - self.at,
                    0,
                    self.salvaging and self.maker.item == 0,
                    address(record),
                ):
                    good = block_salvage(self.view.bytes + self.offset, address(self.block), self.at + 8, address(self.effort))
                    with gil:
                        self._damaged(lsn, self.block.lsn + good, "records do not check")
                    self.at = good
                    continue
                if lsn >= self.base and not (self.end_known and lsn >= self.end):
                    how = self.maker.put(table, address(row), address(record))
                    if how == PUT_MORE:
                        break
                    if how == PUT_DONE:
                        self.records += 1
                    else:
                        with gil:
                            self.containers.raise_error()
                            self._unfit(how, lsn, record.type)
                self.at += cast(uint32_t, align8(record.length))
                self.maker.item = 0
        return row

    def _unfit(self, how: c_int, lsn: uint64_t, kind: uint8_t) -> None:
        if how == PUT_SHORT:
            self.incomplete += 1
            limit: uint64_t = self.end if self.end_known else 0
            text = "chunks of the message are missing"
            if limit and lsn + self.containers.container_size < limit and lsn >= self.base:
                self._damaged(lsn, 0, text)
            elif len(self.warnings) < TOLD_MAX:
                self.warnings.append(f"{self.path or f'container {self.sequence}'}: LSN {lsn}: {text}")
        else:
            self._damaged(lsn, 0, f"a record of type {kind} whose fields make no sense")

    # --- for transactions (log.py)

    def report(self, lsn: int, text: str) -> None:
        """Damage that the reader of `tuples` found: as if found here."""
        self._damaged(lsn, 0, text)

    def tuples(self) -> Iterator[list]:
        """Lists of (lsn, type, undo_prev, time_us, own fields), one per block, of the records as `__next__` would read them."""
        rows: list
        with self.containers.lock:
            if self.ended:
                return
            if not self.started:
                self._load()
        while True:
            with self.containers.lock:
                if not self._next_block() or not self._enter():
                    self.ended = True
                    return
                rows = self._tuples_of()
            yield rows

    def _tuples_of(self) -> list:
        record: record_t
        tuples: list = []
        good: uint32_t
        p: pointer[uint8_t] = self.view.bytes + self.offset
        while self.at < self.block.length:
            if not record_decode(
                p + self.at,
                self.block.lsn + self.at,
                self.block.length - self.at,
                self.block.time_us,
                self.salvaging,
                address(record),
            ):
                good = block_salvage(self.view.bytes + self.offset, address(self.block), self.at + 8, address(self.effort))
                self._damaged(self.block.lsn + self.at, self.block.lsn + good, "records do not check")
                self.at = good
                continue
            self.at += cast(uint32_t, align8(record.length))
            if record.lsn >= self.base and not (self.end_known and record.lsn >= self.end):
                self.records += 1
                data = PyBytes_FromStringAndSize(cast(p_char, record.data), record.size)
                tuples.append((record.lsn, record.type, record.undo_prev, record.time_us, data))
        self.inside = False
        self.blocks += 1
        self.last = self.block.lsn
        self.epoch = self.block.epoch
        self.offset = align_sector(self.offset + self.block.length)
        return tuples


def scan_container(
    path: Any,
    *,
    log: str = "messages",
    stream: str = "records",
    columns: Iterable[str] | None = None,
    body: str | None = None,
    base: int = 0,
    end: int | None = None,
    mode: str = "FAILFAST",
    rows_max: int = schema.LOG_ROWS_PER_BATCH,
    memory: int = 0,
    store_uuid: bytes | None = None,
) -> ContainerScan:
    """Record batches of one container: of schema.RECORDS (stream `records`) or schema.LOG_MESSAGES (stream `messages`).

    Args: path: of the file (the next containers beside it are read where a message's chunks go on there), or the container's bytes;
    log: "messages" or "transactions"; columns: names wanted, None all; body: None all of it, "none" (null or empty), "prefix:N";
    base: first LSN given, 0 all that is there; end: LSN below which the log was durable (of a snapshot, or log_ends), None: not known;
    mode: FAILFAST (damage raises) or PERMISSIVE (damage is counted and skipped); rows_max: per batch; memory: bytes of other
    containers held; store_uuid: 16 bytes that the container's header must name.
    Raises: LogDamaged, ContainerGone, OSError; ValueError for a wrong argument.
    """
    return ContainerScan(
        path,
        log,
        stream,
        columns=columns,
        body=body,
        base=base,
        end=end,
        mode=mode,
        rows_max=rows_max,
        memory=memory,
        store_uuid=store_uuid,
    )
