"""Selectors: what the grammar takes and refuses, and a model in Python that must agree on random selectors and messages."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.config import Limits
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.selectors.grammar import SelectorError, parse

LIMITS = Limits()


def selects(text: str, headers: dict[str, Any] | None = None, **properties: Any) -> bool:
    if headers is not None:
        properties["headers"] = headers
    return parse(text, LIMITS).selects(b"exchange", b"a.key", encode_properties(0, properties))[0]


HEADERS = {"a": 1, "f": 2.5, "s": "foo", "u": "größe", "t": True, "list": [1], "none": None}


@pytest.mark.parametrize(
    "text",
    [
        "a = 1",
        "A = 1 OR a = 1",  # names are of one case, words of any
        "not a = 2 and A is null",
        "NOT s LIKE 'b%'",  # QPID-8656
        "NOT (s LIKE 'f%') OR a = 1",
        "a = 1 AND s = 'foo' AND t AND f > 2",  # QPID-8674
        "a = 1 AND NOT s LIKE 'b%' AND f < 3 AND t = TRUE",
        "s NOT LIKE 'b%' AND s NOT IN ('b', 'c') AND a NOT BETWEEN 2 AND 3",
        "a BETWEEN -1 AND 1 AND a IN (7, 1)",
        "s LIKE 'f__' AND s LIKE '%' AND s LIKE '%o' AND s LIKE 'f%o%' AND s LIKE 'foo'",
        "u LIKE 'gr__e' AND u LIKE 'gr%e' AND NOT u LIKE 'gr___e'",  # a character is one, whatever its octets
        "'it''s' = 'it''s'",
        "s LIKE 'f!oo' ESCAPE '!' AND NOT s LIKE 'f!_o' ESCAPE '!'",
        "a + 1.5 = f AND 7 % 4 = 3 AND 7 / 2 = 3 AND -a < 0 AND +a > 0",
        "0x1F = 31 AND 017 = 15 AND 7L = 7 AND 1.5E2 = 150 AND .5 = 5e-1 AND 2.5f = f",
        "-9223372036854775808 < -9223372036854775807",
        '"a" = 1 AND "no such" IS NULL',
        "a /* one */ = -- to the end\n 1",
        "missing IS NULL AND list IS NULL AND none IS NULL AND a IS NOT NULL",
        "a = 1.0 AND t <> FALSE",
        "(missing = 1 OR a = 1) AND NOT (missing = 1 AND a = 2)",
    ],
)
def test_true(text: str) -> None:
    assert selects(text, HEADERS)


@pytest.mark.parametrize(
    "text",
    [
        "missing = 1",
        "NOT missing = 1",  # unknown stays unknown
        "missing <> 1 OR missing = 1",
        "missing LIKE '%' OR missing NOT LIKE '%'",
        "missing BETWEEN 1 AND 2 OR missing NOT BETWEEN 1 AND 2 OR missing IN (1) OR missing NOT IN (1)",
        "s <> 5 OR s = 5",  # kinds that are not compared: false
        "a / 0 = 1 OR NOT a / 0 = 1 OR a % 0 = 1",
        "s + 1 = 1 OR t > 0",
        "a",  # a number is no condition
        "a AND t OR NOT a",
        "s LIKE 'FOO'",
    ],
)
def test_not_true(text: str) -> None:
    assert not selects(text, HEADERS)


def test_properties() -> None:
    properties = {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "9",
        "message_id": "m",
        "timestamp": 12,
        "type": "kind",
        "user_id": "guest",
        "app_id": "app",
    }
    for text in (
        "JMSPriority = 7 AND JMSDeliveryMode = 'PERSISTENT' AND JMSMessageID = 'm' AND JMSTimestamp = 12000",
        "JMSCorrelationID = 'c' AND JMSType = 'kind' AND JMSReplyTo = 'r' AND JMSXUserID = 'guest'",
        "amqp.content_type = 'text/plain' AND amqp.delivery_mode = 2 AND amqp.priority = 7 AND amqp.timestamp = 12",
        "amqp.app_id = 'app' AND amqp.expiration = '9' AND amqp.exchange = 'exchange' AND amqp.routing_key LIKE 'a.%'",
        "amqp.content_encoding IS NULL AND JMSXGroupID = 'g' AND amqp.user_id LIKE 'g_est'",
    ):
        assert selects(text, {"JMSXGroupID": "g"}, **properties), text
    assert selects("JMSPriority = 4 AND amqp.priority IS NULL AND JMSDeliveryMode = 'NON_PERSISTENT' AND JMSType IS NULL")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected, its end found"),
        ("a =", "expected, its end found"),
        ("5", "has to be a condition"),
        ("'x' AND a = 1", "a text can't be an operand of AND"),
        ("a = 'x", "the quote at 4 has no end"),
        ("a = 1 /* x", "the comment at 6 has no end"),
        ("a = 9223372036854775808", "more than 64 bits"),
        ("a = 0xFFFFFFFFFFFFFFFFFFFF", "more than 64 bits"),
        ("a = 09", "no number at 4"),
        ("a = 1x", "goes on with 'x'"),
        ("a = 1e", "has no exponent"),
        ("a LIKE b", "a pattern in quotes expected"),
        ("a LIKE 'x' ESCAPE 'xy'", "ESCAPE takes one character"),
        ("a LIKE 'x!' ESCAPE '!'", "nothing comes behind the ESCAPE character"),
        ("a IN (b)", "IN takes texts and numbers"),
        ("a IN ()", "expected, ')' at 6 found"),
        ("a < 'x'", "a text can't be an operand of < and >"),
        ("1 = 'a'", "never equal"),
        ("a = 1 b", "'b' at 6 found"),
        ("a IS 1", "'NULL' expected"),
        ("a ; b", "begins nothing that a selector has"),
        ("JMSRedelivered", "nothing that a selector can ask for"),
        ("amqp.secret = 1", "there is no property"),
        ("(" * 50 + "t" + ")" * 50, "more than 48 levels deep"),
        ("NOT " * 50 + "t", "more than 48 levels deep"),
        ("- " * 50 + "1 = 1", "levels deep"),
        (" OR ".join(["t"] * 600), "more than 1024 words and signs"),
        (" OR ".join(f"n{i}" for i in range(65)), "more than 64 different names"),
        ("a = '" + "x" * 8_200 + "'", "bytes are more than the 8192"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(SelectorError) as error:
        parse(text, LIMITS)
    assert reason in str(error.value)


def test_a_run_has_a_bound_and_a_message_beyond_it_is_not_selected() -> None:
    """A pattern that makes a matcher go back again and again, and a header with very many fields, cost no more than their steps."""
    selector = parse("s LIKE '%aaaaaaaaaaaaaaaaaaaab%aaaaaaaaaaaaaaaaaaab%c' OR TRUE", LIMITS)
    header = encode_properties(0, {"headers": {"s": "a" * 60_000}})
    assert selector.selects(b"", b"", header) == (False, 0)
    many = encode_properties(0, {"headers": {f"h{i}": 1 for i in range(900)} | {"s": "c"}})
    assert selector.selects(b"", b"", many, 500) == (False, 0)
    assert selector.selects(b"", b"", many)[0]


def test_no_header_is_read_beyond_its_end() -> None:
    """Each cut and each changed octet of a header: an answer, and under AddressSanitizer no report."""
    selector = parse("a = 1 OR s LIKE 'f%' OR JMSType = 'x' OR JMSTimestamp > 1 OR amqp.exchange = 'e'", LIMITS)
    header = encode_properties(0, {"content_type": "t", "headers": HEADERS, "priority": 3, "timestamp": 1, "type": "x"})
    for size in range(len(header)):
        selector.selects(b"", b"", header[:size])
        for octet in (0, 0x7F, 0x80, 0xFF):
            selector.selects(b"", b"", header[:size] + bytes([octet]) + header[size + 1 :])


# --- the model ----------------------------------------------------------------------------------------------------------------

Tree = tuple[Any, ...]
names = st.sampled_from(["a", "b", "s", "t", "x"])
numbers = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 1.0, -2.5, 2**62, 1 - 2**63, 2**63 - 1]))
texts = st.text("ab%_é", max_size=4)
number_trees: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(st.tuples(st.just("name"), names), st.tuples(st.just("number"), numbers)),
    lambda inner: st.one_of(
        st.tuples(st.just("calc"), st.sampled_from("+-*/%"), inner, inner),
        st.tuples(st.just("minus"), inner),
    ),
    max_leaves=4,
)
leaves: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), number_trees, number_trees),
    st.tuples(st.just("same"), st.sampled_from(["=", "<>"]), names, texts),
    st.tuples(st.just("like"), names, texts, st.booleans()),
    st.tuples(st.just("in"), names, st.lists(st.one_of(texts, st.integers(-3, 3)), min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("between"), number_trees, number_trees, number_trees, st.booleans()),
    st.tuples(st.just("null"), names, st.booleans()),
    st.tuples(st.just("truth"), names),
)
trees: st.SearchStrategy[Tree] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4)),
        st.tuples(st.just("NOT"), inner),
    ),
    max_leaves=8,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Tree) -> str:
    """The tree as text, with brackets only where the grammar needs them for AND, OR and NOT."""
    match tree:
        case ("name", name) | ("truth", name):
            return str(name)
        case ("number", value):
            return repr(value) if value >= 0 else f"({value!r})"
        case ("calc", op, left, right):
            return f"({written(left)} {op} {written(right)})"
        case ("minus", inner):
            return f"(- {written(inner)})"
        case ("compare", op, left, right):
            return f"{written(left)} {op} {written(right)}"
        case ("same", op, name, text):
            return f"{name} {op} {quoted(text)}"
        case ("like", name, text, negated):
            return f"{name} {'NOT ' if negated else ''}LIKE {quoted(text)}"
        case ("in", name, values, negated):
            some = ", ".join(quoted(value) if isinstance(value, str) else str(value) for value in values)
            return f"{name} {'NOT ' if negated else ''}IN ({some})"
        case ("between", value, low, high, negated):
            return f"{written(value)} {'NOT ' if negated else ''}BETWEEN {written(low)} AND {written(high)}"
        case ("null", name, negated):
            return f"{name} IS {'NOT ' if negated else ''}NULL"
        case ("NOT", inner):
            return f"NOT {'(' if inner[0] in ('AND', 'OR') else ''}{written(inner)}{')' if inner[0] in ('AND', 'OR') else ''}"
        case (word, parts):
            return f" {word} ".join(f"({written(part)})" if part[0] == "OR" else written(part) for part in parts)
    raise AssertionError(tree)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def calculated(op: str, a: Any, b: Any) -> Any:
    if not is_number(a) or not is_number(b):
        return None
    if op in "/%" and b == 0:
        return None
    exact = isinstance(a, int) and isinstance(b, int)
    x, y = float(a), float(b)
    try:
        rough = {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "/": lambda: x / y, "%": lambda: math.fmod(x, y)}[op]()
    except OverflowError:  # pragma: no cover
        rough = math.inf
    if not exact or not -(2.0**62) < rough < 2.0**62:
        return rough
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if op in "/%" else 0
    return {"+": a + b, "-": a - b, "*": a * b, "/": quotient, "%": a - quotient * b}[op]


def value_of(tree: Tree, headers: dict[str, Any]) -> Any:
    match tree:
        case ("name", name):
            return headers.get(name)
        case ("number", value):
            return value
        case ("minus", inner):
            if inner[0] == "number":
                return -inner[1]
            return calculated("-", 0, value_of(inner, headers))
        case ("calc", op, left, right):
            return calculated(op, value_of(left, headers), value_of(right, headers))
    raise AssertionError(tree)


def equal(a: Any, b: Any) -> bool | None:
    """None: kinds that are not compared."""
    if is_number(a) and is_number(b):
        return bool(float(a) == float(b) if isinstance(a, float) or isinstance(b, float) else a == b)
    return bool(a == b) if type(a) is type(b) else None


def compared(op: str, a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    if op in ("=", "<>"):
        same = equal(a, b)
        return False if same is None else same == (op == "=")
    if not is_number(a) or not is_number(b):
        return False
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    return bool({"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op])


def likes(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(likes(text[i:], pattern[1:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and likes(text[1:], pattern[1:])


def negation(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def both(parts: list[bool | None]) -> bool | None:
    if False in parts:
        return False
    return None if None in parts else True


def truth_of(tree: Tree, headers: dict[str, Any]) -> bool | None:
    match tree:
        case ("truth", name):
            return headers[name] if isinstance(headers.get(name), bool) else None
        case ("compare", op, left, right):
            return compared(op, value_of(left, headers), value_of(right, headers))
        case ("same", op, name, text):
            return compared(op, headers.get(name), text)
        case ("like", name, text, negated):
            value = headers.get(name)
            result = None if value is None else isinstance(value, str) and likes(value, text)
            return negation(result) if negated else result
        case ("in", name, values, negated):
            value = headers.get(name)
            result = None if value is None else any(equal(value, one) for one in values)
            return negation(result) if negated else result
        case ("between", value, low, high, negated):
            middle = value_of(value, headers)
            result = both([compared(">=", middle, value_of(low, headers)), compared("<=", middle, value_of(high, headers))])
            return negation(result) if negated else result
        case ("null", name, negated):
            return (headers.get(name) is None) != negated
        case ("NOT", inner):
            return negation(truth_of(inner, headers))
        case ("AND", parts):
            return both([truth_of(part, headers) for part in parts])
        case ("OR", parts):
            return negation(both([negation(truth_of(part, headers)) for part in parts]))
    raise AssertionError(tree)


messages = st.dictionaries(names, st.one_of(numbers, st.text("abé", max_size=4), st.booleans(), st.none()))


@settings(max_examples=600, deadline=None)
@given(trees, st.lists(messages, min_size=1, max_size=4))
def test_the_program_agrees_with_the_model(tree: Tree, all_headers: list[dict[str, Any]]) -> None:
    text = written(tree)
    selector = parse(text, LIMITS)
    for headers in all_headers:
        wire = encode_properties(0, {"headers": headers})
        assert selector.selects(b"", b"", wire)[0] == (truth_of(tree, headers) is True), (text, headers)


@settings(max_examples=300, deadline=None)
@given(st.text("ab 1.'\"()=<>!+-*/%,NOTANDLIKEINx_$é\n", max_size=60))
def test_nonsense_is_refused_with_a_reason(text: str) -> None:
    try:
        parse(text, LIMITS)
    except SelectorError as error:
        assert str(error)
