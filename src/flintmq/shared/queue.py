"""One shared queue, as one node uses it: enqueue, take, settle, give back, purge. Each call is one transaction of the engine.

in: contents of messages, orders of leases. out: rows of the engine; what was taken.

Q1  A message is ready, leased by one node, or gone; it never is in two of these.
Q2  Ready messages are in the order in which their transactions committed (order "strict"); one that comes back has its old place.
Q3  Each transaction declares that the queue lives and that its node was not declared gone: a node that is late has nothing any more.
Q4  A transaction whose outcome is unknown is made once: its number is a row that it writes, and the next try looks for it.

Threading: one thread at a time uses a SharedQueue.
"""

from __future__ import annotations

import random
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flintmq.config import Limits
from flintmq.kv.engine import Conflict, Engine, EngineError, Transaction, Unavailable, UnknownOutcome, Watch
from flintmq.shared.keys import (
    CHANGED,
    DOOMED,
    FLAG_CHUNKED,
    ID_BYTES,
    META_BYTES,
    Counts,
    Meta,
    QueueKeys,
    after,
    definition,
    owner_row,
    unpack,
)

T = TypeVar("T")
# a message's row: its value, chunks to be written with it, id of its chunks
_Row = tuple[bytes, list[tuple[bytes, bytes]], bytes]
STRICT, RELAXED = "strict", "relaxed"
ALIVE, GONE = b"alive", b"gone"
# bytes of a message's number in its transaction, and of an index of the relaxed order
_NUMBER, _INDEX = 4, 8
# bytes of a row beside its content: key and meta, about
_ROW_BYTES = 96
# chunks that are read, or written ahead, in one transaction
_CHUNKS_AT_ONCE = 32
# rows of a deleted queue that are cleared in one transaction (chunks among them: 6 MB)
_DOOMED_AT_ONCE = 64
# milliseconds for which a transaction is made anew before its caller is told that the engine does not answer
_PATIENCE_MS = 15_000


class Fenced(EngineError):
    """The node was declared gone: its leases went back, and nothing that it says of them counts."""


class QueueGone(EngineError):
    """The queue was deleted, perhaps on another node."""


class Contended(Unavailable):
    """The engine answers, and others were faster at the same rows each time: no reason to leave other queues alone."""


@dataclass(slots=True)
class Taken:
    """A message that this node has a lease of. `content` is None until `load`."""

    order: bytes
    meta: Meta
    content: bytes | None
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class Message:
    """content: what comes out again; expires_at_ms: wall clock, 0: never; level: the higher ones come first, where the queue has levels."""

    content: bytes
    expires_at_ms: int = 0
    level: int = 0


def declare_queue(
    engine: Engine, vhost: str, name: str, order: str = STRICT, anew: bool = False, arguments: bytes = b"", patience_ms: int = _PATIENCE_MS
) -> QueueKeys:
    """The keys of a queue, which is declared when there is none. `anew`: what is there under that name is another one's, and goes;
    arguments: kept with the queue for nodes that learn of it.

    Raises: ValueError when it is there with another order; EngineError.
    """

    def body(transaction: Transaction) -> QueueKeys:
        key = definition(vhost, name)
        life = transaction.get(key)
        if life is not None and anew:
            _end_life(transaction, key, life)
            life = None
        if life is not None:
            keys = QueueKeys(life)
            known = (transaction.get(keys.alive) or b"").partition(b"\0")[0]
            if known != order.encode():
                raise ValueError(f"queue '{name}' is there with order {known.decode()!r}, not {order!r}")
            return keys
        keys = QueueKeys(secrets.token_bytes(ID_BYTES))
        transaction.set(key, keys.life)
        transaction.set(keys.alive, order.encode() + b"\0" + arguments)
        transaction.set(keys.bindings, b"")
        note_change(transaction)
        return keys

    return attempt(engine, body, patience_ms)


def note_change(transaction: Transaction) -> None:
    """Definitions change with this transaction: nodes read them anew. Two who change them do not conflict."""
    transaction.set(CHANGED, secrets.token_bytes(ID_BYTES))


def _end_life(transaction: Transaction, key: bytes, life: bytes) -> None:
    """From this transaction on nobody changes a row of the queue; they are cleared in slices (`clear_doomed`)."""
    keys = QueueKeys(life)
    transaction.clear(key)
    transaction.clear(keys.alive)
    transaction.clear(keys.signal)
    transaction.clear_range(keys.bindings, after(keys.bindings))
    note_change(transaction)
    transaction.set(DOOMED + life, b"")


class NotEmpty(EngineError):
    """The queue was to be deleted only if nothing is ready in it."""


def delete_queue(
    engine: Engine, vhost: str, name: str, life: bytes | None = None, if_empty: bool = False, patience_ms: int = _PATIENCE_MS
) -> bool:
    """Ends a queue's present life; with `life`: only if it is that one. Its messages go with `clear_doomed`. False when it is not there.

    Raises: NotEmpty; EngineError.
    """

    def body(transaction: Transaction) -> bool:
        key = definition(vhost, name)
        known = transaction.get(key)
        if known is None or (life is not None and known != life):
            return False
        keys = QueueKeys(known)
        if if_empty and transaction.range(keys.ready, after(keys.ready), 1):
            raise NotEmpty("not empty")
        _end_life(transaction, key, known)
        return True

    return attempt(engine, body, patience_ms)


def clear_doomed(engine: Engine) -> bool:
    """Clears some rows of a deleted queue. True: there are more. Any node does it, and again what another one began."""

    def body(transaction: Transaction) -> bool:
        doomed = transaction.range(DOOMED, after(DOOMED), 1, snapshot=True)
        if not doomed:
            return False
        prefix = QueueKeys(doomed[0][0][len(DOOMED) :]).prefix
        rows = transaction.range(prefix, after(prefix), _DOOMED_AT_ONCE, snapshot=True)
        if rows:
            transaction.clear_range(prefix, rows[-1][0] + b"\0")
        else:
            transaction.clear(doomed[0][0])
        return True

    return attempt(engine, body)


def is_there(engine: Engine, vhost: str, name: str) -> bool:
    transaction = engine.begin()
    try:
        return transaction.get(definition(vhost, name), snapshot=True) is not None
    finally:
        transaction.close()


def attempt(engine: Engine, body: Callable[[Transaction], T], patience_ms: int = _PATIENCE_MS, limits: Limits | None = None) -> T:
    """Runs a transaction that may happen twice without harm, until it committed.

    Raises: Unavailable when that takes longer than `patience_ms`; what the body raises.
    """
    pause = Pause(limits or Limits(), patience_ms)
    while True:
        transaction = engine.begin()
        try:
            result = body(transaction)
            transaction.commit()
            return result
        except (Conflict, UnknownOutcome) as error:
            pause.wait(error)
        finally:
            transaction.close()


class Pause:
    """Waits between two tries, longer each time, with a random part, so that those who met do not meet again."""

    def __init__(self, limits: Limits, patience_ms: int) -> None:
        self._ms = float(limits.shared_retry_ms)
        self._most_ms = limits.shared_retry_ms_max
        self._until = time.monotonic() + patience_ms / 1000

    def wait(self, error: EngineError) -> None:
        """Raises: Contended after a conflict, Unavailable after anything else, when the patience is over."""
        if time.monotonic() >= self._until:
            kind = Contended if isinstance(error, Conflict) else Unavailable
            raise kind(f"the engine does not take a transaction: {error}") from error
        time.sleep(self._ms * (0.5 + random.random()) / 1000)
        self._ms = min(self._ms * 2, self._most_ms)


class SharedQueue:
    """Args: keys: of `declare_queue`; owner: id of the node in `Owners`; order: STRICT or RELAXED, as declared; patience_ms: of one
    transaction, which is made anew so long; levels: of priority (x-max-priority and one), the same on all nodes; 1: none."""

    def __init__(
        self,
        engine: Engine,
        keys: QueueKeys,
        owner: bytes,
        limits: Limits,
        order: str = STRICT,
        patience_ms: int = _PATIENCE_MS,
        levels: int = 1,
    ) -> None:
        self.engine = engine
        self.keys = keys
        self.owner = owner
        self.counts = Counts()
        self._limits = limits
        self._order = order
        self._patience_ms = patience_ms
        self._levels = levels
        # messages of one transaction: each is two writes, beside a few of the queue's own
        self.batch = max(1, min(limits.shared_batch, (engine.limits.transaction_writes - 8) // 2))
        self._batch_bytes = min(limits.shared_batch_bytes, engine.limits.transaction_bytes // 2)
        self._number = 0
        self._blobs = 0
        self.conflicts = 0  # transactions that were made anew

    # --- transactions -----------------------------------------------------------------------------------------------

    def run(self, body: Callable[[Transaction], tuple[T, bool]]) -> T:
        """Commits a transaction of this node once (Q3, Q4). `body` returns its result and whether it wrote.

        Raises: Fenced, QueueGone: nothing happened; Unavailable: nothing happened; UnknownOutcome: even asking again was no answer.
        """
        self._number += 1
        number = self._number.to_bytes(8, "big")
        pause = Pause(self._limits, self._patience_ms)
        while True:
            transaction = self.engine.begin()
            try:
                self._declare(transaction)
                result, wrote = body(transaction)
                if wrote:
                    transaction.set(self.keys.request(self.owner), number)
                transaction.commit()
                return result
            except Conflict as error:
                self.conflicts += 1
                pause.wait(error)
            except UnknownOutcome as error:
                if self._happened(number, pause, error):
                    return result
                pause.wait(error)
            finally:
                transaction.close()

    def _declare(self, transaction: Transaction) -> None:
        if transaction.get(self.keys.alive) is None:
            raise QueueGone("the queue was deleted")
        if transaction.get(owner_row(self.owner, b"e")) != ALIVE:
            raise Fenced("this node was declared gone by another one")

    def _happened(self, number: bytes, pause: Pause, unknown: UnknownOutcome) -> bool:
        """Whether the request of that number committed. It is no longer on its way (G6), so the answer stays.

        Raises: UnknownOutcome: the node was declared gone, and the row that said it went with what it held.
        """
        while True:
            try:
                transaction = self.engine.begin()
                try:
                    known = transaction.get(self.keys.request(self.owner))
                    is_swept = known is None and transaction.get(owner_row(self.owner, b"e")) != ALIVE
                finally:
                    transaction.close()
            except EngineError:
                try:
                    pause.wait(unknown)
                except Unavailable:
                    raise unknown from None
                continue
            if is_swept:
                raise unknown
            return known == number

    # --- enqueue ----------------------------------------------------------------------------------------------------

    def cut(self, messages: Sequence[Message]) -> int:
        """How many of the first messages go into one transaction; at least one."""
        size = count = rows = 0
        for message in messages[: self.batch]:
            size += len(message.content) + _ROW_BYTES
            rows += 1 + len(message.content) // self._limits.shared_chunk_bytes
            if count and (size > self._batch_bytes or rows > self.batch):
                break
            count += 1
        return count

    def enqueue(self, messages: Sequence[Message], most: int | None = None, most_bytes: int | None = None) -> int:
        """Adds messages behind everything that is there, in one transaction: all or none. `cut` says how many fit.

        A message that fits into no transaction has its chunks written ahead; nobody sees them before the message.

        Args: most, most_bytes: messages, and bytes of contents, that may be ready on all nodes; None: any number. Returns: how many of the
        first ones were added: all, up to the first for which there is no room. Nodes that enqueue at the same time do not see each other,
        so each may add a batch above the limit.
        """
        large = any(len(message.content) > self._limits.shared_inline_bytes for message in messages)
        limited = most is not None or most_bytes is not None
        if large and limited and not _room(self.read_counts(), messages[:1], most, most_bytes):
            return 0  # before chunks are written
        rows = [self._prepare(message) for message in messages]

        def body(transaction: Transaction) -> tuple[int, bool]:
            count = len(rows)
            if limited:
                count = _room(self._all_counts(transaction), messages, most, most_bytes)
            if count:
                self._add(transaction, rows[:count], messages)
            return count, count > 0

        count = self.run(body)
        total = sum(len(message.content) for message in messages[:count])
        self.counts = self.counts.plus(Counts(enqueued=count, enqueued_bytes=total))
        if ahead := [blob for _, chunks, blob in rows[count:] if blob and not chunks]:
            self._drop_ahead(ahead)
        return count

    def _drop_ahead(self, blobs: Sequence[bytes]) -> None:
        """Ends chunks that were written ahead of messages that the limit refused."""

        def body(transaction: Transaction) -> tuple[None, bool]:
            for blob in blobs:
                base = self.keys.blob(blob)
                transaction.clear_range(base, after(base))
                transaction.clear(self.keys.uploads(self.owner) + blob)
            return None, True

        self.run(body)

    def _add(self, transaction: Transaction, rows: Sequence[_Row], messages: Sequence[Message]) -> None:
        first: dict[bytes, int] = {}  # the next index of each level (relaxed)
        total = 0
        for number, (value, chunks, blob) in enumerate(rows):
            total += len(messages[number].content)
            ready = self._of_level(messages[number].level)
            for key, chunk in chunks:
                transaction.set(key, chunk)
            if blob and not chunks:
                transaction.clear(self.keys.uploads(self.owner) + blob)
            if self._order == STRICT:
                transaction.set_stamped(ready, number.to_bytes(_NUMBER, "big"), value)
            else:
                # The seed's key: who enqueues at the same time may have the same index, and another random part.
                index = first.get(ready) or self._next_index(transaction, ready)
                first[ready] = index + 1
                transaction.set(ready + index.to_bytes(_INDEX, "big") + secrets.token_bytes(_INDEX), value)
        if first:
            transaction.set(self.keys.highest(self.owner), (max(first.values()) - 1).to_bytes(_INDEX, "big"))
        transaction.set(self.keys.signal, self.owner + self._number.to_bytes(8, "big"))
        self._count(transaction, Counts(enqueued=len(rows), enqueued_bytes=total))

    def _of_level(self, level: int) -> bytes:
        """What the keys of ready messages of a level begin with: the highest level has the first ones."""
        if self._levels == 1:
            return self.keys.ready
        return self.keys.ready + bytes([0xFF - max(0, min(level, self._levels - 1))])

    def _next_index(self, transaction: Transaction, ready: bytes) -> int:
        """By snapshot reads: two who enqueue at once do not conflict (seed 001). The tail alone does not do: a leased message is not there,
        and when it came back it would stand behind messages enqueued meanwhile."""
        last = transaction.range(ready, after(ready), 1, reverse=True, snapshot=True)
        offset = len(ready)
        tail = int.from_bytes(last[0][0][offset : offset + _INDEX], "big") if last else 0
        return max(tail, self._highest_index(transaction)) + 1

    def _highest_index(self, transaction: Transaction) -> int:
        """Of all nodes. Each writes its own row, which only grows."""
        prefix = self.keys.highest(b"")
        rows = transaction.range(prefix, after(prefix), self._limits.shared_nodes_max, snapshot=True)
        return max((int.from_bytes(value, "big") for _, value in rows), default=0)

    def _prepare(self, message: Message) -> _Row:
        """(value of its row, chunks to be written with it, blob id). Chunks that are too many for that are written here."""
        content, limits = message.content, self._limits
        if len(content) <= limits.shared_inline_bytes:
            return Meta(0, 0, message.expires_at_ms, len(content)).pack() + content, [], b""
        self._blobs += 1
        blob = self.owner + self._blobs.to_bytes(8, "big")
        step = limits.shared_chunk_bytes
        base = self.keys.blob(blob)
        chunks = [
            (base + number.to_bytes(_NUMBER, "big"), content[start : start + step])
            for number, start in enumerate(range(0, len(content), step))
        ]
        value = Meta(FLAG_CHUNKED, 0, message.expires_at_ms, len(content)).pack() + blob
        if len(content) <= self._batch_bytes and len(chunks) <= self.batch:
            return value, chunks, blob
        at_once = max(1, min(_CHUNKS_AT_ONCE, self.batch, self._batch_bytes // step))
        for start in range(0, len(chunks), at_once):
            part = chunks[start : start + at_once]

            def body(transaction: Transaction, part: list[tuple[bytes, bytes]] = part) -> tuple[None, bool]:
                transaction.set(self.keys.uploads(self.owner) + blob, b"")
                for key, chunk in part:
                    transaction.set(key, chunk)
                return None, True

            self.run(body)
        return value, [], blob

    # --- take, settle -----------------------------------------------------------------------------------------------

    def take(self, count: int, size_bytes: int, on_change: Callable[[], None] | None = None) -> tuple[list[Taken], Watch | None]:
        """Leases up to `count` messages from the head, one at least if there is one, `size_bytes` of contents at most.

        Nothing ready: `on_change()` is called when that changes; the watch is the second part of the answer.
        """

        def body(transaction: Transaction) -> tuple[tuple[list[Taken], Watch | None], bool]:
            taken = self._lease_head(transaction, count, size_bytes, self.owner)
            if taken:
                size = sum(one.meta.size for one in taken)
                self._count(transaction, Counts(leased=len(taken), leased_bytes=size))
                return (taken, None), True
            return ([], None if on_change is None else transaction.watch(self.keys.signal, on_change)), False

        taken, watch = self.run(body)
        self.note_taken(taken)
        return taken, watch

    def note_taken(self, taken: Sequence[Taken]) -> None:
        self.counts = self.counts.plus(Counts(leased=len(taken), leased_bytes=sum(one.meta.size for one in taken)))

    def _lease_head(
        self,
        transaction: Transaction,
        count: int,
        size_bytes: int,
        owner: bytes,
        wanted: Callable[[bytes], bool] | None = None,
    ) -> list[Taken]:
        """Only the keys that are taken are declared: neither an enqueue nor who takes others is a conflict. Up to the first row that is not
        `wanted`."""
        prefix, leases = self.keys.ready, self.keys.leases(owner)
        taken: list[Taken] = []
        size = 0
        for key, value in transaction.range(prefix, after(prefix), min(count, self.batch), snapshot=True):
            meta, rest = opened(value)
            size += meta.size
            if (taken and size > size_bytes) or (wanted is not None and not wanted(value)):
                break
            transaction.require(key)
            transaction.clear(key)
            order = key[len(prefix) :]
            transaction.set(leases + order, value)
            taken.append(_taken(order, meta, rest))
        return taken

    def load(self, taken: Taken) -> bytes:
        """The content of a leased message. Raises: Unavailable; ValueError: chunks are missing."""
        if taken.content is not None:
            return taken.content
        base = self.keys.blob(taken.blob)
        parts: list[bytes] = []
        begin = base
        while True:
            transaction = self.engine.begin()
            try:
                rows = transaction.range(begin, after(base), _CHUNKS_AT_ONCE, snapshot=True)
            finally:
                transaction.close()
            parts.extend(value for _, value in rows)
            if len(rows) < _CHUNKS_AT_ONCE:
                break
            begin = rows[-1][0] + b"\0"
        content = b"".join(parts)
        if len(content) != taken.meta.size:
            raise ValueError(f"a message of {taken.meta.size} bytes has chunks of {len(content)} bytes")
        return content

    def settle(self, done: Sequence[Taken]) -> None:
        """Ends leased messages: they are gone. All or none."""
        size = sum(one.meta.size for one in done)

        def body(transaction: Transaction) -> tuple[None, bool]:
            leases = self.keys.leases(self.owner)
            for one in done:
                transaction.clear(leases + one.order)
                if one.blob:
                    base = self.keys.blob(one.blob)
                    transaction.clear_range(base, after(base))
            self._count(transaction, Counts(settled=len(done), leased=-len(done), settled_bytes=size, leased_bytes=-size))
            return None, True

        self.run(body)
        self.counts = self.counts.plus(Counts(settled=len(done), leased=-len(done), settled_bytes=size, leased_bytes=-size))

    def give_back(self, back: Sequence[tuple[Taken, bool]]) -> None:
        """Leased messages are ready again, each at its old place. The second of a pair: a consumer may have seen it."""
        size = sum(one.meta.size for one, _ in back)

        def body(transaction: Transaction) -> tuple[None, bool]:
            leases = self.keys.leases(self.owner)
            for one, delivered in back:
                value = transaction.get(leases + one.order)
                if value is not None:
                    transaction.clear(leases + one.order)
                    transaction.set(self.keys.ready + one.order, one.meta.returned(delivered).pack() + value[META_BYTES:])
            transaction.set(self.keys.signal, self.owner + self._number.to_bytes(8, "big"))
            self._count(transaction, Counts(leased=-len(back), leased_bytes=-size))
            return None, True

        self.run(body)
        self.counts = self.counts.plus(Counts(leased=-len(back), leased_bytes=-size))

    def note_counts(self, counted: Sequence[Taken]) -> None:
        """Leased messages came back to this node and stay here: the engine keeps their counts for the node that has them next."""

        def body(transaction: Transaction) -> tuple[None, bool]:
            leases = self.keys.leases(self.owner)
            for one in counted:
                value = transaction.get(leases + one.order)
                if value is not None:
                    transaction.set(leases + one.order, one.meta.pack() + value[META_BYTES:])
            return None, True

        self.run(body)

    def held(self, limit: int, behind: bytes = b"") -> list[Taken]:
        """Leases of this node as the engine knows them, at most `limit`, those behind an order."""
        prefix = self.keys.leases(self.owner)
        begin = prefix + behind + b"\0" if behind else prefix

        def body(transaction: Transaction) -> tuple[list[Taken], bool]:
            rows = transaction.range(begin, after(prefix), limit, snapshot=True)
            return [_taken(key[len(prefix) :], *opened(value)) for key, value in rows], False

        return self.run(body)

    # --- all of it --------------------------------------------------------------------------------------------------

    def purge_some(self, limit: int) -> int:
        """Ends up to `limit` ready messages; returns how many. 0: nothing is ready."""
        return self._ended(self.run(lambda transaction: self._end_head(transaction, limit)))

    def expire_head(self, now_ms: int) -> int:
        """Ends the ready messages at the head whose time is over, up to the first whose is not; returns how many. now_ms: wall clock."""

        def body(transaction: Transaction) -> tuple[tuple[int, int], bool]:
            if not self._head_is_over(transaction, now_ms):
                return (0, 0), False
            return self._end_head(transaction, self.batch, lambda value: _is_over(value, now_ms))

        return self._ended(self.run(body))

    def drop_over(self, most: int | None, most_bytes: int | None = None) -> int:
        """Ends the ready messages at the head above the limits of all nodes, a batch of them. Returns how many."""

        def body(transaction: Transaction) -> tuple[tuple[int, int], bool]:
            return self._end_head(transaction, self.batch, _excess(self._all_counts(transaction), most, most_bytes))

        return self._ended(self.run(body))

    def _end_head(
        self, transaction: Transaction, count: int, wanted: Callable[[bytes], bool] | None = None
    ) -> tuple[tuple[int, int], bool]:
        """Ends messages at the head, up to the first that is not `wanted`: ((messages, bytes), whether it wrote)."""
        prefix = self.keys.ready
        ended = size = 0
        for key, value in transaction.range(prefix, after(prefix), min(count, self.batch), snapshot=True):
            if wanted is not None and not wanted(value):
                break
            meta, rest = opened(value)
            ended += 1
            size += meta.size
            transaction.require(key)
            transaction.clear(key)
            if meta.flags & FLAG_CHUNKED:
                base = self.keys.blob(rest)
                transaction.clear_range(base, after(base))
        if ended:
            self._count(transaction, Counts(settled=ended, settled_bytes=size))
        return (ended, size), ended > 0

    def _ended(self, ended: tuple[int, int]) -> int:
        self.counts = self.counts.plus(Counts(settled=ended[0], settled_bytes=ended[1]))
        return ended[0]

    def _head_is_over(self, transaction: Transaction, now_ms: int) -> bool:
        prefix = self.keys.ready
        rows = transaction.range(prefix, after(prefix), 1, snapshot=True)
        return bool(rows) and _is_over(rows[0][1], now_ms)

    def take_expired(self, now_ms: int) -> list[Taken]:
        """Leases the ready messages at the head whose time is over, up to the first whose is not. now_ms: wall clock."""

        def body(transaction: Transaction) -> tuple[list[Taken], bool]:
            if not self._head_is_over(transaction, now_ms):
                return [], False
            return self._take_head(transaction, self.batch, lambda value: _is_over(value, now_ms)), True

        return self._noted(self.run(body))

    def take_over(self, most: int | None, most_bytes: int | None = None) -> list[Taken]:
        """Leases the ready messages at the head that are above the limits of all nodes, a batch of them."""

        def body(transaction: Transaction) -> tuple[list[Taken], bool]:
            taken = self._take_head(transaction, self.batch, _excess(self._all_counts(transaction), most, most_bytes))
            return taken, bool(taken)

        return self._noted(self.run(body))

    def _take_head(self, transaction: Transaction, count: int, wanted: Callable[[bytes], bool]) -> list[Taken]:
        taken = self._lease_head(transaction, count, self._batch_bytes, self.owner, wanted)
        self._count(transaction, Counts(leased=len(taken), leased_bytes=sum(one.meta.size for one in taken)))
        return taken

    def _noted(self, taken: list[Taken]) -> list[Taken]:
        self.note_taken(taken)
        return taken

    def read_counts(self) -> Counts:
        """Of all nodes together."""

        def body(transaction: Transaction) -> tuple[Counts, bool]:
            return self._all_counts(transaction), False

        return self.run(body)

    def _all_counts(self, transaction: Transaction) -> Counts:
        total = Counts()
        prefix = self.keys.counts(b"")
        for key, value in transaction.range(prefix, after(prefix), self._limits.shared_nodes_max, snapshot=True):
            total = total.plus(self.counts if key[len(prefix) :] == self.owner else Counts.unpack(value))
        return total

    def _count(self, transaction: Transaction, change: Counts) -> None:
        """Only this node writes its row, so nothing is read, and nobody conflicts."""
        transaction.set(self.keys.counts(self.owner), self.counts.plus(change).pack())


def opened(value: bytes) -> tuple[Meta, bytes]:
    """A row's meta and content. A row that this version can't read is a content that nobody can read: its node puts it aside, and what
    stands behind it is not held up."""
    try:
        return unpack(value)
    except (ValueError, struct.error):
        return Meta(), value


def _room(counts: Counts, messages: Sequence[Message], most: int | None, most_bytes: int | None) -> int:
    """For how many of the first messages there is room."""
    count, size = counts.ready, counts.ready_bytes
    for number, message in enumerate(messages):
        count, size = count + 1, size + len(message.content)
        if (most is not None and count > most) or (most_bytes is not None and size > most_bytes):
            return number
    return len(messages)


def _excess(counts: Counts, most: int | None, most_bytes: int | None) -> Callable[[bytes], bool]:
    """Of the rows at the head, asked one after the other, which are above the limits."""
    count = 0 if most is None else counts.ready - most
    size = 0 if most_bytes is None else counts.ready_bytes - most_bytes

    def is_over(value: bytes) -> bool:
        nonlocal count, size
        over = count > 0 or size > 0
        count, size = count - 1, size - opened(value)[0].size
        return over

    return is_over


def _is_over(value: bytes, now_ms: int) -> bool:
    expires_at_ms = opened(value)[0].expires_at_ms
    return 0 < expires_at_ms <= now_ms


def _taken(order: bytes, meta: Meta, rest: bytes) -> Taken:
    if meta.flags & FLAG_CHUNKED:
        return Taken(order, meta, None, rest)
    return Taken(order, meta, rest)
