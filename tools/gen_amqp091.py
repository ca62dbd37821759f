#!/usr/bin/env python3
"""Generates src/flintmq/protocol/v0_9_1/spec.py and ids.pxd from the AMQP 0-9-1 specification.

in: tools/specs/amqp0-9-1.extended.xml (RabbitMQ's extended specification). out: spec.py (for Python) and ids.pxd (the numbers, for
compiled modules), or with `--check` only the exit code (0 up to date, 1 stale). The output depends on nothing but the XML and this file.

Usage: gen_amqp091.py [--check]
"""

from __future__ import annotations

import keyword
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tools" / "specs" / "amqp0-9-1.extended.xml"
TARGET = ROOT / "src" / "flintmq" / "protocol" / "v0_9_1" / "spec.py"
IDS = TARGET.with_name("ids.pxd")

# One letter per wire type in Method.WIRE: what the compiled codec switches on.
WIRE_LETTERS = {
    "bit": "b",
    "octet": "o",
    "short": "h",
    "long": "l",
    "longlong": "q",
    "timestamp": "t",
    "shortstr": "s",
    "longstr": "S",
    "table": "F",
}
PYTHON_TYPES = {
    "bit": ("bool", "False"),
    "octet": ("int", "0"),
    "short": ("int", "0"),
    "long": ("int", "0"),
    "longlong": ("int", "0"),
    "timestamp": ("int", "0"),
    "shortstr": ("str", '""'),
    "longstr": ("bytes", 'b""'),
    "table": ("dict[str, object] | None", "None"),
}
# The XML misses what RabbitMQ added later: (class, method) -> (method id, synchronous, fields of (name, wire type)).
RABBITMQ_METHODS = {
    ("connection", "blocked"): (60, False, (("reason", "shortstr"),)),
    ("connection", "unblocked"): (61, False, ()),
    ("connection", "update-secret"): (70, True, (("new-secret", "longstr"), ("reason", "shortstr"))),
    ("connection", "update-secret-ok"): (71, True, ()),
}
FRAME_TYPES = ("frame-method", "frame-header", "frame-body", "frame-heartbeat")
# The specification calls the last property of class basic "reserved"; 0-9 and every client call it cluster-id.
PROPERTY_NAMES = {"reserved": "cluster-id"}


@dataclass(frozen=True)
class Field:
    """One argument of a method, or one property."""

    name: str
    wire: str
    reserved: bool

    @property
    def attribute(self) -> str:
        name = "no_wait" if self.name == "nowait" else self.name.replace("-", "_")
        return name + "_" if keyword.iskeyword(name) else name


@dataclass(frozen=True)
class MethodSpec:
    """One method of one class."""

    class_name: str
    class_id: int
    name: str
    method_id: int
    synchronous: bool
    has_content: bool
    fields: tuple[Field, ...]

    @property
    def dotted(self) -> str:
        return f"{self.class_name}.{self.name}"

    @property
    def python_name(self) -> str:
        return "".join(part.capitalize() for part in [self.class_name, *self.name.split("-")])

    @property
    def id(self) -> int:
        return self.class_id << 16 | self.method_id

    @property
    def wire(self) -> str:
        return "".join(("-" if field.reserved else "") + WIRE_LETTERS[field.wire] for field in self.fields)


def read_specification(source: Path) -> tuple[dict[str, int], list[MethodSpec], list[Field]]:
    """Constants, methods in the order of their ids, and the properties of class basic in wire order."""
    root = ElementTree.parse(source).getroot()
    domains = {domain.attrib["name"]: domain.attrib["type"] for domain in root.iter("domain")}
    constants = {constant.attrib["name"]: int(constant.attrib["value"]) for constant in root.iter("constant")}

    def field_of(node: ElementTree.Element) -> Field:
        domain = node.attrib.get("domain") or node.attrib["type"]
        return Field(node.attrib["name"], domains[domain], node.attrib.get("reserved") == "1")

    class_ids = {node.attrib["name"]: int(node.attrib["index"]) for node in root.iter("class")}
    methods = [
        MethodSpec(
            class_name=class_node.attrib["name"],
            class_id=int(class_node.attrib["index"]),
            name=node.attrib["name"],
            method_id=int(node.attrib["index"]),
            synchronous=node.attrib.get("synchronous") == "1",
            has_content=node.attrib.get("content") == "1",
            fields=tuple(field_of(child) for child in node.findall("field")),
        )
        for class_node in root.iter("class")
        for node in class_node.findall("method")
    ]
    present = {(method.class_name, method.name) for method in methods}
    for (class_name, name), (method_id, synchronous, fields) in RABBITMQ_METHODS.items():
        if (class_name, name) not in present:
            extra = tuple(Field(field, wire, False) for field, wire in fields)
            methods.append(MethodSpec(class_name, class_ids[class_name], name, method_id, synchronous, False, extra))
    methods.sort(key=lambda method: method.id)

    (basic,) = (node for node in root.iter("class") if node.attrib["name"] == "basic")
    properties = []
    for node in basic.findall("field"):
        field = field_of(node)
        properties.append(Field(PROPERTY_NAMES.get(field.name, field.name), field.wire, False))
    return constants, methods, properties


HEADER = '''"""AMQP 0-9-1 as data: frame constants, one class per method, the properties of class basic.

Generated by tools/gen_amqp091.py, do not edit: change the generator and run it again. Derived from the AMQP 0-9-1
specification with RabbitMQ's extensions, see tools/specs/copyright.

Method attributes: shortstr -> str (bytes that are no UTF-8 as surrogate escapes), longstr -> bytes, table -> dict,
bit -> bool, all else int. Reserved arguments have no attribute; Method.WIRE names them, so that the codec skips or zeroes them.
"""
# ruff: noqa: RUF023 (slots stand in wire order)

from __future__ import annotations

from typing import ClassVar

'''

METHOD_BASE = '''
class Method:
    """Base of every method. Two methods are equal when class and all arguments are.

    ID: class id << 16 | method id. NAME: "queue.declare". SYNCHRONOUS: the sender waits for a reply. HAS_CONTENT: a
    content header follows. FIELDS: (attribute, wire type) in wire order without reserved ones; the order of __init__ too.
    WIRE: one letter per argument for the codec: b bit, o octet, h short, l long, q longlong, t timestamp, s shortstr,
    S longstr, F table; "-" before a letter: reserved.
    """

    __slots__ = ()
    ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    SYNCHRONOUS: ClassVar[bool] = False
    HAS_CONTENT: ClassVar[bool] = False
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = ()
    WIRE: ClassVar[bytes] = b""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _ in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # arguments are mutable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name, _ in self.FIELDS)})"
'''


def method_class(method: MethodSpec) -> str:
    """Source text of one method class."""
    fields = [field for field in method.fields if not field.reserved]
    lines = [f"class {method.python_name}(Method):", f'    """{method.dotted} ({method.class_id}, {method.method_id})."""', ""]
    slots = ", ".join(f'"{field.attribute}"' for field in fields) + ("," if len(fields) == 1 else "")
    lines.append(f"    __slots__ = ({slots})")
    lines.append(f"    ID = 0x{method.id:08X}")
    lines.append(f'    NAME = "{method.dotted}"')
    if method.synchronous:
        lines.append("    SYNCHRONOUS = True")
    if method.has_content:
        lines.append("    HAS_CONTENT = True")
    if len(fields) == 1:
        lines.append(f'    FIELDS = (("{fields[0].attribute}", "{fields[0].wire}"),)')
    elif fields:
        lines.append("    FIELDS = (")
        lines.extend(f'        ("{field.attribute}", "{field.wire}"),' for field in fields)
        lines.append("    )")
    if method.wire:
        lines.append(f'    WIRE = b"{method.wire}"')
    if fields:
        lines += ["", "    def __init__(", "        self,"]
        for field in fields:
            python_type, default = PYTHON_TYPES[field.wire]
            lines.append(f"        {field.attribute}: {python_type} = {default},")
        lines.append("    ) -> None:")
        for field in fields:
            if field.wire == "table":
                lines.append(
                    f"        self.{field.attribute}: dict[str, object] = {{}} if {field.attribute} is None else {field.attribute}"
                )
            else:
                lines.append(f"        self.{field.attribute} = {field.attribute}")
    return "\n".join(lines) + "\n"


def generate(source: Path = SOURCE) -> str:
    """The text of spec.py."""
    constants, methods, properties = read_specification(source)
    parts = [HEADER]
    for name, value in constants.items():
        if name.startswith("frame-") and name != "frame-error":
            parts.append(f"{name.replace('-', '_').upper()} = {value}\n")
    (basic_id,) = {method.class_id for method in methods if method.class_name == "basic"}
    parts.append(f"\nCLASS_BASIC = {basic_id}\n")
    parts.append("\n# Method name -> class id << 16 | method id.\nMETHOD_IDS: dict[str, int] = {\n")
    parts.extend(f'    "{method.dotted}": 0x{method.id:08X},\n' for method in methods)
    parts.append("}\n")
    parts.append("\n# Content properties of class basic in wire order: (name, wire type, mask of its bit in the property flags).\n")
    parts.append("BASIC_PROPERTIES: tuple[tuple[str, str, int], ...] = (\n")
    for index, field in enumerate(properties):
        parts.append(f'    ("{field.attribute}", "{field.wire}", 1 << {15 - index}),\n')
    parts.append(")\n")
    parts.append("\n" + METHOD_BASE)
    for method in methods:
        parts.append("\n\n" + method_class(method))
    parts.append("\n\n# class id << 16 | method id -> class.\nMETHODS: dict[int, type[Method]] = {\n")
    parts.extend(f"    0x{method.id:08X}: {method.python_name},\n" for method in methods)
    parts.append("}\n")
    return "".join(parts)


IDS_HEADER = """# The numbers of AMQP 0-9-1, for compiled modules (Python has them from spec.py).
#
# Generated by tools/gen_amqp091.py, do not edit: change the generator and run it again. Derived from the AMQP 0-9-1
# specification with RabbitMQ's extensions, see tools/specs/copyright.

"""


def generate_ids(source: Path = SOURCE) -> str:
    """The text of ids.pxd."""
    constants, methods, _ = read_specification(source)
    types = {name: value for name, value in constants.items() if name in FRAME_TYPES}
    parts = [IDS_HEADER, "cdef enum:                    # frame types (specification 2.3.5)\n"]
    parts.extend(f"    {name.replace('-', '_').upper()} = {value}\n" for name, value in types.items())
    parts.append(f"    FRAME_TYPES = {sum(1 << value for value in types.values())}         # bit n: n is one of them\n")
    parts.append("\ncdef enum:                    # class ids\n")
    parts.extend(
        f"    CLASS_{name.upper()} = {number}\n"
        for name, number in sorted({method.class_name: method.class_id for method in methods}.items())
    )
    parts.append(
        "\ncdef enum:                    # method ids: class id << 16 | method id, the first four bytes of a method frame's payload\n"
    )
    parts.extend(f"    {method.dotted.replace('.', '_').replace('-', '_').upper()} = 0x{method.id:08X}\n" for method in methods)
    return "".join(parts)


def main(arguments: list[str]) -> int:
    outputs = {TARGET: generate(), IDS: generate_ids()}
    if arguments == ["--check"]:
        stale = [path for path, text in outputs.items() if not path.exists() or path.read_text() != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run tools/gen_amqp091.py", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print("usage: gen_amqp091.py [--check]", file=sys.stderr)
        return 64
    for path, text in outputs.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
