"""The reading of an index log at a start (see index_scan.pxd).

in: the containers of the index log, from whoever wrote them. out: the checkpoints in it that may be believed, newest first; what of it
lives.

N1  A checkpoint is believed when it is whole, each run that it names is there and checks, and the message log is the one that it speaks of.
"""

from __future__ import annotations

from collections.abc import Iterator

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, gil, nogil, p_char, p_void, pointer, sizeof, void
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.hash64 import map64_get, map64_put
from cython.cimports.flintmq.store.index_log import IndexLog
from cython.cimports.flintmq.store.log.log import log_died, log_live, log_t
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.record import RECORD_INDEX_RUN, align8, record_t
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.past import Past
from cython.cimports.flintmq.store.vectors import vector_add, vector_free
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memset

from flintmq.errors import StoreError
from flintmq.store.checkpoint import VERSION, Finder, MalformedError, misfit
from flintmq.store.log.containers import INDEX, LogSettings


@cfunc
@nogil
@exceptval(check=False)
def _on_record(context: p_void, record: pointer[record_t]) -> void:
    with gil:
        cast(IndexScan, context)._take(
            record.lsn,
            record.type,
            record.undo_prev,
            PyBytes_FromStringAndSize(cast(p_char, record.data), record.size if record.type != RECORD_INDEX_RUN else 0),
            align8(record.length) if record.size else 0,
        )


@cclass
class IndexScan:
    """The records of an index log. Args: files: file port; directory: of the log; store_uuid. Reads all of it; errors of reading are in
    `refused`, for nothing in it is lost when it can't be read."""

    def __cinit__(self, files, directory, store_uuid):
        memset(address(self.records), 0, sizeof(vector_t))
        self.scan = LogScan(files, directory, INDEX, store_uuid)
        self.finder = Finder()
        self.refused = []
        self._error = None
        self._directory = directory
        try:
            self.scan.run(_on_record, cast(p_void, self))
            if self._error is not None:
                raise self._error
        except StoreError as error:
            self.refused.append(str(error))
            self.finder = Finder()

    def __dealloc__(self):
        vector_free(address(self.records))

    def _take(self, lsn: int, kind: int, undo_prev: int, data: bytes, size: int) -> None:
        record: pointer[index_record_t] = cast(pointer[index_record_t], vector_add(address(self.records), sizeof(index_record_t)))
        if record == NULL:
            self._error = self._error or StoreError("no memory for the runs of the index log")
            return
        record.lsn = lsn
        record.bytes = size
        if kind == RECORD_INDEX_RUN:
            record.name = undo_prev if undo_prev else lsn
        else:
            self.finder.take(lsn, kind, undo_prev, data)

    def _has(self, name: uint64_t) -> bint:
        """Whether the run with this name is there, where it was written first or anew. O(log records), or all of them."""
        records: pointer[index_record_t] = cast(pointer[index_record_t], self.records.data)
        low: uint64_t = 0
        high: uint64_t = self.records.count
        middle: uint64_t
        while low < high:
            middle = (low + high) // 2
            if records[middle].lsn < name:
                low = middle + 1
            else:
                high = middle
        return low < self.records.count and records[low].lsn == name and records[low].name == name and records[low].bytes != 0

    def candidates(self, messages: LogScan) -> Iterator[Past]:
        """Checkpoints that may be believed, newest first. Args: messages: a scan of the message log that read its ends."""
        settings: object = None
        log: ManagedLog
        if self.finder.other_version is not None:
            self.refused.append(f"a checkpoint in {self._directory}: version {self.finder.other_version} of its format, not {VERSION}")
        for checkpoint in reversed(self.finder.whole):
            reason = misfit(checkpoint.history, messages.base, messages.tail, messages.container_size) or _gap(messages, checkpoint)
            if reason is None:
                settings = LogSettings("index", INDEX, self.scan.store_uuid, self.scan.container_size, None)
                log = ManagedLog(self.scan.files, self._directory, settings)
                self._name_moved(log)
                try:
                    past: Past = Past(checkpoint, IndexLog(log))
                except MalformedError as error:
                    reason = str(error)
                else:
                    if all(self._has(run) or _is_moved(log, run) for run in past.runs()):
                        yield past
                        past.reader.close()
                        continue
                    reason = "it names a run that is not there"
            self.refuse(checkpoint, reason)

    def refuse(self, checkpoint: object, reason: str) -> None:
        """Notes why a checkpoint is not believed."""
        self.refused.append(f"checkpoint at LSN {checkpoint.last} of {self._directory}: {reason}")

    def _name_moved(self, log: ManagedLog):
        """Where runs stand that were written anew."""
        i: uint64_t
        records: pointer[index_record_t] = cast(pointer[index_record_t], self.records.data)
        for i in range(self.records.count):
            if (
                records[i].name
                and records[i].name != records[i].lsn
                and not map64_put(address(log.log.moved), records[i].name, records[i].lsn)
            ):
                raise MemoryError("no memory for the runs of the index log")

    def adopt(self, log: pointer[log_t], past: Past) -> bint:
        i: uint64_t
        lsn: uint64_t
        records: pointer[index_record_t] = cast(pointer[index_record_t], self.records.data)
        named: set = set(past.runs())
        parts: set = {*past.checkpoint.places, past.checkpoint.last}
        living: set = set()
        places: dict = {}
        for i in range(self.records.count):
            lsn = records[i].lsn
            if records[i].name in named:
                places[records[i].name] = i  # the last one counts
            elif lsn in parts:
                living.add(i)
        living.update(places.values())
        for number in sorted(living):
            i = number
            log_live(log, records[i].lsn, records[i].bytes)
            if records[i].name and records[i].name != records[i].lsn and not map64_put(address(log.moved), records[i].name, records[i].lsn):
                return False
        for i in range(self.records.count):
            if records[i].bytes and i not in living and not log_died(log, records[i].lsn, records[i].bytes):
                return False
        vector_free(address(self.records))
        return True


@cfunc
def _is_moved(log: ManagedLog, name: uint64_t) -> bint:
    place: uint64_t = 0
    return map64_get(address(log.log.moved), name, address(place))


def _gap(messages: LogScan, checkpoint: object) -> str | None:
    """Which container between the base and the begin of a checkpoint is not there, as text."""
    size = messages.container_size
    there = set(messages.containers) - set(messages.unusable)
    for sequence in range(messages.base // size, (checkpoint.history.begin - 1) // size + 1):
        if sequence not in there:
            return f"container {sequence} of the message log is not there"
    return None
