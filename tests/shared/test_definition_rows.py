"""Rows of definitions: each kind comes back as it was, under a key of its own; what can't be read says so and shows nothing of itself."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Commit
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.ports import BindingRecord, ExchangeRecord, LimitsRecord, ParameterRecord, PermissionRecord, UserRecord, VhostRecord
from flintmq.protocol.v0_9_1.tables import Timestamp
from flintmq.routing.binding import binding_identity
from flintmq.shared.definition_rows import (
    MADE,
    TOPIC,
    DefinitionRow,
    Record,
    SharedQueue,
    all_rows,
    describe,
    has_life,
    key_of,
    key_of_name,
    parents_of,
    rank_of,
    read_pages,
    unpack,
)
from flintmq.shared.queue_rows import QueueRow, queue_key

ODD = "a/\0\udc80é"
TABLE = {"alternate-exchange": "ae", "n": 5, "d": Decimal("1.5"), "t": Timestamp(7), "b": b"\xff", "l": [1, {"x": None}]}
RECORDS: list[Record] = [
    VhostRecord(ODD, "text"),
    UserRecord("u", "$argon2id$secret", ("administrator", "x")),
    LimitsRecord("user", "u", {"max-channels": 5}),
    LimitsRecord("vhost", ODD, {"max-queues": -1}),
    PermissionRecord("u", ODD, ".*", "^a", ""),
    ParameterRecord("policy", ODD, "p", {"pattern": "", "definition": {"max-length": 1}}),
    ParameterRecord(TOPIC, ODD, '["u", "x"]', {"write": "a", "read": "b"}),
    ParameterRecord("global", "", "g", [1, None, "x"]),
    ExchangeRecord(ODD, ODD, "topic", True, True, TABLE),
    BindingRecord(ODD, ODD, "exchange", "y", b"\xff\0", TABLE),
    BindingRecord(ODD, "amq.topic", "queue", "q", b"k", {}),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_row_comes_back_as_it_was_under_a_key_of_its_own(record: Record) -> None:
    row = DefinitionRow(record, "t", "l" if has_life(record) else "", ("p",))
    key = key_of(record)
    begin, end = all_rows()
    assert unpack(key, row.pack()) == row and begin <= key < end
    assert [one for one in RECORDS if key_of(one) == key] == [record]
    assert all(rank_of(parent) < rank_of(key) for parent in parents_of(record))


def test_a_row_of_a_shared_queue_is_read_as_a_definition_with_a_life() -> None:
    row = QueueRow(b"0" * 16, {"x-queue-type": "shared"})
    read = unpack(queue_key(ODD, "q"), row.pack())
    assert (read.record, read.life) == (SharedQueue(ODD, "q", row), "0" * 16)
    assert key_of(read.record) == queue_key(ODD, "q") and rank_of(queue_key(ODD, "q")) < rank_of(key_of(RECORDS[-1]))


def test_the_names_that_verbs_reserve_lead_to_the_keys_of_their_rows() -> None:
    assert key_of_name(ODD, ("exchange", ODD)) == key_of(ExchangeRecord(ODD, ODD, ""))
    assert key_of_name(ODD, ("queue", ODD)) is None
    for record in RECORDS:
        if isinstance(record, BindingRecord):
            names = record.source, record.destination_kind, record.destination, record.routing_key
            assert key_of_name(ODD, binding_identity(*names, record.arguments)) == key_of(record)


def test_bindings_differ_by_all_that_tells_them_apart() -> None:
    base: dict[str, Any] = {
        "vhost": "/", "source": "x", "destination_kind": "queue", "destination": "q", "routing_key": b"k", "arguments": {},
    }  # fmt: skip
    others = {
        "vhost": "v", "source": "y", "destination_kind": "exchange", "destination": "p", "routing_key": b"", "arguments": {"a": 1},
    }  # fmt: skip
    keys = {key_of(BindingRecord(**{**base, name: value})) for name, value in others.items()}
    keys |= {key_of(BindingRecord(**{**base, "arguments": {"a": value}})) for value in (True, 1.0, "1")}
    assert len(keys | {key_of(BindingRecord(**base))}) == 10


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b"\xff", b'{"is":{},"token":"","life":"","of":[]}',
     b'{"is":{"name":5,"description":""},"token":"","life":"","of":[]}',
     b'{"is":{"name":"other","description":"secret"},"token":"","life":"","of":[]}', b"[" * 100_000],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_said_to_be_so_without_its_value(value: bytes) -> None:
    with pytest.raises(ValueError, match="can't be read") as caught:
        unpack(key_of(VhostRecord("v")), value)
    assert "secret" not in str(caught.value)


def test_people_are_told_kind_and_names_and_nothing_else() -> None:
    texts = [describe(record) for record in RECORDS]
    assert len(set(texts)) == len(texts) and not any("secret" in text or "max-" in text for text in texts)


def test_all_rows_are_read_in_pages_within_both_limits() -> None:
    async def run() -> None:
        store = MemoryStore(100)
        engine = MemoryEngine(store, Limits())
        rows = {key_of(VhostRecord(str(number))): DefinitionRow(VhostRecord(str(number)), "t").pack() for number in range(10)}
        await engine.commit(Commit((), {**rows, MADE: b"made", b"c/x": b"", b"e/x": b""}))
        for count, size in ((3, 1 << 20), (100, 1), (100, 1 << 20)):
            pages = [page async for page in read_pages(engine, count, size)]
            assert dict(row for page in pages for row in page) == rows
            assert all(len(page) <= (count if size > 1 else 1) for page in pages)

    asyncio.run(run())
