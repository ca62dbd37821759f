"""The stream of changes of an etcd cluster, for watches; and the compaction of what nobody reads any more.

in: etcd's watch stream below one prefix. out: watches that are told; a compaction now and then.

T1  After a gap (a lost connection, a compaction) all watches are told: one that is told for nothing looks again.
T2  Revisions younger than Limits.kv_etcd_compact_ms stay: a transaction is never that old.
"""

from __future__ import annotations

import threading
import time

from flintmq.config import Limits
from flintmq.guard import caught
from flintmq.kv.engine import EngineError
from flintmq.kv.etcd_client import EtcdClient, Table, decode, encode
from flintmq.kv.watches import Watches

# seconds without a change after which the stream is opened anew, and between two tries when the cluster is away
_IDLE_S = 5.0
_RETRY_S = 0.5


class ChangeStream:
    """Two threads. Args: watched: keys below it, without `namespace`, are followed; revision: from which on."""

    def __init__(self, client: EtcdClient, watches: Watches, namespace: bytes, watched: bytes, revision: int, limits: Limits) -> None:
        self._client = client
        self._watches = watches
        self._namespace = namespace
        self._watched = watched
        self._next = revision + 1
        self._compact_s = limits.kv_etcd_compact_ms / 1000
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, name="flintmq-etcd-watch", daemon=True),
            threading.Thread(target=self._compact, name="flintmq-etcd-compact", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Told to end; the stream itself ends with its next line, or when it was idle for too long."""
        self._stopping.set()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._read_stream()
            except EngineError:
                if time.monotonic() - began < _IDLE_S:  # it did not end for want of changes
                    self._tell_all()
                    self._stopping.wait(_RETRY_S)
            except Exception as error:
                caught("watches of etcd", "the stream", error)
                self._tell_all()
                self._stopping.wait(_RETRY_S)

    def _read_stream(self) -> None:
        prefix = self._namespace + self._watched
        end = prefix.rstrip(b"\xff")
        end = end[:-1] + bytes([end[-1] + 1]) if end else b"\0"
        request = {"create_request": {"key": encode(prefix), "range_end": encode(end), "start_revision": str(self._next)}}
        for line in self._client.stream("/v3/watch", request, _IDLE_S):
            if self._stopping.is_set():
                return
            result: Table = line.get("result", {})
            if result.get("canceled") or "error" in line:
                self._next = int(result.get("compact_revision", 0)) or self._next
                self._tell_all()
                self._stopping.wait(_RETRY_S)
                return
            keys = [decode(event["kv"]["key"])[len(self._namespace) :] for event in result.get("events", [])]
            if keys:
                self._next = int(result["header"]["revision"]) + 1
                self._watches.tell(keys, [])

    def _tell_all(self) -> None:
        self._watches.tell([], [(b"", b"\xff" * 8)])

    def _compact(self) -> None:
        """Each revision stays in etcd until it is compacted, and a queue makes many."""
        before = 0
        while not self._stopping.wait(self._compact_s):
            try:
                answer = self._client.call("/v3/kv/range", {"key": encode(self._namespace), "count_only": True})
                if before:
                    self._client.call("/v3/kv/compaction", {"revision": str(before)})
                before = int(answer["header"]["revision"])
            except EngineError:
                continue  # another node has compacted, or the cluster is away
