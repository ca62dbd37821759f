"""Regular expressions of users, on RabbitMQ's engine: one class for permissions, policies, links, directories and filters of the API.

in: the text of a pattern, names of clients. out: whether a name matches; Undecided.

N1  Patterns and names are bytes (UTF-8), searched as Erlang's `re` does: classes are ASCII, `$` also stands before a last line end. What
    PCRE2 reads otherwise than the PCRE of Erlang (`{,3}`, unknown escapes) is rewritten to the older meaning.
N2  A search costs at most `pattern_steps_max` steps, fewer where names are long or patterns many (`_steps`, Among). PCRE2 counts steps
    anew at each place of the name, so an unanchored pattern gets a lazy `.*?` in front and is tried at one place. Limits stand behind the
    verbs that a user put in front, because PCRE2 takes the last one.
N3  What is not decided within that budget, or is no pattern for PCRE2, matches nothing; it is counted by its use and logged. Whoever
    negates a match asks `decide`, which raises Undecided.
N4  A compiled pattern has at most some 15 KiB; the last `pattern_cache_max` of them are kept, whoever uses them.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pcre2 import LibraryError, PatternError, _cy

from flintmq.config import Limits

log = logging.getLogger("flintmq.patterns")

_LIMITS = Limits()
_STEPS_MAX = _LIMITS.pattern_steps_max
# bytes of a pattern of somebody who is no administrator
SHORT_BYTES_MAX = _LIMITS.pattern_short_bytes_max
# options of PCRE2 (pcre2.h) that the package has no names for: no UTF; it sets \uhhhh and no \C itself
_NEVER_UTF, _ALT_BSUX, _NEVER_BACKSLASH_C = 0x1000, 0x2, 0x100000
_ANCHORED = int(_cy.MatchOption.ANCHORED)
_NO_CALLOUTS = _cy.create_match_context()
# with so much in front only some 15 KiB are left of the 64 KiB that PCRE2 compiles (N4)
_PADDING = rb"(?:[bc]){1300}|"
# A step may look at the whole name: names above so many bytes have fewer of them
_SHORT_NAME = 40
# patterns among many that get the steps of a single one
_SPARE = 4
# of a search in very many names: a part of the steps (some 25 us), and names that get all of them
_NAMES_SHARE, _NAMES_SPARE = 16, 1_000
# characters of a pattern in a line of the log
_SHOWN = 200

# verbs that say how a pattern is compiled; they stand at its beginning alone
_VERBS = re.compile(
    rb"(?:\(\*(?:UTF8?|UCP|LIMIT_[A-Z]+=[0-9]+|NO_[A-Z_]+|NOTEMPTY(?:_ATSTART)?|CR|LF|CRLF|ANYCRLF|ANY|NUL|BSR_ANYCRLF|BSR_UNICODE)\))*"
)
_LIMIT = re.compile(rb"\(\*LIMIT_([A-Z]+)=([0-9]+)\)")
_TOKENS = re.compile(
    rb"""
      (?P<kept>\\Q.*?(?:\\E|\Z) | \\[xpPgkoN]\{[^}]*\}? | \(\?\#[^)]*\)?
             | \[\^?\]?(?>\[:\^?[a-z]+:\] | \\Q.*?(?:\\E|\Z) | \\. | [^]\\])*+\]?)
    | (?P<each>\(\*(?:COMMIT|PRUNE|SKIP|THEN)[^)]*\)? | \(\?[R0]\) | \\g(?:<[+-]?0>|'[+-]?0'))
    | (?P<start>\^|\\A|\.(?=[*+]))
    | (?P<letter>\\[FiIjJmMOqTyY])
    | (?P<escape>\\c?.)
    | (?P<flags>\(\?[is]+\))
    | (?P<open>\()
    | (?P<close>\))
    | (?P<bar>\|)
    | (?P<brace>\{(?![0-9]+(?:,[0-9]*)?\}))
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# flags that move `^`, or that make comments whose parentheses are none
_MOVES = re.compile(rb"\(\?\^?[a-zA-Z-]*[xm]")
# how a pattern is tried: at the start of the name alone, at one place behind a lazy prefix, or at each place with a part of the budget
_AT_START, _WRAPPED, _EACH = range(3)


class Undecided(Exception):
    """Whether a name matches is not known: the budget was spent, or the pattern is none. Args: source: its text."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(reason)
        self.source = source


class Report:
    """Counts what was not decided, and says so: one line of the log for each use and interval, with the number of those left out.

    Args: interval_s; clock: seconds, monotonic. Any thread.
    """

    def __init__(self, interval_s: float = _LIMITS.guard_log_ms / 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[str, tuple[float, int]] = {}  # use -> when the log had its last line, and the count then

    def add(self, use: str, error: Undecided) -> None:
        """One more. Args: use: a word of the code, each has its line in the metrics."""
        now = self._clock()
        with self._lock:
            self.counts[use] += 1
            count = self.counts[use]
            last, before = self._logged.get(use, (-self._interval_s, 0))
            if now - last < self._interval_s:
                return
            self._logged[use] = (now, count)
        hidden = f" ({count - before - 1} more like it were not logged)" if count - before > 1 else ""
        log.warning("the %s pattern %r matches nothing: %s. Write a simpler pattern%s", use, error.source[:_SHOWN], error, hidden)


report = Report()


def undecided() -> dict[str, int]:
    """Searches of this process that were not decided, by the use of their pattern: for the metrics."""
    return dict(report.counts)


class _Form:
    """The compiled form of a text. head: verbs; limits: lower ones that the text asks for; body; kind: how it is tried."""

    __slots__ = ("body", "head", "kind", "limits")

    def __init__(self, source: bytes) -> None:
        lead = _VERBS.match(source)
        head = lead[0] if lead is not None else b""
        self.limits = {name: int(value[:9]) for name, value in _LIMIT.findall(head)}
        self.head = _LIMIT.sub(b"", head)
        parts, depth, may_start, anchored, each = [], 0, True, not head, False
        for token in _TOKENS.finditer(source, len(head)):
            kind, text = token.lastgroup, token[0]
            if kind == "letter":
                text = text[1:]  # as the PCRE of Erlang reads it
            elif kind == "brace":
                text = b"\\{"
            elif kind == "open":
                depth += 1
            elif kind == "close":
                depth -= 1
            each |= kind == "each"
            if depth <= 0 and kind == "bar":
                may_start, anchored = True, anchored and not may_start
            elif may_start and kind != "flags":
                may_start, anchored = False, anchored and kind == "start"
            parts.append(text)
        self.body = b"".join(parts)
        self.kind = _EACH if each else _AT_START if anchored and not may_start and not _MOVES.search(source) else _WRAPPED


def _compiled(text: bytes) -> Any:
    return _cy.compile(text, _NEVER_UTF, _ALT_BSUX | _NEVER_BACKSLASH_C)


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@lru_cache(_LIMITS.pattern_cache_max)
def _form(source: bytes) -> _Form:
    return _Form(source)


@lru_cache(_LIMITS.pattern_cache_max)
def _code(source: bytes, steps: int, kind: int) -> Any:
    """The compiled pattern; a text when it is none."""
    form, asked = _form(source), _form(source).limits
    limits = b"(*LIMIT_MATCH=%d)(*LIMIT_DEPTH=%d)(*LIMIT_HEAP=%d)" % (
        min(steps, asked.get(b"MATCH", steps)),
        min(_LIMITS.pattern_depth_max, asked.get(b"DEPTH", _STEPS_MAX), asked.get(b"RECURSION", _STEPS_MAX)),
        min(_LIMITS.pattern_heap_kib, asked.get(b"HEAP", _STEPS_MAX)),
    )
    try:
        _compiled(form.head + form.body)
        if kind == _AT_START:
            return _compiled(form.head + limits + form.body)
        if kind == _EACH:  # an empty group, so that nothing of the body is taken for a verb behind the limits
            return _compiled(form.head + limits + b"(?:)" + form.body)
        prefix = form.head + limits + b"(?s:.*?)(?:" + form.body
        try:
            return _compiled(prefix + b"\\E)")
        except PatternError:
            return _compiled(prefix + b"\n)")  # it ends in a comment of (?x)
    except PatternError as error:
        return str(error)


def _steps(size: int, share: int) -> int:
    """N2: steps of a search in a name of `size` bytes by one of `share` patterns. Rounded, so that few forms are compiled; never fewer
    than an ordinary pattern takes at one place after the other."""
    allowed = _STEPS_MAX * _SHORT_NAME // (max(size, _SHORT_NAME) * share)
    steps = max(allowed, 2 * size + 64)
    return _STEPS_MAX if steps >= _STEPS_MAX else 1 << (steps.bit_length() - 1)


def check(source: Any, bytes_max: int = _LIMITS.pattern_bytes_max) -> str | None:
    """Why a text is refused as a pattern; None: it is not. Costs at most some milliseconds, for thousands of alternatives."""
    if not isinstance(source, str):
        return "a pattern is a text"
    try:
        octets = _octets(source)
    except UnicodeEncodeError:
        return "a pattern is UTF-8"
    if len(octets) > bytes_max:
        return f"a pattern has at most {bytes_max} bytes"
    form = _form(octets)
    try:
        _compiled(form.head + form.body)
    except PatternError as error:
        return f"not a regular expression: {error}"
    try:
        _compiled(form.head + _PADDING + form.body)
    except PatternError:
        return "its repeats make it too large: 15 KiB is the limit of a compiled pattern"
    return None


def quoted(text: str) -> str:
    """A pattern that matches the text and nothing else."""
    return "".join(one if one.isalnum() or ord(one) > 127 else f"\\x{ord(one):02x}" for one in text)


class Among:
    """Searches that belong together: they share steps, and the first `spare` for which a share is too little get all steps of a single one.

    So a thousand patterns for one name, or one pattern for a hundred thousand names, do not take as much time as may be wasted on one
    search, and what an ordinary pattern needs now and then is there. Args: count: patterns for one name.
    """

    __slots__ = ("count", "spare")

    def __init__(self, count: int, spare: int = _SPARE) -> None:
        self.count = max(count, 1)
        self.spare = spare

    @staticmethod
    def for_names(count: int = 1) -> Among:
        """For very many names. Args: count: patterns for each."""
        return Among(max(count, _NAMES_SHARE), _NAMES_SPARE)


class Pattern:
    """One pattern of a user. Use by any thread.

    Args: source: its text; use: for the metrics and the log ("permission", "policy"); caseless.
    """

    __slots__ = ("_octets", "caseless", "source", "use")

    def __init__(self, source: str, use: str, *, caseless: bool = False) -> None:
        self.source = source
        self.use = use
        self._octets: bytes | None
        try:
            self._octets = (b"(?i)" if caseless else b"") + _octets(source)
        except UnicodeEncodeError:
            self._octets = None

    def told(self) -> Pattern:
        """Itself; says in the log when it is none: of a pattern stored by an earlier version."""
        reason = check(self.source)
        if reason is not None:
            log.warning("the stored %s pattern %r matches nothing: %s. Set another one", self.use, self.source[:_SHOWN], reason)
        return self

    def decide(self, name: str, share: int = 1) -> bool:
        """Whether it is found in the name. Args: share: patterns that share one budget. Raises: Undecided."""
        if self._octets is None:
            raise Undecided(self.source, "it is not UTF-8")
        subject = _octets(name)
        size = len(subject)
        form, steps = _form(self._octets), _steps(size, share)
        kind = form.kind
        if kind == _AT_START and b"\n" in subject:
            kind = _WRAPPED  # `.*` may begin behind each line end
        elif kind == _EACH:
            steps = 1 << max(steps // (size + 1), 16).bit_length()
        code = _code(self._octets, steps, kind)
        if isinstance(code, str):
            raise Undecided(self.source, code)
        try:
            return _cy.match(code, subject, size, 0, _NO_CALLOUTS, 0 if kind == _EACH else _ANCHORED)[0] is not None
        except LibraryError as error:
            raise Undecided(self.source, f"{error}, for a name of {size} bytes") from None

    def matches(self, name: str, among: Among | None = None) -> bool:
        """N3: whether it is known to be found in the name. Args: among: the patterns that this name is searched for."""
        try:
            if among is None:
                return self.decide(name)
            try:
                return self.decide(name, among.count)
            except Undecided:
                if among.count == 1 or not among.spare:
                    raise
                among.spare -= 1
                return self.decide(name)
        except Undecided as error:
            report.add(self.use, error)
            return False


# --- patterns with two wildcards ----------------------------------------------------------------------------------------------


def matches_glob(pattern: str, name: str) -> bool:
    """Whether `name` matches: * stands for any characters, ? for one. Takes time in proportion to the product of both lengths."""
    return _glob(pattern).match(name) is not None


@lru_cache(maxsize=256)
def _glob(pattern: str) -> re.Pattern[str]:
    """The engine looks at names some hundred times faster than Python can. The text between two stars is found at its first place and
    tried nowhere else (an atomic group), so no pattern takes exponential time."""
    first, *parts = ("".join("." if one == "?" else re.escape(one) for one in part) for part in pattern.split("*"))
    between = "".join(f"(?>.*?{part})" for part in parts[:-1] if part)
    return re.compile(f"{first}{between}{f'.*{parts[-1]}' if parts else ''}\\Z", re.DOTALL)
