"""From an error of Spark, of the source or of the data plane to one line and an exit code.

In: any exception of a job. Out: OperatorError: the first line that says what happened, and the sysexits code of it.
Invariant: neither a Java nor a Python trace is part of the text.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from flintmq.errors import OperatorError

USAGE, DATA, UNAVAILABLE, INTERNAL, IO_ERROR, CONFLICT, CONFIG = 64, 65, 69, 70, 74, 75, 78

# Codes of docs/PIPELINE.md, its pages and docs/DATAPLANE.md, without FLINTMQ_. Others: see `exit_code`.
_CODES = {
    "BAD_ARGUMENT": USAGE,
    "MODE": USAGE,
    "NO_BATCH_READ": USAGE,
    "NO_TABLE": USAGE,
    "NO_STREAM_READ": USAGE,
    "SCHEMA_MISMATCH": DATA,
    "BAD_ROW": DATA,
    "NULL_BODY": DATA,
    "DATA_LOSS": DATA,
    "SET_CHANGED": DATA,
    "DAMAGED": DATA,
    "LOG_DAMAGED": DATA,
    "UNROUTABLE": DATA,
    "OVER_LIMIT": DATA,
    "LOGIN_REFUSED": CONFIG,
    "UNAUTHENTICATED": CONFIG,
    "FORBIDDEN": CONFIG,
    "FENCED": CONFLICT,
    "QUEUES_DIFFER": CONFLICT,
    "SCOPE_LOST": CONFLICT,
    "BATCH_UNREAD": CONFLICT,
    "NOT_PREPARED": CONFLICT,
    "READER_ACTIVE": CONFLICT,
    "INTERNAL": INTERNAL,
    "PROTOCOL": INTERNAL,
}
_CODE = re.compile(r"FLINTMQ_([A-Z][A-Z_]{1,40}): ")
# What Spark says itself, in words that its users know: a piece of it -> code, advice.
_OF_SPARK = (
    ("CONCURRENT_STREAM_LOG_UPDATE", CONFLICT, "another query writes to this checkpoint"),
    ("PATH_ALREADY_EXISTS", USAGE, ""),
    ("PATH_NOT_FOUND", UNAVAILABLE, ""),
    ("UNABLE_TO_INFER_SCHEMA", UNAVAILABLE, ""),
    ("AccessControlException", CONFIG, ""),
    ("Permission denied", CONFIG, ""),
    ("No space left on device", IO_ERROR, ""),
)
# Spark ends a JVM in which a task met an error that no program goes on from, before all that there is no memory.
JVM_GONE = "Spark's JVM has ended: --debug shows its last words; more --driver-memory helps when there was too little"


def exit_code(code: str) -> int:
    """Of a code of ours, with or without FLINTMQ_. Another code is of the broker's or the data's place: unavailable."""
    code = code.removeprefix("FLINTMQ_")
    if code.startswith(("OPTION_", "COLUMN_")):
        return USAGE
    if code.startswith(("CHECKPOINT_", "SPOOL_")):
        return CONFLICT
    return _CODES.get(code, UNAVAILABLE)


def one_line(trace: str) -> str:
    """The line of a Java and Python trace that says what happened: ours if there is one."""
    match = _CODE.search(trace)
    if match:
        # Spark repeats the text on the same line in some of its wrappers.
        return trace[match.start() :].splitlines()[0].strip()
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("Caused by: "):
            return line.removeprefix("Caused by: ")
    return lines[0] if lines else "unknown error"


def explained(error: BaseException, subject: str = "") -> OperatorError:
    """The error for a person. Args: subject: stands before the text of an error that is not ours."""
    if isinstance(error, OperatorError):
        return error
    code, text = getattr(error, "code", None), getattr(error, "text", None)
    if isinstance(code, str) and isinstance(text, str):
        return OperatorError(f"FLINTMQ_{code}: {text}", exit_code(code))
    if isinstance(error, ModuleNotFoundError):
        return _not_installed(str(error.name))
    whole = text_of(error)
    if whole is None or _is_of_gateway(error):
        return OperatorError(f"{subject}: {JVM_GONE}" if subject else JVM_GONE, UNAVAILABLE)
    line = one_line(whole) if whole.strip() else type(error).__name__
    ours = _CODE.match(line)
    if ours:
        return OperatorError(line, exit_code(ours[1]))
    for piece, number, advice in _OF_SPARK:
        if piece in whole:
            said = next((one.strip() for one in whole.splitlines() if piece in one), line)
            return OperatorError(": ".join(part for part in (subject, said, advice) if part), number)
    if isinstance(error, OSError):
        return OperatorError(": ".join(str(part) for part in (error.filename, error.strerror) if part) or line, IO_ERROR)
    return OperatorError(f"{subject}: {line}" if subject else line, INTERNAL)


def text_of(error: BaseException) -> str | None:
    """What an error says. None: one of Py4J, which asks the JVM for that, and the JVM does not answer."""
    try:
        return str(error)
    except Exception:
        return None


def _is_of_gateway(error: BaseException) -> bool:
    """Whether a call of the JVM was not answered. By name: without Spark there is no Py4J."""
    if not isinstance(error, ConnectionError):
        return type(error).__name__ == "Py4JNetworkError"
    return any(frame.f_globals.get("__name__", "").startswith("py4j.") for frame, _ in traceback.walk_tb(error.__traceback__))


def _not_installed(name: str) -> OperatorError:
    package = name.partition(".")[0]
    extra = "delta" if package == "deltalake" else "spark"
    return OperatorError(f"the Python package {package} is not installed: pip install 'flintmq[{extra}]'", UNAVAILABLE)


@contextmanager
def one_clear_line(subject: str = "") -> Iterator[None]:
    """Turns what goes wrong inside into an OperatorError; KeyboardInterrupt and the like pass."""
    try:
        yield
    except Exception as error:
        explanation = explained(error, subject)
        if explanation is error:
            raise
        raise explanation from error
