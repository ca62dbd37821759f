"""Rows of transactions: what was written is read, keys stand in the order in which they are read, and no damage passes for a part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.shared import batch_rows, layout
from flintmq.shared.transaction_rows import (
    Message,
    TransactionRow,
    applied,
    applied_key,
    applied_numbers,
    applied_of,
    bits,
    is_set,
    joined,
    pack_part,
    part_of,
    pending,
    pending_key,
    pending_of,
    pieces,
    transaction_id,
    transaction_key,
    transaction_of,
    transactions,
    unpack_part,
)

QUEUE = b"00000000000000aa"
NAME = st.binary(max_size=255)
MESSAGES = st.lists(
    st.builds(
        Message,
        NAME,
        NAME,
        st.binary(max_size=100),
        st.binary(max_size=300),
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 2**62),
    ),
    max_size=5,
)
ENDS = st.lists(st.integers(0, 2**64 - 1), max_size=5)
IDS = st.builds(transaction_id, st.text("0123456789abcdef", min_size=16, max_size=16), st.integers(0, 2**48 - 1))


@given(MESSAGES, ENDS, st.integers(1, 50))
def test_a_part_is_read_from_its_pieces_as_it_was_written(messages: list[Message], ends: list[int], size: int) -> None:
    assert unpack_part(b"".join(pieces(pack_part(messages, ends), size))) == (messages, ends)


@given(MESSAGES, ENDS, st.data())
def test_a_part_that_is_cut_or_longer_is_refused(messages: list[Message], ends: list[int], data: st.DataObject) -> None:
    whole = pack_part(messages, ends)
    with pytest.raises(ValueError, match="damaged"):
        unpack_part(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="damaged"):
        unpack_part(whole + b"\0")


@given(IDS, IDS, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_keys_say_their_transaction_and_stand_in_its_ranges_alone(first: bytes, second: bytes, part: int, piece: int) -> None:
    keys = {
        pending_key(QUEUE, first, part, piece): (pending_of, pending),
        applied_key(QUEUE, first, part, piece, 7): (applied_of, applied),
    }
    for key, (of_one, of_all) in keys.items():
        assert transaction_of(key) == first and transaction_of(transaction_key(first)) == first
        begin, end = of_one(QUEUE, first)
        assert begin <= key < end
        begin, end = of_one(QUEUE, second)
        assert (begin <= key < end) == (first == second)
        begin, end = of_all(QUEUE)
        assert begin <= key < end
        begin, end = layout.rows_of(QUEUE)
        assert begin <= key < end
        assert not any(begin <= key < end for begin, end in (layout.kind_of(QUEUE, kind) for kind in (b"s", b"e", b"p", b"t")))
    assert part_of(pending_key(QUEUE, first, part, piece)) == part
    assert applied_numbers(applied_key(QUEUE, first, part, piece, 7)) == (part, piece, 7)


def test_rows_of_transactions_are_none_of_subscriptions() -> None:
    begin, end = batch_rows.subscription_rows()
    key = transaction_key(transaction_id("a" * 16, 1))
    assert not begin <= key < end and transactions()[0] <= key < transactions()[1]


@given(st.integers(0, 2**48 - 2))
def test_transactions_of_a_node_stand_in_their_order(number: int) -> None:
    assert transaction_id("a" * 16, number) < transaction_id("a" * 16, number + 1)


@given(st.lists(st.integers(0, 70), unique=True), st.lists(st.integers(0, 70), unique=True))
def test_bits_are_those_that_were_set(first: list[int], second: list[int]) -> None:
    value = joined(bits(first, 71), bits(second, 71))
    assert [index for index in range(80) if is_set(value, index)] == sorted({*first, *second})


def test_a_row_is_read_as_it_was_written_and_damage_is_named() -> None:
    row = TransactionRow(True, "a", "b", ["q"])
    assert TransactionRow.unpack(row.pack()) == row
    for value in (b"", b"{}", b"[]", row.pack().replace(b"true", b"1")):
        with pytest.raises(ValueError, match="row of a transaction"):
            TransactionRow.unpack(value)
