"""An xid keeps its identity through bytes and text, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.transactions import Condition, TransactionRefused, Xid
from flintmq.transactions.xid import ENCODED_BYTES_MAX

vhosts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
xids = st.builds(Xid, st.integers(0, 0xFFFFFFFE), st.binary(min_size=1, max_size=64), st.binary(max_size=64), vhosts)


@given(xids)
def test_bytes_and_text_give_the_same_xid_back(xid: Xid) -> None:
    assert Xid.decode(xid.encode()) == xid
    assert Xid.parse(str(xid)) == xid
    assert len(xid.encode()) <= ENCODED_BYTES_MAX


@given(xids, xids)
def test_different_xids_have_different_bytes(left: Xid, right: Xid) -> None:
    assert (left == right) == (left.encode() == right.encode()) == (str(left) == str(right))


@pytest.mark.parametrize("field", [{"format": 2}, {"global_id": b"gx"}, {"branch_id": b"bx"}, {"vhost": "x"}])
def test_every_field_counts(field: dict) -> None:
    assert Xid(**{"format": 1, "global_id": b"g", "branch_id": b"b"} | field) != Xid(1, b"g", b"b")


def test_the_border_between_the_ids_counts() -> None:
    assert Xid(1, b"ab", b"c").encode() != Xid(1, b"a", b"bc").encode()
    assert Xid(1, b"a", b"b", "c").encode() != Xid(1, b"a", b"", "bc").encode()


@pytest.mark.parametrize(
    "fields",
    [
        (-1, b"g", b""),
        (0xFFFFFFFF, b"g", b""),
        (1, b"", b"b"),
        (1, b"g" * 65, b""),
        (1, b"g", b"b" * 65),
        (1, b"g", b"", ""),
        (1, b"g", b"", "v" * 256),
        (1, b"g", b"", "\ud800"),
    ],
)
def test_impossible_fields_are_the_clients_mistake(fields: tuple) -> None:
    with pytest.raises(TransactionRefused) as refused:
        Xid(*fields)
    assert refused.value.condition is Condition.COMMAND_INVALID


@given(st.binary(max_size=200))
def test_bytes_are_an_xid_or_an_error(encoded: bytes) -> None:
    try:
        xid = Xid.decode(encoded)
    except ValueError:
        return
    assert xid.encode() == encoded


def test_the_null_xid_in_the_log_is_an_error() -> None:
    assert Xid.decode(bytes.fromhex("fffffffe") + b"\x01\x00g/").format == 0xFFFFFFFE
    with pytest.raises(ValueError):
        Xid.decode(bytes.fromhex("ffffffff") + b"\x01\x00g/")


@given(st.one_of(st.text(max_size=300), st.from_regex(r"[0-9]{1,12}:[0-9a-f ]{0,140}:[0-9a-f]{0,140}@/?", fullmatch=True)))
def test_text_is_an_xid_or_a_refusal(text: str) -> None:
    try:
        xid = Xid.parse(text)
    except TransactionRefused as refused:
        assert refused.condition is Condition.COMMAND_INVALID
        return
    assert Xid.parse(str(xid)) == xid
