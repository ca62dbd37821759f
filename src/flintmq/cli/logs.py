"""Log lines on stderr: time in UTC to the millisecond, level, logger, text. Cheap enough to write one for every connection.

The message path never logs; connections, errors and alarms do. What a line does not show (thread and process names, the calling
function) is not looked up, and the time's text is made once a second.
"""

from __future__ import annotations

import logging
import sys
import time


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
        line = f"{self._text}.{int(record.msecs):03}Z [{record.levelname}] {record.name}: {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def log_to_stderr(level: str) -> None:
    """Sets up the process's logging. Args: level: debug, info, warning or error."""
    # Documented switches of the logging module: skip what no line shows ("Optimization" in its how-to).
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False
    logging.logAsyncioTasks = False  # type: ignore[attr-defined,unused-ignore]  # 3.12
    logging._srcfile = None  # type: ignore[attr-defined]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler])
