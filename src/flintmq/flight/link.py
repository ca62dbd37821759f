"""The service's way to the broker: a pool of private socket pairs, one request at a time on each.

in: calls of the service's threads. out: the broker's answers, or PlaneError: its refusal, BUSY, or UNAVAILABLE.

L1  A channel whose call did not end properly is never used again: the next answer on it could be somebody else's.
L2  Waiting is bounded by time, and ends with BUSY, which clients retry. The number of those who wait is bounded before (line.N1).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flintmq.config import Limits
from flintmq.dataplane.wire import Channel, ChannelClosed, Refused, WireError
from flintmq.flight.plane_error import BAD_ARGUMENT, BUSY, UNAUTHENTICATED, UNAVAILABLE, PlaneError

log = logging.getLogger("flintmq.flight")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a call is made for: the broker checks the permissions of `user` in `vhost`.

    outside: the broker's handle of a user whom a token or a directory named; "": a user of the broker.
    """

    user: str
    vhost: str
    outside: str = ""


class Link:
    """Args: channels: connected, none in use; limits; on_lost: called once, when no channel is left (any thread)."""

    def __init__(self, channels: Sequence[Channel], limits: Limits, on_lost: Callable[[], None] = lambda: None) -> None:
        self._free = list(channels)
        self._alive = len(self._free)
        self.size = self._alive
        self._limits = limits
        self._on_lost = on_lost
        # is told the handle of a login that the broker does not take any more
        self.on_over: Callable[[str], None] = lambda outside: None
        self._changed = threading.Condition()

    def call(
        self, name: str, caller: Caller | None, arguments: Mapping[str, Any], payload: Any = b"", wait_ms: int | None = None
    ) -> tuple[Any, Any]:
        """One call to the broker.

        Args: name: of the call; caller: None for the service's own; arguments: JSON values; payload: bytes-like; wait_ms: for a channel,
        by default flight_wait_ms.
        Returns: what stands under "ok", and the payload of the answer.
        Raises: PlaneError with the broker's code; BUSY; UNAVAILABLE when the broker is going.
        """
        head = dict(arguments)
        head["call"] = name
        if caller is not None:
            head["user"], head["vhost"] = caller.user, caller.vhost
            if caller.outside:
                head["outside"] = caller.outside
        channel = self._take(self._limits.flight_wait_ms if wait_ms is None else wait_ms)
        try:
            answer: tuple[Any, Any] = channel.call(head, payload)
        except Refused as refused:
            self._give_back(channel)
            if refused.code == UNAUTHENTICATED and caller is not None:
                self.on_over(caller.outside)
            raise PlaneError(refused.code, refused.text) from None
        except (ValueError, TypeError) as error:
            # It does not fit a frame: nothing was sent.
            self._give_back(channel)
            raise PlaneError(BAD_ARGUMENT, f"{name}: {error}") from None
        except (ChannelClosed, WireError, OSError) as error:
            self._drop(channel, error)
            raise PlaneError(UNAVAILABLE, "the broker is stopping or starting") from None
        except BaseException as error:
            self._drop(channel, error)
            raise
        self._give_back(channel)
        return answer

    def close(self) -> None:
        """Closes the channels that no call holds; those that do end with their call."""
        with self._changed:
            free, self._free, self._alive = self._free, [], 0
            self._changed.notify_all()
        for channel in free:
            channel.close()

    def _take(self, wait_ms: int) -> Channel:
        deadline = 0.0
        with self._changed:
            while not self._free:
                if not self._alive:
                    raise PlaneError(UNAVAILABLE, "the broker is stopping or starting")
                now = time.monotonic()
                if not deadline:
                    deadline = now + wait_ms / 1000
                elif now >= deadline:
                    raise PlaneError(BUSY, f"the broker was busy with other calls for {wait_ms} ms")
                self._changed.wait(deadline - now)
            return self._free.pop()

    def _give_back(self, channel: Channel) -> None:
        with self._changed:
            self._free.append(channel)
            self._changed.notify()

    def _drop(self, channel: Channel, error: BaseException) -> None:
        channel.close()
        with self._changed:
            self._alive -= 1
            last = self._alive == 0
            self._changed.notify_all()
        log.warning("a channel to the broker ended: %s: %s; %d left", type(error).__name__, error, self._alive)
        if last:
            self._on_lost()
