"""Lines of the log for refused accesses and logins of all protocols; bounded, so that no peer fills the log.

in: refusals, from any thread. out: lines of the logger `flintmq.audit`, and the same, with the changes of definitions (their own logger
has those), in the file of `--audit-log`.

U1  A user has Limits.audit_user_lines lines a second; those beyond are counted, and the user's next line says how many they were.
U2  Nobody waits for the file: a thread writes what stands in a line of Limits.audit_line_max; beyond that lines of the file are dropped,
    counted, and their number is written.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from logging.handlers import WatchedFileHandler
from typing import Any

from flintmq.clock import Clock
from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.loglines import LineFormatter

log = logging.getLogger("flintmq.audit")
# whose lines the file of the audit has
LOGGERS = ("flintmq.audit", "flintmq.definitions")


class Audit:
    """Args: clock; limits. Any thread."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._lock = threading.Lock()
        # user -> [second, lines in it, lines left out since the last one]
        self._users: OrderedDict[str, list[int]] = OrderedDict()
        self.refused_total = 0

    def changed(self, user: str, what: str) -> None:
        """Something that an administrator did which is no change of definitions."""
        log.info("user %r: %s", user[:255], what[:1024])

    def refused(self, user: str, what: str, peer: str = "") -> None:
        """One refusal. Args: user: who asked, as far as is known; what: the words of the refusal; peer: from where."""
        second = self._clock.monotonic_ns() // 1_000_000_000
        with self._lock:
            self.refused_total += 1
            known = self._users.get(user)
            if known is None:
                known = self._users[user] = [second, 0, 0]
                if len(self._users) > self._limits.audit_users_max:
                    self._users.popitem(last=False)
            self._users.move_to_end(user)
            if known[0] != second:
                known[0], known[1] = second, 0
            known[1] += 1
            if known[1] > self._limits.audit_user_lines:
                known[2] += 1
                return
            left_out, known[2] = known[2], 0
        more = f" ({left_out} more refusals of this user had no line)" if left_out else ""
        log.warning("refused: user %r%s: %s%s", user[:255], f" at {peer}" if peer else "", what[:1024], more)


class AuditFile(logging.Handler):
    """The lines of LOGGERS in a file of their own (U2). A file that was moved away (log rotation) is made anew."""

    def __init__(self, path: str, limits: Limits) -> None:
        """Raises: OperatorError (78) when the file can't be written."""
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
