"""Windows on the engines: in memory with faults, step by step; on FoundationDB's engine over the stand-in of its binding; on others with
threads.

in: a window. out: a verdict.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flintmq.config import Limits
from flintmq.kv.engine import EngineLimits, Unavailable
from flintmq.kv.fdb_engine import FdbEngine
from flintmq.kv.sqlite_engine import SqliteEngine
from tests.twins.fdb_binding import Answer, Binding
from tests.twins.memory_engine import Fault, MemoryEngine
from tools.linearizability.checker import Verdict
from tools.linearizability.histories import History, Window
from tools.linearizability.stepping import Baton, SteppedEngine

# as small as etcd's: batches are cut, and a fulfilment has few requests
ENGINE = EngineLimits(2048, 256, 4096, 120, 5_000, False)
# of windows with the staged dequeue: a fulfilment reads six requests and six messages, fewer than four nodes may want
STAGED_ENGINE = EngineLimits(2048, 256, 4096, 36, 5_000, False)
# how often a commit meets what
_FAULTS = ((Fault.NONE, 76), (Fault.CONFLICT, 8), (Fault.UNKNOWN_BEFORE, 6), (Fault.UNKNOWN_AFTER, 6), (Fault.UNAVAILABLE, 4))
_ANSWERS = ((None, 78), (Answer(1020), 7), (Answer(1021, "no"), 4), (Answer(1021, "yes"), 4), (Answer(1031, "late"), 4), (Answer(1213), 3))


class Weather:
    """What the engine meets, while it is on. Commits that nobody hears of are followed by an engine that is away, sometimes."""

    def __init__(self, window: Window) -> None:
        self._random = random.Random(window.seed)
        self._away = 0
        # a staged dequeue is several transactions: one of which the engine says that it is away may have happened in part, and a window
        # of many operations without an answer can't be decided
        self._is_steady = window.staged
        self.on = False

    def draw(self, table: Sequence[tuple[Any, int]], calm: Any) -> Any:
        if not self.on:
            return calm
        found = self._random.choices([one for one, _ in table], [weight for _, weight in table])[0]
        if self._is_steady:
            return calm if found is Fault.UNAVAILABLE or found == Answer(1213) else found
        unknown = found in (Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER) or (isinstance(found, Answer) and found.code in (1021, 1031))
        if unknown and self._random.random() < 0.5:
            self._away = 2
        return found

    def before_begin(self) -> None:
        if self.on and self._away:
            self._away -= 1
            raise Unavailable("the engine is away for a moment")


def in_memory(window: Window) -> Verdict:
    """On the engine in memory: conflicts, unknown outcomes and an engine that is away, at will; each call of the engine is a step."""
    weather = Weather(window)
    engine = MemoryEngine(lambda: weather.draw(_FAULTS, Fault.NONE), STAGED_ENGINE if window.staged else ENGINE)
    return _stepped(window, weather, [engine] * (window.nodes + 1), lambda: None)


def on_stand_in(window: Window) -> Verdict:
    """On FoundationDB's engine, one for each node, over one stand-in of the binding. Commits come late, too."""
    weather = Weather(window)
    binding = Binding(lambda: weather.draw(_ANSWERS, None))
    with tempfile.NamedTemporaryFile() as cluster_file:
        engines = [FdbEngine(binding, Path(cluster_file.name), Limits()) for _ in range(window.nodes + 1)]
        return _stepped(window, weather, engines, lambda: binding.deliver_late() if weather._random.random() < 0.1 else None)


def _stepped(window: Window, weather: Weather, engines: Sequence[Any], between: Callable[[], Any]) -> Verdict:
    baton = Baton(window.seed)

    def before_begin() -> None:
        between()
        weather.before_begin()

    history = History(window, [SteppedEngine(engine, baton, before_begin) for engine in engines])
    weather.on = True
    baton.run([node.work for node in history.nodes])
    weather.on = False
    return history.check()


def with_threads(window: Window, engines: Sequence[Any], name: str, meanwhile: Callable[[], None] = lambda: None) -> Verdict:
    """On engines that are there, as the threads come. `meanwhile` runs beside them."""
    history = History(window, engines, name)
    errors: list[BaseException] = []

    def body(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(node.work,)) for node in history.nodes]
    for thread in threads:
        thread.start()
    meanwhile()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return history.check()


def on_sqlite(window: Window) -> Verdict:
    """On the embedded engine, as the threads come."""
    with tempfile.TemporaryDirectory(prefix="flintmq-linear-") as place:
        engine = SqliteEngine(Path(place) / "shared.db", Limits())
        try:
            return with_threads(window, [engine] * (window.nodes + 1), "q")
        finally:
            engine.close()
