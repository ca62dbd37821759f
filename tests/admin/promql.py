"""As much of Prometheus as a board's queries need: the text format, and rate, sum, count, joins and arithmetic on vectors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import add, mul, sub, truediv
from typing import Any

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = dict[str, Vector]

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_TOKEN = re.compile(r'\s*([a-zA-Z_:][a-zA-Z0-9_:]*|"[^"]*"|\[[^\]]*\]|[(){},=+*/-])')
_OPERATORS = {"+": add, "-": sub, "*": mul, "/": truediv}


def parse(text: str) -> Samples:
    """A scrape. Fails on a line that Prometheus would refuse, a sample that comes twice, a family that is described twice or in parts."""
    samples: Samples = {}
    kinds: dict[str, str] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family, kind = line.split(" ")[2:]
            assert family not in kinds, f"{family} comes twice"
            kinds[family] = kind
        elif not line.startswith("#"):
            found = _LINE.fullmatch(line)
            assert found is not None, line
            name, labels = found[1], frozenset(_LABEL.findall(found[2] or ""))
            base = re.sub("_(bucket|sum|count)$", "", name) if kinds[family] == "histogram" else name
            assert base == family, f"{name} stands in the family {family}"
            assert kinds[family] != "counter" or name.endswith(("_total", "_count")), name
            assert labels not in samples.setdefault(name, {}), line
            samples[name][labels] = float(found[3])
    return samples


def scraped(samples: Samples, target: Mapping[str, str]) -> Samples:
    """As Prometheus keeps them: each with the labels of its target."""
    return {name: {labels | frozenset(target.items()): value for labels, value in vector.items()} for name, vector in samples.items()}


class Query:
    """One query. Args: before, after: what was scraped, `seconds` apart."""

    def __init__(self, text: str, before: Samples, after: Samples, seconds: float) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0
        self._before, self._after, self._seconds = before, after, seconds

    def value(self) -> Vector:
        found = self._sum()
        assert self._at == len(self._tokens), self._tokens[self._at :]
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token: str = self._tokens[self._at]
        assert not wanted or token == wanted, (token, wanted)
        self._at += 1
        return token

    def _sum(self) -> Vector:
        left = self._product()
        while self._peek() in ("+", "-"):
            operator = _OPERATORS[self._take()]
            left = _both(left, self._product(), operator)
        return left

    def _product(self) -> Vector:
        left = self._factor()
        while self._peek() in ("*", "/"):
            operator = _OPERATORS[self._take()]
            if self._peek() == "on":
                self._take()
                on = self._names()
                self._take("group_left")
                left = _joined(left, on, self._names(), self._factor(), operator)
            else:
                left = _both(left, self._factor(), operator)
        return left

    def _names(self) -> list[str]:
        names = []
        self._take("(")
        while self._peek() != ")":
            token = self._take()
            if token != ",":
                names.append(token)
        self._take(")")
        return names

    def _factor(self) -> Vector:
        token = self._take()
        if token == "(":
            found = self._sum()
            self._take(")")
            return found
        if token in ("sum", "count"):
            return self._aggregated(token)
        if token in ("rate", "irate", "increase"):
            self._take("(")
            name, matchers = self._take(), self._matchers()
            assert self._take().startswith("[")
            self._take(")")
            before, after = (_selected(one, name, matchers) for one in (self._before, self._after))
            by = 1.0 if token == "increase" else self._seconds
            assert all(after[labels] >= before[labels] for labels in before), f"the counter {name} went down"
            return {labels: (after[labels] - before[labels]) / by for labels in before.keys() & after.keys()}
        return _selected(self._after, token, self._matchers())

    def _matchers(self) -> Labels:
        found: list[tuple[str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                name = self._take()
                if name != ",":
                    self._take("=")
                    found.append((name, self._take().strip('"')))
            self._take("}")
        return frozenset(found)

    def _aggregated(self, kind: str) -> Vector:
        self._take("(")
        vector = self._sum()
        self._take(")")
        by: list[str] = []
        if self._peek() == "by":
            self._take()
            by = self._names()
        groups: dict[Labels, list[float]] = {}
        for labels, value in vector.items():
            groups.setdefault(frozenset(one for one in labels if one[0] in by), []).append(value)
        return {labels: sum(values) if kind == "sum" else len(values) for labels, values in groups.items()}


def _selected(samples: Samples, name: str, matchers: Labels) -> Vector:
    return {labels: value for labels, value in samples.get(name, {}).items() if matchers <= labels}


def _both(left: Vector, right: Vector, operator: Any) -> Vector:
    return {labels: operator(left[labels], right[labels]) for labels in left.keys() & right.keys()}


def _joined(left: Vector, on: list[str], copied: list[str], right: Vector, operator: Any) -> Vector:
    def key(labels: Labels) -> Labels:
        return frozenset(one for one in labels if one[0] in on)

    ones = {key(labels): (labels, value) for labels, value in right.items()}
    assert len(ones) == len(right), "many-to-many matching"
    found: Vector = {}
    for labels, value in left.items():
        if key(labels) in ones:
            other, by = ones[key(labels)]
            kept = frozenset(one for one in labels if one[0] not in copied)
            found[kept | {one for one in other if one[0] in copied}] = operator(value, by)
    return found
