"""The engine on etcd: each commit is one transaction of etcd, each watch one stream.

in: commits, reads and watches of rows whose keys stand behind a prefix. out: what etcd's log decided.

T1  Conditions compare values inside etcd's transaction, so a commit that arrives late is judged by the rows as they are then (E4).
T2  Lack of space: etcd makes the request that crosses its quota, and answers with the same error as for those that it refuses behind it.
    The first such answer is an UnknownOutcome; then the engine asks for the alarm before each put, and refuses it by itself (Full).
T3  A watch starts anew after each loss of its stream, and says None when the new one stands. It needs no revision of the past, so no
    compaction ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import grpc

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, EngineLimits, Full, Row, Unavailable, Unfit, Usage, check
from flintmq.engines.etcd import wire
from flintmq.engines.etcd.members import Compacted, Members, NoSpace
from flintmq.engines.feed import Feed
from flintmq.engines.urls import shown

# rows of the first request of a page, before anything is known of their sizes; bytes of a later one: the event loop decodes them in a
# millisecond
_FIRST_ROWS = 8
_PIECE = 1 << 20
# times that a page begins anew because its revision was compacted
_PAGE_TRIES = 3
# etcd 3.4 is the first that sends large revisions in fragments
_VERSION = (3, 4)
# share of the quota, in percent, that rows may take when an alarm is ended
_ROOM_PERCENT = 80


class EtcdEngine:
    """Args: members: of the cluster; name: for people; limits: of the node; prefix: of all keys."""

    def __init__(self, members: Members, name: str, limits: Limits, prefix: bytes) -> None:
        self.limits = EngineLimits(
            key_bytes=limits.engine_key_bytes_max,
            value_bytes=limits.engine_etcd_value_bytes_max,
            commit_bytes=limits.engine_etcd_commit_bytes_max,
            commit_rows=limits.engine_etcd_commit_rows_max,
        )
        self.name = name
        self._members = members
        self._settings = limits
        self._prefix = prefix
        self._is_fit = False
        self._is_full = False  # etcd said so, and nobody has seen it end since
        self._defragment_due = float("-inf")  # time.monotonic() before which there is none
        self._defragment_pause_ms = limits.engine_etcd_defragment_pause_ms
        self._defragmented_revision = 0
        self._revisions: deque[tuple[float, int]] = deque()  # (time.monotonic(), the newest revision then)

    async def connect(self) -> None:
        if self._is_fit:
            return
        await self._members.call(wire.RANGE, wire.read(self._prefix, limit=1))
        for status in await self._statuses():
            number = re.match(r"(\d+)\.(\d+)", status.version)
            if number is None or (int(number[1]), int(number[2])) < _VERSION:
                raise Unfit(f"{self.name}: etcd {status.version} is too old. Use 3.4 or later")
        self._is_fit = True

    # --- commits and reads --------------------------------------------------------------------------------------------
    async def commit(self, commit: Commit) -> bool:
        check(commit, self.limits)
        if commit.puts and self._is_full:
            self._is_full = bool(await self._alarms())
            if self._is_full:
                raise Full(f"{self.name} has an alarm for lack of space")
        prefix = self._prefix
        compares = [wire.compare(prefix + key, value) for key, value in commit.conditions]
        steps = [wire.delete_step(prefix + begin, prefix + end) for begin, end in commit.clears if begin < end]
        steps += [wire.delete_step(prefix + key) for key in commit.deletes]
        steps += [wire.put_step(prefix + key, value) for key, value in commit.puts.items()]
        try:
            answer = await self._members.call(wire.TXN, wire.transaction(compares, steps), repeat=not steps)
        except NoSpace:
            self._is_full = True
            raise
        return wire.transaction_answer(answer)[0]

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        steps = [wire.read_step(wire.read(self._prefix + key)) for key in keys]
        _, reads = wire.transaction_answer(await self._members.call(wire.TXN, wire.transaction((), steps)))
        return [read.rows[0][1] if read.rows else None for read in reads]

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        """See the port. Cost: etcd reads the whole range for each request of a page in reverse order; keep such ranges small."""
        if begin >= end or rows <= 0 or size <= 0:
            return []
        for _ in range(_PAGE_TRIES):
            with contextlib.suppress(Compacted):
                return await self._page(self._prefix + begin, self._prefix + end, rows, size, reverse)
        raise Unavailable(f"{self.name}: the rows change faster than a page of them is read")

    async def _page(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool) -> list[Row]:
        """One page, in requests that all read one revision: etcd bounds an answer by rows, and not by their sizes."""
        page: list[Row] = []
        skip = len(self._prefix)
        room, step, revision = size, min(rows, _FIRST_ROWS), 0
        while True:
            answer = wire.range_answer(await self._members.call(wire.RANGE, wire.read(begin, end, step, revision, reverse)))
            for key, value in answer.rows:
                page.append((key[skip:], value))
                room -= len(key) - skip + len(value)
                if room <= 0:
                    return page
            if not answer.more or len(page) >= rows:
                return page
            revision = revision or answer.revision
            last = answer.rows[-1][0]
            begin, end = (begin, last) if reverse else (last + b"\0", end)
            mean = (size - room) // len(page) + 1
            step = max(1, min(rows - len(page), min(room, _PIECE) // mean + 1))

    # --- watches ------------------------------------------------------------------------------------------------------
    async def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        """See the port."""
        feed = Feed(begin, end, self._settings.engine_watch_keys_max)
        task = asyncio.create_task(self._follow(feed))
        try:
            while True:
                yield await feed.next()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self, feed: Feed) -> None:
        while True:
            with contextlib.suppress(EngineError, ValueError):
                await self._stream(feed)
            await asyncio.sleep(self._settings.engine_etcd_pause_ms / 1_000)

    async def _stream(self, feed: Feed) -> None:
        """Feeds it until the stream ends."""
        skip = len(self._prefix)
        answers = self._members.stream(wire.WATCH, wire.watch(self._prefix + feed.begin, self._prefix + feed.end))
        async with contextlib.aclosing(answers):  # type: ignore[type-var]
            async for data in answers:
                answer = wire.watch_answer(data)
                if answer.canceled:
                    if "auth" in answer.reason or "permission" in answer.reason:
                        self._members.forget()
                    return
                if answer.created:
                    feed.lose()
                feed.tell(key[skip:] for key in answer.keys)

    # --- room ---------------------------------------------------------------------------------------------------------
    async def _status(self, member: int) -> wire.StatusAnswer:
        return wire.status_answer(await self._members.ask(member, wire.STATUS, b"", self._settings.engine_etcd_request_ms))

    async def _alarms(self) -> list[int]:
        return wire.alarm_answer(await self._members.call(wire.ALARM, b""))

    async def _statuses(self) -> list[wire.StatusAnswer]:
        """Of the members that answer. Raises: Unavailable: none does."""
        answers = await asyncio.gather(*map(self._status, range(self._members.count)), return_exceptions=True)
        known = [answer for answer in answers if isinstance(answer, wire.StatusAnswer)]
        if not known:
            raise Unavailable(f"{self.name}: no member answers")
        return known

    async def usage(self) -> Usage:
        statuses = await self._statuses()
        quota = max(status.bytes_max for status in statuses) or self._settings.engine_etcd_quota_bytes
        return Usage(max(status.bytes for status in statuses), quota, full=bool(await self._alarms()))

    async def tidy(self) -> None:
        """Compacts revisions older than engine_etcd_history_ms.

        With an alarm for lack of space: all old revisions, then the files, member by member. The alarm ends when the files are smaller than
        80 % of the quota.
        """
        alarms = await self._alarms()
        revision = wire.range_answer(await self._members.call(wire.RANGE, wire.read(self._prefix, limit=1))).revision
        if alarms:
            await self._make_room(alarms, revision)
            return
        now = time.monotonic()
        self._revisions.append((now, revision))
        old = 0
        while self._revisions[0][0] < now - self._settings.engine_etcd_history_ms / 1_000:
            old = self._revisions.popleft()[1]
        if len(self._revisions) > self._settings.engine_etcd_revisions_max:
            self._revisions.popleft()
        if old:
            with contextlib.suppress(Compacted):  # another node did
                await self._members.call(wire.COMPACT, wire.compaction(old, physical=False))

    async def _make_room(self, alarms: list[int], revision: int) -> None:
        # whether it is of use is not known before: an idle etcd counts pages as used that a compaction has freed. Deletes move the revision
        is_due = time.monotonic() >= self._defragment_due
        denied = False
        if is_due and revision != self._defragmented_revision:
            for member in range(self._members.count):  # one after the other: a member answers nothing meanwhile
                for path, request in ((wire.COMPACT, wire.compaction(revision, physical=True)), (wire.DEFRAGMENT, b"")):
                    try:
                        await self._members.ask(member, path, request, self._settings.engine_etcd_defragment_ms)
                    except Unavailable as error:  # else it is away, or the revision is compacted already
                        denied = denied or "permission denied" in str(error)
            self._defragment_due, self._defragmented_revision = time.monotonic() + self._defragment_pause_ms / 1_000, revision
            self._defragment_pause_ms = min(2 * self._defragment_pause_ms, self._settings.engine_etcd_defragment_pause_ms_max)
        usage = await self.usage()
        if usage.bytes < usage.bytes_max * _ROOM_PERCENT // 100:
            for alarm in alarms:
                await self._members.call(wire.ALARM, wire.disarm(alarm))
            self._is_full = False
            self._defragment_pause_ms = self._settings.engine_etcd_defragment_pause_ms
        elif denied:
            raise Unavailable(f"{self.name} is full, and its user may not defragment it. Have a user with the role root do so")

    async def close(self) -> None:
        await self._members.close()


# authorities of Debian's and of Red Hat's family, where OpenSSL itself is set up with a directory of them
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


# --- URLs -------------------------------------------------------------------------------------------------------------
_FORM = "etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT], or etcds:// for TLS with ?ca=FILE&cert=FILE&key=FILE"


def open_url(url: str, limits: Limits, prefix: bytes) -> Engine:
    """`etcd://` and `etcds://`. Raises: ValueError: the URL, or a file that it names, can't be read; there is no prefix."""
    if not prefix:
        raise ValueError("an engine on etcd needs a prefix: etcd has no empty key")
    parts = urlsplit(url)
    login_text, sign, hosts = parts.netloc.rpartition("@")
    user, colon, password = login_text.partition(":")
    addresses = hosts.split(",")
    name = shown(url)
    if sign and not (user and colon):
        raise ValueError(f"{name}: a login is USER:PASSWORD. The form is {_FORM}")
    if parts.path not in ("", "/") or parts.fragment or not all(_is_address(address) for address in addresses):
        raise ValueError(
            f"{name}: members are HOST:PORT with commas between them, and / ? # @ of a password are percent-encoded. The form is {_FORM}"
        )
    files = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(files.keys() - {"ca", "cert", "key"}):
        raise ValueError(f"{name}: no parameter is called {', '.join(unknown)}. The form is {_FORM}")
    if files and parts.scheme != "etcds":
        raise ValueError(f"{name}: {', '.join(sorted(files))} need TLS: etcds://")
    if ("cert" in files) != ("key" in files):
        raise ValueError(f"{name}: a client certificate is a pair, cert=FILE and key=FILE")
    credentials = _credentials(files) if parts.scheme == "etcds" else None
    login = (unquote(user), unquote(password)) if sign else None
    return EtcdEngine(Members(addresses, credentials, login, limits), f"{parts.scheme}://{hosts}", limits, prefix)


def _is_address(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65_536


def _credentials(files: dict[str, str]) -> grpc.ChannelCredentials:
    """Those of TLS. Without ca: the authorities of the system, as gRPC brings some of its own."""
    names = dict(files)
    if "ca" not in names:
        system = next((name for name in (ssl.get_default_verify_paths().cafile, *_AUTHORITIES) if name and Path(name).exists()), None)
        if system is not None:
            names["ca"] = system
    try:
        texts = {kind: Path(name).read_bytes() for kind, name in names.items()}
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from error
    return grpc.ssl_channel_credentials(texts.get("ca"), texts.get("key"), texts.get("cert"))
