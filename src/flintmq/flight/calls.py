"""The calls of the data plane that a client may make, one method for each. No other module of a client writes the name of a call.

in: arguments, None: not given. out: the call's name and its arguments, to `send`, which gives the answer, JSON values.

M1  The methods and their arguments are those of the table `flintmq.dataplane.calls` (tests/flight/test_calls.py). A client without the
    broker's package has no table: so each name is written here, where a type checker sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# a call's name, its arguments, and the seconds that the call itself waits
Send = Callable[[str, dict[str, Any], float], Any]
# a place in a queue or a stream: a word, or one of position, offset, lsn, time_us
Place = str | dict[str, int]


class Calls:
    """Each method makes the call of docs/DATAPLANE.md that it is named after, with a dot for the first underscore.

    Args: send: makes a call. Returns: each: the answer as it is, JSON values. Raises: each: PlaneError, or what `send` raises.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    def _ask(self, name: str, wait_s: float = 0.0, /, **arguments: Any) -> Any:
        return self._send(name, {key: value for key, value in arguments.items() if value is not None}, wait_s)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def sub_open(
        self,
        *,
        name: str | None = None,
        sub_id: str | None = None,
        queues: Sequence[str] | None = None,
        pattern: str | None = None,
        mode: str | None = None,
        start: Place | None = None,
        fresh: str | None = None,
        onlost: str | None = None,
    ) -> Any:
        names = None if queues is None else list(queues)
        return self._ask(
            "sub.open", name=name, sub_id=sub_id, queues=names, pattern=pattern, mode=mode, start=start, fresh=fresh, onlost=onlost
        )

    def sub_acquire(
        self,
        *,
        sub_id: str,
        epoch: int,
        seq: int,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        max_wait_ms: int | None = None,
        onlost: str | None = None,
    ) -> Any:
        limits = {"max_messages": max_messages, "max_bytes": max_bytes, "max_wait_ms": max_wait_ms}
        return self._ask("sub.acquire", (max_wait_ms or 0) / 1000, sub_id=sub_id, epoch=epoch, seq=seq, onlost=onlost, **limits)

    def sub_plan(self, *, sub_id: str, epoch: int, seq: int, slices: int | None = None) -> Any:
        return self._ask("sub.plan", sub_id=sub_id, epoch=epoch, seq=seq, slices=slices)

    def sub_commit(self, *, sub_id: str, epoch: int, upto: int, read: bool | None = None) -> Any:
        return self._ask("sub.commit", sub_id=sub_id, epoch=epoch, upto=upto, read=read)

    def sub_alive(self, *, sub_id: str, epoch: int, leave: bool | None = None) -> Any:
        return self._ask("sub.alive", sub_id=sub_id, epoch=epoch, leave=leave)

    def sub_tail(self, *, sub_id: str, drain: bool | None = None, epoch: int | None = None) -> Any:
        return self._ask("sub.tail", sub_id=sub_id, drain=drain, epoch=epoch)

    def sub_list(self) -> Any:
        return self._ask("sub.list")

    def sub_status(self, *, name: str | None = None, sub_id: str | None = None) -> Any:
        return self._ask("sub.status", name=name, sub_id=sub_id)

    def sub_reset(self, *, name: str, action: str, seq: int | None = None, may_duplicate: bool | None = None) -> Any:
        return self._ask("sub.reset", name=name, action=action, seq=seq, may_duplicate=may_duplicate)

    # --- scopes and stages --------------------------------------------------------------------------------------------

    def scope_open(self, *, scope: str | None = None, shared: bool | None = None) -> Any:
        return self._ask("scope.open", scope=scope, shared=shared)

    def scope_status(self, *, scope: str, shared: bool | None = None) -> Any:
        return self._ask("scope.status", scope=scope, shared=shared)

    def scope_list(self, *, after: str | None = None, shared: bool | None = None) -> Any:
        return self._ask("scope.list", after=after, shared=shared)

    def scope_forget(self, *, scope: str, shared: bool | None = None) -> Any:
        return self._ask("scope.forget", scope=scope, shared=shared)

    def stage_begin(
        self,
        *,
        scope: str,
        epoch: int,
        batch: int,
        part: int | None = None,
        attempt: int | None = None,
        unroutable: str | None = None,
        over_limit: str | None = None,
        kind: str | None = None,
        shared: bool | None = None,
    ) -> Any:
        options = {"unroutable": unroutable, "over_limit": over_limit, "kind": kind, "shared": shared}
        return self._ask("stage.begin", scope=scope, epoch=epoch, batch=batch, part=part, attempt=attempt, **options)

    def stage_prepare(self, *, stage_id: str) -> Any:
        return self._ask("stage.prepare", stage_id=stage_id)

    def stage_commit(self, *, scope: str, epoch: int, batch: int, stage_ids: Sequence[str], shared: bool | None = None) -> Any:
        return self._ask("stage.commit", scope=scope, epoch=epoch, batch=batch, stage_ids=list(stage_ids), shared=shared)

    def stage_abort(
        self, *, scope: str, batch: int, epoch: int | None = None, stage_id: str | None = None, shared: bool | None = None
    ) -> Any:
        return self._ask("stage.abort", scope=scope, batch=batch, epoch=epoch, stage_id=stage_id, shared=shared)

    # --- log, queues, streams, service --------------------------------------------------------------------------------

    def log_snapshot(self, *, ttl_s: int | None = None, logs: Sequence[str] | None = None) -> Any:
        return self._ask("log.snapshot", ttl_s=ttl_s, logs=None if logs is None else list(logs))

    def log_extend(self, *, id: str, ttl_s: int | None = None) -> Any:
        return self._ask("log.extend", id=id, ttl_s=ttl_s)

    def log_release(self, *, id: str) -> Any:
        return self._ask("log.release", id=id)

    def queue_match(self, *, pattern: str) -> Any:
        return self._ask("queue.match", pattern=pattern)

    def browse_open(
        self,
        *,
        queues: Sequence[str],
        start: Place | None = None,
        end: Place | None = None,
        max_messages: int | None = None,
        slices: int | None = None,
    ) -> Any:
        return self._ask("browse.open", queues=list(queues), start=start, end=end, max_messages=max_messages, slices=slices)

    def browse_close(self, *, id: str) -> Any:
        return self._ask("browse.close", id=id)

    def stream_open(self, *, queue: str, start: Place | None = None, stream: str | None = None) -> Any:
        return self._ask("stream.open", queue=queue, start=start, stream=stream)

    def stream_next(
        self,
        *,
        queue: str,
        offset: int,
        stream: str | None = None,
        upto: int | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        release: str | None = None,
    ) -> Any:
        limits = {"upto": upto, "max_messages": max_messages, "max_bytes": max_bytes}
        return self._ask("stream.next", queue=queue, stream=stream, offset=offset, release=release, **limits)

    def stream_tail(self, *, queue: str, stream: str | None = None, offset: int | None = None) -> Any:
        return self._ask("stream.tail", queue=queue, stream=stream, offset=offset)

    def stream_plan(
        self,
        *,
        queue: str,
        offset: int,
        end: int,
        stream: str | None = None,
        slices: int | None = None,
        key: str | None = None,
        tolerant: bool | None = None,
        release: str | None = None,
    ) -> Any:
        options = {"slices": slices, "key": key, "tolerant": tolerant, "release": release}
        return self._ask("stream.plan", queue=queue, stream=stream, offset=offset, end=end, **options)

    def stream_release(self, *, queue: str, pin: str) -> Any:
        return self._ask("stream.release", queue=queue, pin=pin)

    def status(self) -> Any:
        return self._ask("status")
