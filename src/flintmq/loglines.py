"""How a log line looks, in all processes of the broker.

in: records of the logging module, which hold names that clients choose. out: lines of text. What can't be printed is shown as an escape, so
that nobody writes lines, or commands for a terminal, of his own; the lines of a trace, which holds such names too, begin with a bar.
"""

from __future__ import annotations

import logging
import time


def one_line(text: str) -> str:
    """The text with everything that can't be printed (line ends, controls, what turns the direction of writing) as Python's escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in text)


class LineFormatter(logging.Formatter):
    """`2026-11-21 06:59:29.123Z [INFO] flintmq.connection: text`."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._text = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
        line = f"{self._text}.{int(record.msecs):03}Z [{record.levelname}] {record.name}: {one_line(record.getMessage())}"
        if record.exc_info:
            line += "".join("\n  | " + one_line(one) for one in self.formatException(record.exc_info).split("\n"))
        return line
