"""The form of a log line in all processes of the broker, and the short way of the lines that come with every connection.

in: records of the logging module, which hold names that clients choose. out: lines of text. An unprintable character is shown as an escape,
so that nobody writes lines, or commands for a terminal, of his own; the lines of a trace, which holds such names too, begin with a bar.

A record of the logging module passes some ten functions on its way to a line: 390 of the 4,100 bytecodes of a short connection.
`flintmq serve`, which alone decides what becomes of its lines, sets `LineLogger.sink`; without it a LineLogger is a logger as any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar

_PRINTABLE = bytes(range(0x20, 0x7F))


def one_line(text: str) -> str:
    """The text with everything that can't be printed (line ends, controls, what turns the direction of writing) as Python's escapes."""
    # By a table of bytes: str.isprintable asks a function for each character.
    if text.isascii() and not text.encode().translate(None, _PRINTABLE):
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in text)


class LineFormatter(logging.Formatter):
    """`2026-11-21 06:59:29.123Z [INFO] flintmq.connection: text`."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._text = ""

    def line(self, created: float, level: str, name: str, text: str) -> str:
        """One line. Args: created: seconds since the epoch; level, name: of the record and its logger."""
        second = int(created)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((created - second) * 1000):03}Z [{level}] {name}: {one_line(text)}"

    def format(self, record: logging.LogRecord) -> str:
        line = self.line(record.created, record.levelname, record.name, record.getMessage())
        if record.exc_info:
            line += "".join("\n  | " + one_line(one) for one in self.formatException(record.exc_info).split("\n"))
        return line


class LineLogger(logging.Logger):
    """A logger whose `info` goes straight to `sink(name, text)`, when there is one. Arguments are those of `%` in their order."""

    sink: ClassVar[Callable[[str, str], None] | None] = None

    def info(self, msg: Any, *args: object, **options: Any) -> None:
        if self.isEnabledFor(logging.INFO):
            sink = LineLogger.sink
            if sink is None or options:
                self._log(logging.INFO, msg, args, **options)
            else:
                sink(self.name, msg % args if args else msg)


def line_logger(name: str) -> logging.Logger:
    """The logger of that name, as logging.getLogger gives it: a LineLogger, unless somebody has made it as another kind before."""
    before = logging.getLoggerClass()
    logging.setLoggerClass(LineLogger)
    try:
        return logging.getLogger(name)
    finally:
        logging.setLoggerClass(before)
