"""Lines of the log that peers cause; bounded, so that no peer fills the log. Those for refused accesses and logins of all protocols.

in: refusals, and other lines that a peer causes, from any thread. out: lines of the logger `flintmq.audit`, and the same, with the
changes of definitions (their own logger has those), in the file of `--audit-log`.

U1  A user has Limits.audit_user_lines lines a second; those beyond are counted, and the user's next line says how many they were.
U2  Nobody waits for the file: a thread writes what stands in a line of Limits.audit_line_max; beyond that lines of the file are dropped,
    counted, and their number is written.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from flintmq.clock import Clock
from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.loglines import LineFormatter

log = logging.getLogger("flintmq.audit")
# whose lines the file of the audit has
LOGGERS = ("flintmq.audit", "flintmq.definitions")


class LineBound:
    """How many lines each cause of lines may have. Any thread; each call is O(1).

    Args: clock; lines: of one cause, in so many seconds; causes_max: that are counted; the one unused for longest makes room.
    """

    def __init__(self, clock: Clock, lines: int, causes_max: int, seconds: int = 1) -> None:
        self._clock = clock
        self._lines = lines
        self._causes_max = causes_max
        self._ns = seconds * 1_000_000_000
        self._lock = threading.Lock()
        # cause -> [number of the time, lines in it, lines left out since the last one]
        self._causes: OrderedDict[str, list[int]] = OrderedDict()
        self.asked_total = 0
        self.left_out_total = 0

    def take(self, cause: str) -> int | None:
        """How many lines were left out since the last one; None: this one is left out, too."""
        now = self._clock.monotonic_ns() // self._ns
        with self._lock:
            self.asked_total += 1
            known = self._causes.get(cause)
            if known is None:
                known = self._causes[cause] = [now, 0, 0]
                if len(self._causes) > self._causes_max:
                    self._causes.popitem(last=False)
            self._causes.move_to_end(cause)
            if known[0] != now:
                known[0], known[1] = now, 0
            known[1] += 1
            if known[1] > self._lines:
                known[2] += 1
                self.left_out_total += 1
                return None
            left_out, known[2] = known[2], 0
            return left_out

    def say(self, log_line: Callable[..., None], cause: str, text: str, *values: object) -> None:
        """A line of the log, unless the cause has had its lines."""
        left_out = self.take(cause)
        if left_out:
            log_line(text + " (%d more lines about %.80r were left out)", *values, left_out, cause)
        elif left_out is not None:
            log_line(text, *values)


class Audit:
    """Args: clock; limits. Any thread."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._bound = LineBound(clock, limits.audit_user_lines, limits.audit_users_max)

    @property
    def refused_total(self) -> int:
        return self._bound.asked_total

    def changed(self, user: str, text: str) -> None:
        """Something that an administrator did which is no change of definitions."""
        log.info("user %r: %s", user[:255], text[:1024])

    def refused(self, user: str, text: str, peer: str = "") -> None:
        """One refusal. Args: user: who asked, as far as is known; text: the words of the refusal; peer: from where."""
        left_out = self._bound.take(user)
        if left_out is None:
            return
        suffix = f" ({left_out} more refusals of this user had no line)" if left_out else ""
        log.warning("refused: user %r%s: %s%s", user[:255], f" at {peer}" if peer else "", text[:1024], suffix)


class AuditFile(logging.Handler):
    """The lines of LOGGERS in a file of their own (U2). A file that was moved away (log rotation) is made anew."""

    def __init__(self, path: str, limits: Limits) -> None:
        """Raises: OperatorError (78) when the file can't be written."""
        # its module loads pickle, which a broker without this file does not need
        from logging.handlers import WatchedFileHandler

        super().__init__(logging.INFO)
        try:
            self._file = WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise OperatorError(f"--audit-log {path}: {error.strerror}") from error
        self.setFormatter(LineFormatter())
        self._line: queue.Queue[str | None] = queue.Queue(limits.audit_line_max)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="flintmq-audit", daemon=True)

    def start(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        self._thread.start()

    def stop(self) -> None:
        """Writes what waits, for some seconds at most."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        try:
            self._line.put(None, timeout=1)
        except queue.Full:
            return
        self._thread.join(2)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._line.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        failed = False
        while (text := self._line.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text += f"\n{dropped} lines before this one were dropped: the disk was too slow"
            try:
                self._file.reopenIfNeeded()
                stream: Any = self._file.stream
                stream.write(text + "\n")
                stream.flush()
                failed = False
            except (OSError, ValueError, AttributeError) as error:
                if not failed:
                    log.error("the audit file can't be written: %s", error)
                failed = True
        self._file.close()
