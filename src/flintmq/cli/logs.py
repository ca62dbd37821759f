"""Log lines on stderr: time in UTC to the millisecond, level, logger, text. Cheap enough to write one for every connection.

The message path never logs; connections, errors and alarms do. What a line does not show (thread and process names, the calling
function) is not looked up, the time's text is made once a second, and lines below WARNING are written in batches: by the next
warning, when BATCH of them wait, or by `flush_logs`, which `serve` calls every half second.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import nullcontext

from flintmq.loglines import LineFormatter, LineLogger

# lines
BATCH = 64


class BatchHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines below WARNING a batch at a time, everything else at once. Logging's own lock makes it thread-safe."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lines: list[str] = []
        self._line_formatter = LineFormatter()
        self.setFormatter(self._line_formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)
        if record.levelno >= logging.WARNING or len(self._lines) >= BATCH:
            self.flush()

    def info(self, name: str, text: str) -> None:
        """A line of level INFO without a record (LineLogger.sink). Args: name: of the logger. Any thread."""
        with self.lock or nullcontext():
            self._lines.append(self._line_formatter.line(time.time(), "INFO", name, text))
            if len(self._lines) >= BATCH:
                self.flush()

    def flush(self) -> None:
        with self.lock or nullcontext():
            lines, self._lines = self._lines, []
            if lines:
                self.stream.write("\n".join(lines) + "\n")
                self.stream.flush()


def flush_logs() -> None:
    """Writes what waits. Any thread."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def log_to_stderr(level: str) -> None:
    """Sets up the process's logging. Args: level: debug, info, warning or error."""
    # Documented switches of the logging module: skip what no line shows ("Optimization" in its how-to).
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False
    logging.logAsyncioTasks = False  # type: ignore[attr-defined,unused-ignore]  # 3.12
    logging._srcfile = None  # type: ignore[attr-defined]
    handler = BatchHandler()
    LineLogger.sink = handler.info
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler])
