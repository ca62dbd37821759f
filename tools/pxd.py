"""Reads `.pxd` files: which functions they declare, with which types, and which names they bring.

in: the text of a .pxd. out: Declarations. Only what this project writes is understood: one declaration a line (or in parentheses), types
with stars, arrays and function pointers as types of struct members only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FUNCTION = re.compile(
    r"^(?:cdef|cpdef)\s+(?:inline\s+)?(?P<result>[\w\s]+?[\s*]+)?(?P<name>\w+)\s*\((?P<arguments>.*)\)\s*(?P<tail>[^()]*)$"
)
_IMPORT = re.compile(r"^from\s+([\w.]+)\s+cimport\s+\(?(.*?)\)?$")
_TYPE = re.compile(r"^(?:cdef|cpdef|ctypedef)\s+(?:packed\s+)?(struct|union|enum|class)\b\s*(\w*)")
_MEMBER = re.compile(r"^([A-Z]\w*)(?:\s*=\s*([^,]+))?(?:,|$)")
# what a C type is called in the .py; anything else keeps its name
_SPELLED = {
    "int": "c_int",
    "float": "c_float",
    "unsigned char": "uchar",
    "unsigned int": "uint",
    "unsigned long": "ulong",
    "unsigned long long": "ulonglong",
    "long long": "longlong",
}
PYTHON_TYPES = frozenset(("bytes", "str", "list", "dict", "set", "tuple", "bytearray"))


@dataclass
class Argument:
    """An argument as the .pxd has it; `type` is empty where only a name stands."""

    type: str
    name: str
    not_none: bool = False


@dataclass
class Function:
    """A declared function or method. `shown`: Python can call it (cpdef)."""

    result: str
    arguments: list[Argument]
    shown: bool = False


@dataclass
class Declarations:
    """What a .pxd says.

    functions: by (class or "", name). constants: members of enums that are no extern, by name, with their text. shown: those that
    Python has, too (cpdef). attributes: of a class, by name: "public", "readonly" or "". words: every identifier.
    """

    functions: dict[tuple[str, str], Function] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    attributes: dict[tuple[str, str], str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)


def compiled_modules(root: Path = ROOT) -> list[Path]:
    """Every `.py` of src/flintmq and tests with a `.pxd` of its own beside it (as in setup.py), sorted."""
    found = [*root.glob("src/flintmq/**/*.pxd"), *root.glob("tests/**/*.pxd")]
    return sorted(pxd.with_suffix(".py") for pxd in found if pxd.stem != "__init__" and pxd.with_suffix(".py").exists())


def _lines(text: str) -> list[tuple[int, str]]:
    """(indentation, line) without C text, comments and empty lines; what stands in parentheses is one line."""
    text = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    found: list[tuple[int, str]] = []
    pending, indent = "", 0
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].rstrip()
        if not line.strip():
            continue
        if not pending:
            indent = len(line) - len(line.lstrip())
        pending = f"{pending} {line.strip()}".strip()
        if pending.count("(") <= pending.count(")"):
            found.append((indent, pending))
            pending = ""
    return found


def _argument(text: str) -> Argument:
    text = re.sub(r"=.*$", "", text).strip()
    bare = re.sub(r"\s+(not|or)\s+None$", "", text)
    match = re.match(r"^(.*?[\s*])(\w+)$", bare)
    return Argument(match[1].strip(), match[2], "not None" in text) if match else Argument("", bare)


def _function(match: re.Match[str], shown: bool) -> Function:
    arguments, depth, now = [], 0, ""
    for letter in match["arguments"] + ",":
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if now.strip():
                arguments.append(_argument(now.strip()))
            now = ""
        else:
            now += letter
    return Function((match["result"] or "object").strip(), arguments, shown)


def _attributes(found: Declarations, owner: str, line: str) -> None:
    match = re.match(r"^cdef\s+(public\s+|readonly\s+)?(.+)$", line)
    if match and "(" not in match[2]:
        for one in match[2].split(","):
            name = re.search(r"(\w+)(?:\[[^\]]*\])*$", one.strip())
            if name:
                found.attributes[owner, name[1]] = (match[1] or "").strip()


def read_pxd(text: str) -> Declarations:
    """The declarations of a .pxd."""
    found = Declarations()
    owner, enum, extern, shown = "", -1, -1, False
    for indent, line in _lines(text):
        found.words |= set(re.findall(r"\w+", line))
        if extern >= 0 and indent > extern:
            continue
        extern = -1
        if enum >= 0 and indent > enum:
            for part in line.split(","):
                member = _MEMBER.match(part.strip())
                if member:
                    found.constants[member[1]] = (member[2] or "").strip()
                    if shown:
                        found.shown.add(member[1])
            continue
        enum = -1
        if indent == 0:
            owner = ""
        if line.startswith("cdef extern"):
            extern = indent
        elif type_ := _TYPE.match(line):
            enum, shown = (indent, line.startswith("cpdef")) if type_[1] == "enum" else (-1, False)
            if type_[1] == "class":
                owner = type_[2]
                found.classes.add(owner)
        elif (indent == 0 or owner) and line.startswith(("cdef ", "cpdef ")):
            function = None if line.endswith(":") else _FUNCTION.match(line)
            if function:
                found.functions[owner, function["name"]] = _function(function, line.startswith("cpdef"))
            elif owner:
                _attributes(found, owner, line)
    return found


def imported(text: str) -> dict[str, str]:
    """Names that a .pxd cimports -> their modules."""
    names = {}
    for _, line in _lines(text):
        match = _IMPORT.match(line)
        if match:
            names.update({part.split(" as ")[-1].strip(): match[1] for part in match[2].split(",") if part.strip()})
    return names


def spelled(declared: str) -> str | None:
    """The annotation of a C type as the .py writes it, `pointer[cython.const[char]]` for `const char *`. None: it can't be written."""
    if "(" in declared or "[" in declared:
        return None
    words = [word for word in declared.replace("*", " ").split() if word != "struct"]
    constant = "const" in words
    base, stars = " ".join(word for word in words if word != "const"), declared.count("*")
    base = _SPELLED.get(base, base)
    if " " in base or words.count("const") > 1:
        return None
    if stars and not constant and base in ("void", "char"):
        base, stars = f"p_{base}", stars - 1
    return "pointer[" * stars + (f"cython.const[{base}]" if constant else base) + "]" * stars


def annotation(declared: str, not_none: bool, told: Declarations) -> str | None:
    """The annotation of an argument: a Python object may be None, unless the .pxd says otherwise. None: it can't be written."""
    word = spelled(declared or "object")
    is_object = word in PYTHON_TYPES or (word is not None and word[0].isupper() and word != "Py_ssize_t" and word in told.words)
    return f"{word} | None" if is_object and not not_none else word
