"""The thread that waits for the engine of shared queues: one event loop, on which all work with the engine runs.

in: work from any thread. out: its answers, on the event loop.

H1  Nobody else waits for the engine: whoever gives work goes on, and is told of its end on the event loop.
H2  What is given after the end, or is under way then, is answered: Unavailable.
H3  The engine is tidied now and then, else rows of the past, and an alarm for lack of space, would stay.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flintmq.cluster.watched_engine import WatchedEngine
from flintmq.config import Limits
from flintmq.engines.earlier import refuse_earlier
from flintmq.engines.engine import EngineError, Unavailable, Unfit
from flintmq.engines.opening import open_engine
from flintmq.guard import caught, guarded

log = logging.getLogger("flintmq.shared")

Done = Callable[[Any, Exception | None], object]


def check_engine(url: str, limits: Limits) -> None:
    """Before a node uses an engine: asks it for rows of earlier versions, and waits for `engine_etcd_request_ms` at most; an engine that
    does not answer by then has none.

    Raises: ValueError: no such engine, or it has such rows; the text says what to do."""

    async def ask() -> None:
        async with asyncio.timeout(limits.engine_etcd_request_ms / 1000):
            await refuse_earlier(url, limits)

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's may have an event loop that runs
            thread.submit(lambda: asyncio.run(ask())).result()
    except Unfit as error:
        raise ValueError(str(error)) from None
    except (EngineError, TimeoutError) as error:
        log.warning("the engine of shared queues does not answer yet: %s", error)


class EngineThread:
    """Args: url: of the engine. Raises: ValueError: it names no engine, with the reason."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.engine = WatchedEngine(open_engine(url, limits))
        self._tidy_s = limits.engine_tidy_ms / 1000
        self._thread = threading.Thread(target=self._run, name="flintmq-engine", daemon=True)
        self._lock = threading.Lock()  # of the next two
        self._loop: asyncio.AbstractEventLoop | None = None  # None: not started
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Idempotent; any thread."""
        with self._lock:
            if self._loop is None and not self._ended:
                self._loop = asyncio.new_event_loop()
                self._thread.start()

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        loop.call_soon(self._begin_tidying)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _begin_tidying(self) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._tidy()))

    async def _tidy(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(self._tidy_s)
            try:
                await self.engine.tidy()
                said = ""
            except EngineError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("the engine of shared queues was not tidied: %s", said)
            except Exception as error:
                caught("shared queues", "tidying of the engine", error)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def call(self, work: Callable[..., object], *args: Any) -> bool:
        """Runs `work` on the loop soon. False: it has ended, or was not started, and `work` never runs. Any thread."""
        with self._lock:
            if self._ended or self._loop is None:
                return False
            self._loop.call_soon_threadsafe(self._guarded, work, args)
            return True

    @staticmethod
    def _guarded(work: Callable[..., object], args: tuple[Any, ...]) -> None:
        guarded("shared queues", work, work, *args)

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Done, timeout_s: float | None = None) -> None:
        """Runs `work()` on the loop; `done` is called once with its result or error, on the loop (after the end: on the caller's thread).

        Errors beside those of the work: Unavailable: not within `timeout_s`, or the broker stops. Any thread."""
        if not self.call(self._begin, work, done, timeout_s):
            done(None, Unavailable("the broker stops"))

    def _begin(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Done, timeout_s: float | None) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._answer(work, done, timeout_s)))

    @staticmethod
    async def _answer(work: Callable[[], Coroutine[Any, Any, Any]], done: Done, timeout_s: float | None) -> None:
        result: Any = None
        failure: Exception | None = None
        try:
            async with asyncio.timeout(timeout_s):
                result = await work()
        except TimeoutError:
            failure = Unavailable("the engine of shared queues does not answer")
        except asyncio.CancelledError:
            failure = Unavailable("the broker stops")
        except Exception as error:
            failure = error
        guarded("shared queues", work, done, result, failure)

    def stop(self, last: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> None:
        """Runs `last` as long as the time allows, ends what is under way, closes the engine, and ends the thread. Idempotent."""
        with self._lock:
            if self._ended or self._loop is None:
                self._ended = True
                return
            self._ended = True
            self._loop.call_soon_threadsafe(self._end, last, timeout_s)
        self._thread.join(2 * timeout_s)

    def _end(self, last: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._close(last, timeout_s))

    async def _close(self, last: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await last()
        except Exception as error:
            log.warning("shared queues were not left as they should be: %s", error)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s / 2)
        try:
            async with asyncio.timeout(timeout_s / 2):
                await self.engine.close()
        except Exception as error:
            log.warning("the engine of shared queues was not closed: %s", error)
        asyncio.get_running_loop().stop()
