"""Distinguished names (RFC 4514): taken apart, compared, and made with a value that somebody else chose.

in: DNs as text, values. out: DNs to compare, DNs as text.

N1  A value within a DN is escaped, but for letters and signs that mean nothing anywhere: no value ends its place.
N2  DNs are compared part by part, without regard to case and to spaces beyond one, as directories compare names of people and groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# parts of a DN, each of one or more (type, value)
Dn = tuple[tuple[tuple[str, str], ...], ...]

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._@")
_HEX = frozenset("0123456789abcdefABCDEF")
_VARIABLE = re.compile(r"\$\{([a-z_]+)\}")


def escape_dn(value: str) -> str:
    """A value within a DN (RFC 4514, 2.4): N1."""
    return "".join(chr(octet) if octet in _PLAIN else f"\\{octet:02x}" for octet in value.encode("utf-8", "surrogatepass"))


def fold(value: str) -> str:
    """A value as it is compared (N2)."""
    return " ".join(value.casefold().split())


def read_dn(text: str) -> Dn:
    """The parts of a DN; values are as they are written, without escapes. Raises: ValueError."""
    parts: list[tuple[tuple[str, str], ...]] = []
    pairs: list[tuple[str, str]] = []
    offset = 0
    while True:
        kind, equals, _ = text[offset:].partition("=")
        if not equals or not re.fullmatch(r"\s*[A-Za-z0-9][A-Za-z0-9.-]*\s*", kind):
            raise ValueError(f"{text[:200]!r} is no distinguished name")
        value, offset = _value(text, offset + len(kind) + 1)
        pairs.append((kind.strip().lower(), value))
        sign = text[offset : offset + 1]
        offset += 1
        if sign != "+":
            parts.append(tuple(sorted(pairs)))
            pairs = []
        if not sign:
            return tuple(parts)


def _value(text: str, offset: int) -> tuple[str, int]:
    """(value, where the sign behind it stands)."""
    octets = bytearray()
    spaces = 0  # at the end, which count only with an escape
    while offset < len(text) and text[offset] == " ":
        offset += 1
    while offset < len(text) and text[offset] not in ",;+":
        one = text[offset]
        offset += 1
        if one == "\\":
            pair = text[offset : offset + 2]
            if len(pair) == 2 and set(pair) <= _HEX:
                octets.append(int(pair, 16))
                offset += 2
            elif pair:
                octets += pair[0].encode("utf-8", "surrogatepass")
                offset += 1
            else:
                raise ValueError("a distinguished name ends with a backslash")
            spaces = 0
        elif one in '"<>\0':
            raise ValueError(f"{one!r} can't stand in a distinguished name without a backslash")
        else:
            octets += one.encode("utf-8", "surrogatepass")
            spaces = spaces + 1 if one == " " else 0
    return octets[: len(octets) - spaces].decode("utf-8", "replace"), offset


def folded(dn: Dn) -> Dn:
    """A DN to compare."""
    return tuple(tuple(sorted((kind, fold(value)) for kind, value in part)) for part in dn)


def fill(dn: Dn, values: Mapping[str, str]) -> Dn:
    """A pattern's DN with its variables, to compare: a value stays within its part, whatever it is."""
    return tuple(tuple(sorted((kind, fold(_VARIABLE.sub(lambda match: values[match[1]], value))) for kind, value in part)) for part in dn)
