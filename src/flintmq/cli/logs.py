"""Log lines on stderr: time in UTC to the millisecond, level, logger, text. Cheap enough to write one for every connection.

The message path never logs; connections, errors and alarms do. What a line does not show (thread and process names, the calling
function) is not looked up, the time's text is made once a second, and lines below WARNING are written in batches: by the next
warning, when BATCH of them wait, or by `flush_logs`, which `serve` calls every half second.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from flintmq.loglines import LineFormatter

# lines
BATCH = 64
LEVEL_NAMES = {level: logging.getLevelName(level) for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)}


class BatchHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines below WARNING a batch at a time, everything else at once. Logging's own lock makes it thread-safe."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)
        if record.levelno >= logging.WARNING or len(self._lines) >= BATCH:
            self.flush()

    def flush(self) -> None:
        with self.lock or nullcontext():
            lines, self._lines = self._lines, []
            if lines:
                self.stream.write("\n".join(lines) + "\n")
                self.stream.flush()


# what every record has; what a line does not show is nothing. Formatters of others read a record's own dictionary.
DEFAULTS: dict[str, Any] = {
    "name": "",
    "levelno": 0,
    "levelname": "",
    "msg": "",
    "args": (),
    "exc_info": None,
    "created": 0.0,
    "msecs": 0.0,
    "pathname": "",
    "filename": "",
    "module": "",
    "funcName": "",
    "lineno": 0,
    "relativeCreated": 0.0,
    "stack_info": None,
    "exc_text": None,
    "thread": None,
    "threadName": None,
    "process": None,
    "processName": None,
    "taskName": None,
}


class LineRecord(logging.LogRecord):
    """A record of what a line shows: where in the code it was made is not looked up, nor its thread and process."""

    def __init__(
        self, name: str, level: int, pathname: str, lineno: int, msg: object, args: Any, exc_info: Any, *ignored: object, **more: object
    ) -> None:
        fields: dict[str, Any] = DEFAULTS.copy()
        fields["name"] = name
        fields["levelno"] = level
        fields["levelname"] = LEVEL_NAMES.get(level) or logging.getLevelName(level)
        fields["msg"] = msg
        # `%(name)s` in a text takes its values from a mapping.
        fields["args"] = args[0] if args and len(args) == 1 and args[0] and isinstance(args[0], Mapping) else args
        fields["exc_info"] = exc_info
        fields["created"] = now = time.time()
        fields["msecs"] = now % 1 * 1000
        self.__dict__ = fields


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
    logging.setLogRecordFactory(LineRecord)
    handler = BatchHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler])
