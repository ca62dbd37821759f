"""What the sieve leaves out of a message's headers decides nothing: messages with equal deciding bytes have equal routes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flintmq.protocol.v0_9_1.tables import encode_table
from flintmq.routing.deciding import Deciding
from flintmq.routing.exchange import Binding, HeadersExchange
from flintmq.routing.sieve import deciding_bytes

from .test_exchanges import A, B, Target, fields, modes

ROOM = 4096
message = st.lists(
    st.tuples(
        st.sampled_from(("a", "b", "c", "x-d", "e", "CC")), st.sampled_from((None, 1, 1.0, 2, True, "s", b"s", "t", "u", "", {"s": 1}))
    ),
    max_size=5,
)


def wire(pairs: list[tuple[str, Any]]) -> bytes:
    """A headers table that may have a name several times."""
    return b"".join(encode_table({name: value}) for name, value in pairs)


@given(
    st.lists(st.tuples(modes, fields, st.sampled_from((A, B))), max_size=6),
    st.lists(message, min_size=2, max_size=12),
    st.sampled_from((1, 8, 1000)),
)
def test_equal_deciding_bytes_mean_equal_routes(
    asked: list[tuple[dict[str, Any], dict[str, Any], Target]], messages: list[list[tuple[str, Any]]], most: int
) -> None:
    exchange = HeadersExchange("x")
    for number, (mode, wanted, target) in enumerate(asked):
        exchange.add(Binding(exchange, target, b"%d" % number, {**mode, **wanted}))
    deciding = Deciding(most)
    exchange.deciding(deciding)
    if deciding.too_many:
        return
    routes: dict[bytes, Any] = {}
    for pairs in messages:
        found = deciding_bytes(deciding.names, deciding.others, wire(pairs), ROOM)
        assert found is not None
        route = set(exchange.match(b"", dict(pairs))), [value for name, value in pairs if name == "CC"]
        assert routes.setdefault(found, route) == route


def test_other_headers_and_strings_that_nothing_is_compared_with_leave_nothing_that_differs() -> None:
    exchange = HeadersExchange("x")
    exchange.add(Binding(exchange, A, b"", {"kind": "order", "tenant": "ours"}))
    deciding = Deciding(100)
    exchange.deciding(deciding)
    texts = {
        deciding_bytes(deciding.names, deciding.others, encode_table({"id": number, "kind": "order", "tenant": f"t{number}"}), ROOM)
        for number in range(100)
    }
    assert len(texts) == 1
    ours = deciding_bytes(deciding.names, deciding.others, encode_table({"kind": "order", "tenant": "ours"}), ROOM)
    assert ours not in texts


def test_without_a_sieve_cc_and_bcc_alone_decide() -> None:
    table = {"a": 1, "CC": ["q"], "b": 2, "BCC": ["r"]}
    expected = encode_table({"CC": ["q"], "BCC": ["r"]})
    assert deciding_bytes(None, (), encode_table(table), ROOM) == expected


@given(st.binary(max_size=60), st.integers(8, 40))
def test_malformed_tables_and_too_many_bytes_are_refused(table: bytes, room: int) -> None:
    found = deciding_bytes({b"": None, b"\x00": {b"s"}}, (b"\x00",), table, room)
    assert found is None or len(found) <= room - 8
