"""Lists as the operator wants them: --formatter table, pretty_table, csv, json.

in: rows of the API, columns. out: text on stdout. Names are their owners', so nothing of them reaches a terminal as a command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

FORMATTERS = ("table", "pretty_table", "csv", "json")


def field_of(value: Any, path: str) -> Any:
    """The member that a path with dots names, or None."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def cell(value: Any) -> str:
    """As rabbitmqctl writes it."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return f"[{', '.join(value)}]"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def printable(text: str) -> str:
    """The text with everything that can't be printed as escapes."""
    if text.isprintable():
        return text
    from flintmq.loglines import one_line  # loads `logging`, which few calls need

    return one_line(text)


def as_json(value: Any) -> str:
    """JSON on one line, in the letters of its texts unless one of them can't be printed."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], formatter: str, headers: bool) -> None:
    """Args: rows: column -> value; headers: whether the names of columns stand above (never above nothing, as with rabbitmqctl)."""
    if formatter == "json":
        click.echo(as_json([{column: row[column] for column in columns} for row in rows]))
        return
    lines = [[cell(row[column]) for column in columns] for row in rows]
    if not lines:
        return
    lines = [list(columns), *lines] if headers else lines
    if formatter == "csv":
        import csv

        shown = [list(map(printable, line)) for line in lines] if sys.stdout.isatty() else lines
        csv.writer(sys.stdout, lineterminator="\n").writerows(shown)
        return
    lines = [list(map(printable, line)) for line in lines]
    if formatter == "pretty_table":
        _boxes(lines, headers)
        return
    for line in lines:
        click.echo("\t".join(line))


def _boxes(lines: list[list[str]], headers: bool) -> None:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def rule(start: str, middle: str, end: str) -> None:
        click.echo(start + middle.join("─" * (width + 2) for width in widths) + end)

    rule("┌", "┬", "┐")
    for number, line in enumerate(lines):
        click.echo("│" + "│".join(f" {one.ljust(width)} " for one, width in zip(line, widths, strict=True)) + "│")
        if headers and number == 0 and len(lines) > 1:
            rule("├", "┼", "┤")
    rule("└", "┴", "┘")


def show_record(value: Mapping[str, Any], formatter: str) -> None:
    """One thing with its members, one a line; JSON where that is asked for."""
    if formatter == "json":
        click.echo(as_json(value))
        return
    show_rows([{"name": name, "value": one} for name, one in value.items()], ("name", "value"), formatter, headers=False)
