"""Reads a JMS selector and makes a program of it.

in: the text of a selector, as a client sent it. out: a Selector, or a SelectorError that says what is wrong and where.

G1  Each loop over the text goes forward; nesting is counted and has a limit, as have length, tokens and names. No regular expressions.
G2  What can be known to be no condition (a number as an operand of AND, a text in a calculation) is refused here, not unknown later.

The grammar, from loose to tight: OR; AND; NOT; = <> IS [NOT] NULL; < <= > >= [NOT] LIKE, BETWEEN, IN; + -; * / %; unary + - NOT. It is that
of Jakarta Messaging 3.1, 3.8.1, with what Qpid's brokers have more: %, comments, hexadecimal and octal numbers, names in double quotes,
numbers in IN. Words are of any case.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from flintmq.config import Limits
from flintmq.selectors import program as code
from flintmq.selectors.program import Selector
from flintmq.slotted import slotted

KEYWORDS = frozenset(["NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "NULL", "TRUE", "FALSE", "ESCAPE"])
# what a key of an index can be made of (`keys`); more values in one set are not worth one
KEYS_MAX = 64

# JMS names of header fields, which are properties of the message here
JMS_NAMES = {
    "JMSCorrelationID": 10,
    "JMSDeliveryMode": code.FROM_JMS_DELIVERY_MODE,
    "JMSMessageID": 7,
    "JMSPriority": code.FROM_JMS_PRIORITY,
    "JMSReplyTo": 9,
    "JMSTimestamp": code.FROM_JMS_TIMESTAMP,
    "JMSType": 5,
    "JMSXUserID": 4,
}
# ... and those that a selector can't have: they are the delivery's, or kept by nobody
JMS_NOT = frozenset(("JMSDestination", "JMSRedelivered", "JMSExpiration", "JMSDeliveryTime", "JMSXDeliveryCount"))
AMQP_NAMES = {
    "amqp.content_type": 15,
    "amqp.content_encoding": 14,
    "amqp.delivery_mode": 12,
    "amqp.priority": 11,
    "amqp.correlation_id": 10,
    "amqp.reply_to": 9,
    "amqp.expiration": 8,
    "amqp.message_id": 7,
    "amqp.timestamp": 6,
    "amqp.type": 5,
    "amqp.user_id": 4,
    "amqp.app_id": 3,
    "amqp.exchange": code.FROM_EXCHANGE,
    "amqp.routing_key": code.FROM_ROUTING_KEY,
}
COMPARISONS = {"=": code.OP_EQUAL, "<>": code.OP_DIFFERS, "!=": code.OP_DIFFERS}
ORDERS = {"<": code.OP_LESS, "<=": code.OP_AT_MOST, ">": code.OP_MORE, ">=": code.OP_AT_LEAST}
SUMS = {"+": code.OP_ADD, "-": code.OP_SUBTRACT}
PRODUCTS = {"*": code.OP_MULTIPLY, "/": code.OP_DIVIDE, "%": code.OP_MODULO}

# What an expression can be, as far as its text tells.
ANY, CONDITION, NUMBER, TEXT = "any", "condition", "number", "text"

Constant = bool | int | float | bytes


class SelectorError(ValueError):
    """The text is no selector: `str(error)` says why, for people."""


@slotted()
class Token:
    kind: str  # word, name, text, number, sign, end
    value: Any
    at: int


@slotted()
class Node:
    """A part of a program: what it leaves on the stack. `alone`: its only operation's argument, for a name or a constant."""

    kind: str
    ops: list[tuple[int, int]] = field(default_factory=list)
    name: int = -1
    constant: Constant | None = None
    # (name, constants): it is true only where the name has one of them
    keys: tuple[int, list[Constant]] | None = None


def octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# --- tokens -------------------------------------------------------------------------------------------------------------------


class _Scanner:
    def __init__(self, text: str, limits: Limits) -> None:
        self.text = text
        self.at = 0
        self.tokens: list[Token] = []
        self.most = limits.selector_tokens_max

    def run(self) -> list[Token]:
        while self._skip():
            if len(self.tokens) >= self.most:
                raise SelectorError(f"more than {self.most} words and signs")
            self.tokens.append(self._token())
        self.tokens.append(Token("end", None, len(self.text)))
        return self.tokens

    def _skip(self) -> bool:
        """Passes blanks and comments. False: nothing comes any more."""
        text = self.text
        while self.at < len(text):
            if text[self.at].isspace():
                self.at += 1
            elif text.startswith("--", self.at):
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif text.startswith("/*", self.at):
                end = text.find("*/", self.at + 2)
                if end < 0:
                    raise SelectorError(f"the comment at {self.at} has no end")
                self.at = end + 2
            else:
                return True
        return False

    def _token(self) -> Token:
        text, start = self.text, self.at
        sign = text[start]
        if sign in "'\"":
            return Token("text" if sign == "'" else "name", self._quoted(sign), start)
        if sign.isalpha() or sign in "_$":
            while self.at < len(text) and (text[self.at].isalnum() or text[self.at] in "_$."):
                self.at += 1
            word = text[start : self.at]
            if word.upper() in KEYWORDS:
                return Token("word", word.upper(), start)
            return Token("name", word, start)
        if sign in "0123456789" or (sign == "." and text[start + 1 : start + 2] in tuple("0123456789")):
            return Token("number", self._number(), start)
        for sign in (text[start : start + 2], text[start]):
            if sign in ("<>", "<=", ">=", "!=") or (len(sign) == 1 and sign in "=<>()+-*/%,"):
                self.at += len(sign)
                return Token("sign", sign, start)
        raise SelectorError(f"{text[start]!r} at {start} begins nothing that a selector has")

    def _quoted(self, quote: str) -> str:
        start, parts = self.at, []
        self.at += 1
        while True:
            end = self.text.find(quote, self.at)
            if end < 0:
                raise SelectorError(f"the quote at {start} has no end")
            parts.append(self.text[self.at : end])
            self.at = end + 1
            if not self.text.startswith(quote, self.at):
                # A name in quotes is a header's, whatever it looks like.
                return "".join(parts) if quote == "'" else '"' + "".join(parts)
            parts.append(quote)
            self.at += 1

    def _digits(self, digits: str) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in digits:
            self.at += 1
        return self.text[start : self.at]

    def _number(self) -> int | float:
        text, start = self.text, self.at
        if text[start : start + 2] in ("0x", "0X"):
            self.at += 2
            value: int | float = self._integer(self._digits("0123456789abcdefABCDEF"), 16, start)
        else:
            whole = self._digits("0123456789")
            exact = not text.startswith(".", self.at) and text[self.at : self.at + 1] not in ("e", "E")
            if exact:
                value = self._integer(whole, 8 if len(whole) > 1 and whole[0] == "0" else 10, start)
            else:
                value = self._float(start)
        if self.at < len(text) and (text[self.at].isalnum() or text[self.at] in "_$."):
            raise SelectorError(f"the number at {start} goes on with {text[self.at]!r}")
        return value

    def _integer(self, digits: str, base: int, start: int) -> int:
        if self.text[self.at : self.at + 1] in ("l", "L"):
            self.at += 1
        if len(digits) > 32:
            raise SelectorError(f"the number at {start} has more than 64 bits")
        try:
            value = int(digits, base)
        except ValueError:
            raise SelectorError(f"no number at {start}") from None
        if value > 2**63:  # 2**63 itself has a meaning behind a minus
            raise SelectorError(f"the number at {start} has more than 64 bits")
        return value

    def _float(self, start: int) -> float:
        if self.text.startswith(".", self.at):
            self.at += 1
            self._digits("0123456789")
        if self.text[self.at : self.at + 1] in ("e", "E"):
            self.at += 1
            if self.text[self.at : self.at + 1] in ("+", "-"):
                self.at += 1
            if not self._digits("0123456789"):
                raise SelectorError(f"the number at {start} has no exponent")
        value = float(self.text[start : self.at])
        if self.text[self.at : self.at + 1] in ("f", "F", "d", "D"):
            self.at += 1
        return value


# --- expressions --------------------------------------------------------------------------------------------------------------


class _Parser:
    def __init__(self, tokens: list[Token], limits: Limits) -> None:
        self.tokens = tokens
        self.limits = limits
        self.next = 0
        self.depth = 0
        self.constants: list[Constant] = []
        self.names: dict[tuple[int, bytes], int] = {}
        self.sets: list[list[Constant]] = []
        self.patterns: list[list[int]] = []

    # --- tokens

    def _peek(self, value: str) -> bool:
        token = self.tokens[self.next]
        return token.kind in ("word", "sign") and token.value == value

    def _take(self, value: str) -> bool:
        if self._peek(value):
            self.next += 1
            return True
        return False

    def _need(self, value: str) -> None:
        if not self._take(value):
            raise self._unexpected(f"{value!r}")

    def _unexpected(self, wanted: str) -> SelectorError:
        token = self.tokens[self.next]
        there = "its end" if token.kind == "end" else f"{token.value!r} at {token.at}"
        return SelectorError(f"{wanted} expected, {there} found")

    def _one_of(self, table: dict[str, int]) -> int | None:
        token = self.tokens[self.next]
        entry = table.get(token.value) if token.kind == "sign" else None
        if entry is not None:
            self.next += 1
        return entry

    # --- what is left on the stack

    def _is(self, node: Node, kind: str, where: str) -> Node:
        if node.kind not in (ANY, kind):
            raise SelectorError(f"a {node.kind} can't be an operand of {where}")
        return node

    def run(self) -> Node:
        node = self._or()
        if self.tokens[self.next].kind != "end":
            raise self._unexpected("the end, or an operator")
        return self._is(node, CONDITION, "a selector: it has to be a condition, as in x = 1")

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > self.limits.selector_depth_max:
            raise SelectorError(f"more than {self.limits.selector_depth_max} levels deep")

    def _or(self) -> Node:
        return self._chain("OR", code.OP_END_TRUE, code.OP_OR)

    def _and(self) -> Node:
        return self._chain("AND", code.OP_END_FALSE, code.OP_AND)

    def _chain(self, word: str, leave: int, join: int) -> Node:
        """Operands of one AND or OR: as soon as one decides, the rest is not run."""
        parts = [self._and() if word == "OR" else self._not()]
        while self._take(word):
            parts.append(self._and() if word == "OR" else self._not())
        if len(parts) == 1:
            return parts[0]
        node = Node(CONDITION)
        # Places are relative here, and made absolute where the program is put together.
        size = sum(len(self._is(part, CONDITION, word).ops) for part in parts) + 2 * (len(parts) - 1)
        for number, part in enumerate(parts):
            node.ops += part.ops
            if number:
                node.ops.append((join, 0))
            if number < len(parts) - 1:
                node.ops.append((leave, size - len(node.ops)))
        node.keys = self._keys_of(word, [part.keys for part in parts])
        return node

    def _keys_of(self, word: str, all_keys: list[tuple[int, list[Constant]] | None]) -> tuple[int, list[Constant]] | None:
        """One operand of an AND says enough; those of an OR have to be about one name, all of them."""
        known = [keys for keys in all_keys if keys is not None]
        if word == "AND":
            return min(known, key=lambda keys: len(keys[1])) if known else None
        if len(known) < len(all_keys) or len({name for name, _ in known}) > 1:
            return None
        values = [value for _, some in known for value in some]
        return (known[0][0], values) if len(values) <= KEYS_MAX else None

    def _not(self) -> Node:
        if not self._take("NOT"):
            return self._equality()
        self._deeper()
        inner = self._is(self._not(), CONDITION, "NOT")
        self.depth -= 1
        return Node(CONDITION, [*inner.ops, (code.OP_NOT, 0)])

    def _equality(self) -> Node:
        left = self._order()
        while True:
            if self._take("IS"):
                negated = self._take("NOT")
                self._need("NULL")
                left = self._negated(Node(CONDITION, [*left.ops, (code.OP_IS_NULL, 0)]), negated)
                continue
            op = self._one_of(COMPARISONS)
            if op is None:
                return left
            right = self._order()
            if ANY not in (left.kind, right.kind) and left.kind != right.kind:
                raise SelectorError(f"a {left.kind} is never equal to a {right.kind}")
            node = Node(CONDITION, [*left.ops, *right.ops, (op, 0)])
            if op == code.OP_EQUAL:
                node.keys = self._key(left, right) or self._key(right, left)
            left = node

    def _key(self, name: Node, constant: Node) -> tuple[int, list[Constant]] | None:
        return (name.name, [constant.constant]) if name.name >= 0 and constant.constant is not None else None

    def _negated(self, node: Node, negated: bool) -> Node:
        return Node(CONDITION, [*node.ops, (code.OP_NOT, 0)]) if negated else node

    def _order(self) -> Node:
        left = self._sum()
        while True:
            op = self._one_of(ORDERS)
            if op is not None:
                right = self._is(self._sum(), NUMBER, "< and >")
                left = Node(CONDITION, [*self._is(left, NUMBER, "< and >").ops, *right.ops, (op, 0)])
                continue
            start = self.next
            negated = self._take("NOT")
            if self._take("LIKE"):
                left = self._negated(self._like(left), negated)
            elif self._take("BETWEEN"):
                left = self._negated(self._between(left), negated)
            elif self._take("IN"):
                node = self._in(left)
                left = self._negated(node, True) if negated else node
            else:
                self.next = start
                return left

    def _like(self, operand: Node) -> Node:
        pattern = self._text("a pattern in quotes")
        escape = ""
        if self._take("ESCAPE"):
            escape = self._text("a character in quotes")
            if len(escape) != 1:
                raise SelectorError("ESCAPE takes one character")
        elements: list[int] = []
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                character = next(characters, "")
                if not character:
                    raise SelectorError("nothing comes behind the ESCAPE character of a pattern")
                elements += octets(character)
            elif character == "%":
                if elements[-1:] != [code.LIKE_MANY]:
                    elements.append(code.LIKE_MANY)
            elif character == "_":
                elements.append(code.LIKE_ONE)
            else:
                elements += octets(character)
        self.patterns.append(elements)
        return Node(CONDITION, [*self._is(operand, TEXT, "LIKE").ops, (code.OP_LIKE, len(self.patterns) - 1)])

    def _text(self, wanted: str) -> str:
        token = self.tokens[self.next]
        if token.kind != "text":
            raise self._unexpected(wanted)
        self.next += 1
        return str(token.value)

    def _between(self, operand: Node) -> Node:
        low = self._is(self._sum(), NUMBER, "BETWEEN")
        self._need("AND")
        high = self._is(self._sum(), NUMBER, "BETWEEN")
        return Node(CONDITION, [*self._is(operand, NUMBER, "BETWEEN").ops, *low.ops, *high.ops, (code.OP_BETWEEN, 0)])

    def _in(self, operand: Node) -> Node:
        self._need("(")
        values: list[Constant] = []
        first = len(self.constants)
        while True:
            constant = self._unary().constant
            if constant is None:
                raise SelectorError("IN takes texts and numbers")
            values.append(constant)
            if not self._take(","):
                break
        self._need(")")
        del self.constants[first:]  # they are the set's
        self.sets.append(values)
        node = Node(CONDITION, [*operand.ops, (code.OP_IN, len(self.sets) - 1)])
        if operand.name >= 0 and len(values) <= KEYS_MAX:
            node.keys = (operand.name, values)
        return node

    def _sum(self) -> Node:
        return self._calculation(SUMS)

    def _calculation(self, table: dict[str, int]) -> Node:
        left = self._calculation(PRODUCTS) if table is SUMS else self._unary()
        while (op := self._one_of(table)) is not None:
            right = self._calculation(PRODUCTS) if table is SUMS else self._unary()
            self._is(left, NUMBER, "a calculation")
            left = Node(NUMBER, [*left.ops, *self._is(right, NUMBER, "a calculation").ops, (op, 0)])
        return left

    def _unary(self) -> Node:
        self._deeper()
        if self._take("-"):
            node = self._negative(self._unary())
        elif self._take("+"):
            node = self._is(self._unary(), NUMBER, "+")
            node = Node(NUMBER, node.ops, -1, node.constant)
        elif self._take("NOT"):
            node = Node(CONDITION, [*self._is(self._unary(), CONDITION, "NOT").ops, (code.OP_NOT, 0)])
        else:
            node = self._primary()
        self.depth -= 1
        return node

    def _negative(self, node: Node) -> Node:
        value = self._is(node, NUMBER, "-").constant
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.constants.pop()  # the positive one, the last that was read
            return self._constant(NUMBER, -value)
        return Node(NUMBER, [*node.ops, (code.OP_NEGATE, 0)])

    def _constant(self, kind: str, value: Constant) -> Node:
        self.constants.append(value)
        return Node(kind, [(code.OP_CONST, len(self.constants) - 1)], -1, value)

    def _primary(self) -> Node:
        token = self.tokens[self.next]
        if self._take("("):
            node = self._or()
            self._need(")")
            return node
        if self._take("TRUE") or self._take("FALSE"):
            return self._constant(CONDITION, token.value == "TRUE")
        if token.kind == "number":
            self.next += 1
            return self._constant(NUMBER, token.value)
        if token.kind == "text":
            self.next += 1
            return self._constant(TEXT, octets(token.value))
        if token.kind == "name":
            self.next += 1
            return self._named(token.value)
        raise self._unexpected("a name, a value or '('")

    def _named(self, text: str) -> Node:
        source, header = code.FROM_HEADERS, b""
        if text in JMS_NOT:
            raise SelectorError(f"{text} is nothing that a selector can ask for")
        if text in JMS_NAMES or text in AMQP_NAMES:
            source = JMS_NAMES.get(text) or AMQP_NAMES[text]
        elif text.startswith("amqp."):
            raise SelectorError(f"there is no property {text!r}; a header of that name is asked for in double quotes")
        else:
            header = octets(text.removeprefix('"'))
        number = self.names.setdefault((source, header), len(self.names))
        if len(self.names) > self.limits.selector_names_max:
            raise SelectorError(f"more than {self.limits.selector_names_max} different names")
        return Node(ANY, [(code.OP_NAME, number)], number)


def parse(text: str, limits: Limits) -> Selector:
    """Makes a program of a selector. Raises: SelectorError; MemoryError. O(length)."""
    size = len(octets(text))
    if size > limits.selector_bytes_max:
        raise SelectorError(f"{size} bytes are more than the {limits.selector_bytes_max} that a selector may have")
    parser = _Parser(_Scanner(text, limits).run(), limits)
    node = parser.run()
    for constant in parser.constants + [value for some in parser.sets for value in some]:
        if isinstance(constant, int) and not -(2**63) <= constant < 2**63:
            raise SelectorError(f"the number {constant} has more than 64 bits")
    # OP_END_*: how far to go becomes where to.
    leaves = (code.OP_END_FALSE, code.OP_END_TRUE)
    ops = [(op, place + arg if op in leaves else arg) for place, (op, arg) in enumerate(node.ops)]
    return Selector(text, ops, parser.constants, list(parser.names), parser.sets, parser.patterns, node.keys)
