"""A client's names stand in a log line as what they are: part of that one line."""

from __future__ import annotations

import logging
import sys

import pytest

from flintmq.cli.logs import LineRecord
from flintmq.loglines import LineFormatter, one_line


def line(text: str, *arguments: object, exc_info: object = None) -> str:
    return LineFormatter().format(logging.LogRecord("flintmq.x", logging.INFO, "", 0, text, arguments, exc_info))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("q", "q"),
        ("gr\u00fcn \u65e5\u672c", "gr\u00fcn \u65e5\u672c"),
        ("a\r\n2026-11-22 20:00:00.000Z [ERROR] flintmq.store: lost", "a\\r\\n2026-11-22 20:00:00.000Z [ERROR] flintmq.store: lost"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x00\x7f\x85\u2028\u2029\u202e\udcff", "\\x00\\x7f\\x85\\u2028\\u2029\\u202e\\udcff"),
    ],
)
def test_a_name_can_not_make_a_line_of_its_own(name: str, shown: str) -> None:
    assert one_line(name) == shown
    for text in (line("queue %s is full", name), line(f"queue {name} is full")):
        assert text.endswith(f"Z [INFO] flintmq.x: queue {shown} is full")


def test_nor_can_it_in_a_trace() -> None:
    try:
        raise ValueError("no queue 'a\n2026-11-22 20:00:00.000Z [ERROR] flintmq.store: lost\x1b[2J'")
    except ValueError:
        text = line("failed", exc_info=sys.exc_info())
    first, *rest = text.split("\n")
    assert first.endswith("flintmq.x: failed") and len(rest) > 2
    assert all(one.startswith("  | ") for one in rest) and "\x1b" not in text


def test_a_record_has_what_any_formatter_reads() -> None:
    """Programs that run a broker in their own process format its records as they like."""
    wanted = vars(logging.LogRecord("flintmq", logging.INFO, "path", 1, "%s", ("a",), None))
    made = LineRecord("flintmq", logging.INFO, "path", 1, "%s and %s", ("a", "b"), None)
    assert set(wanted) <= set(vars(made)) and made.getMessage() == "a and b"
    assert LineRecord("flintmq", logging.INFO, "", 1, "%(who)s", ({"who": "me"},), None).getMessage() == "me"
    line = logging.Formatter("%(levelname)s %(name)s %(filename)s:%(lineno)d %(threadName)s %(asctime)s %(message)s").format(made)
    assert line.startswith("INFO flintmq :0 None ") and line.endswith(" a and b")
