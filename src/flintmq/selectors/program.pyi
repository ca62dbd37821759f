# Python face of program.py (compiled), for the type checker.
OP_CONST: int
OP_NAME: int
OP_EQUAL: int
OP_DIFFERS: int
OP_LESS: int
OP_AT_MOST: int
OP_MORE: int
OP_AT_LEAST: int
OP_ADD: int
OP_SUBTRACT: int
OP_MULTIPLY: int
OP_DIVIDE: int
OP_MODULO: int
OP_NEGATE: int
OP_NOT: int
OP_AND: int
OP_OR: int
OP_END_FALSE: int
OP_END_TRUE: int
OP_LIKE: int
OP_IN: int
OP_BETWEEN: int
OP_IS_NULL: int
KIND_NULL: int
KIND_BOOLEAN: int
KIND_INTEGER: int
KIND_FLOAT: int
KIND_TEXT: int
FROM_HEADERS: int
FROM_EXCHANGE: int
FROM_ROUTING_KEY: int
FROM_JMS_PRIORITY: int
FROM_JMS_DELIVERY_MODE: int
FROM_JMS_TIMESTAMP: int
FROM_COUNT: int
LIKE_ONE: int
LIKE_MANY: int

Constant = bool | int | float | bytes

class Selector:
    """A compiled selector: what grammar.parse makes.

    Args: text: what it was made from; ops: (OP_*, argument); names: (FROM_*, header name); sets, patterns: of OP_IN and OP_LIKE;
    keys: (name, constants): a message that is selected has one of them as the value of that name; None: nothing is known.
    """

    text: str
    def __init__(
        self,
        text: str,
        ops: list[tuple[int, int]],
        constants: list[Constant],
        names: list[tuple[int, bytes]],
        sets: list[list[Constant]],
        patterns: list[list[int]],
        keys: tuple[int, list[Constant]] | None,
    ) -> None: ...
    @property
    def size(self) -> int:
        """Bytes of memory."""
    def selects(self, exchange: bytes, routing_key: bytes, header: bytes, steps: int = ...) -> tuple[bool, int]:
        """Whether a message with this route and content header payload is selected, and the steps left of `steps`."""
