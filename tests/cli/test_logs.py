"""A client's names stand in a log line as what they are: part of that one line."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from flintmq.cli import logs
from flintmq.loglines import LineFormatter, LineLogger, line_logger, one_line


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


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[logs.BatchHandler]:
    """What `flintmq serve` writes with, over a text in memory."""
    made = logs.BatchHandler()
    made.setStream(io.StringIO())
    monkeypatch.setattr(LineLogger, "sink", made.info)
    yield made
    made.close()


def written(handler: logs.BatchHandler) -> list[str]:
    handler.flush()
    return handler.stream.getvalue().splitlines()


def test_a_line_without_a_record_looks_like_any_other(handler: logs.BatchHandler) -> None:
    logger = line_logger("flintmq.test.lines")
    assert isinstance(logger, LineLogger) and logging.getLogger("flintmq.test.lines") is logger
    logger.setLevel(logging.INFO)
    logger.info("connection %s: user %r", "a", "b\n")
    logger.info("100%")
    logger.setLevel(logging.WARNING)
    logger.info("not wanted")
    handler.handle(logging.LogRecord("flintmq.test.lines", logging.INFO, "", 0, "connection %s: user %r", ("a", "b\n"), None))
    texts = [one.partition("Z ")[2] for one in written(handler)]
    assert texts == [
        "[INFO] flintmq.test.lines: connection a: user 'b\\n'",
        "[INFO] flintmq.test.lines: 100%",
        "[INFO] flintmq.test.lines: connection a: user 'b\\n'",
    ]


def test_lines_are_written_in_their_order_at_the_next_warning_or_when_there_are_many(handler: logs.BatchHandler) -> None:
    logger = line_logger("flintmq.test.lines")
    logger.setLevel(logging.INFO)
    logger.info("first")
    assert handler.stream.getvalue() == ""
    handler.handle(logging.LogRecord("flintmq.x", logging.WARNING, "", 0, "second", (), None))
    assert [one.rpartition(" ")[2] for one in handler.stream.getvalue().splitlines()] == ["first", "second"]
    for number in range(logs.BATCH):
        logger.info("line %d", number)
    assert len(handler.stream.getvalue().splitlines()) == 2 + logs.BATCH


def test_without_a_sink_and_with_more_it_is_a_logger_as_any_other(handler: logs.BatchHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that run a broker in their own process get records, whatever they have set up."""
    logger = line_logger("flintmq.test.lines")
    logger.setLevel(logging.INFO)
    seen: list[logging.LogRecord] = []
    own = logging.Handler()
    own.emit = seen.append  # type: ignore[method-assign]
    logger.addHandler(own)
    try:
        logger.info("with %s", "more", extra={"who": "me"})
        monkeypatch.setattr(LineLogger, "sink", None)
        logger.info("without")
    finally:
        logger.removeHandler(own)
    assert [one.getMessage() for one in seen] == ["with more", "without"] and written(handler) == []
    known = logging.getLogger("flintmq.test.known")
    assert line_logger("flintmq.test.known") is known and logging.getLoggerClass() is logging.Logger
