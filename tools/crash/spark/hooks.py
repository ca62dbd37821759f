"""Named points in Spark's Python processes, without hooks in production code: the data source `flintmq_crash` is `flintmq` with subclasses
whose calls first and last look whether somebody asked for a death there.

in: option `crashDir`, a directory with `arm.json` (what is to happen at which point; written by the campaign), `crashName` (whose query).
out: the death of a victim, once: the process that renames `arm.json` to `fired.N.json` is the one that does it.
Victims that end the process that asks ("self", "worker", "reader" in the reader) never return from `Points.at`; others let the call go
on, as a process left behind would.

"zombie": the driver's JVM dies, this process stays behind, sleeps until `awake.N` exists and then goes on with its call; what came of it is
written to `zombie.N.json`. "drop", "double", "twice" are faults of a pipeline that is wrong: they show that the checker sees them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark_flintmq import queue_stream, sink, source
from tools.crash.spark import processes

# Seconds a zombie waits to be woken.
ZOMBIE_S_MAX = 240.0
ZOMBIE_STEP_S = 0.05


class Fault(RuntimeError):
    """An error that a task is made to have."""


class Points:
    """The points of one process. Args: directory: see module; name: of the query."""

    def __init__(self, directory: str, name: str) -> None:
        self._directory = Path(directory)
        self._name = name

    def asked(self, point: str, *, only: Sequence[str] = (), refused: Sequence[str] = ()) -> dict[str, Any] | None:
        """What is armed for `point`, taken: nobody else gets it. Args: only, refused: victims."""
        try:
            text = (self._directory / "arm.json").read_text()
        except FileNotFoundError:
            return None
        armed: dict[str, Any] = json.loads(text)
        if armed["query"] != self._name or armed["point"] != point or armed["victim"] in refused or (only and armed["victim"] not in only):
            return None
        try:
            os.rename(self._directory / "arm.json", self._directory / f"fired.{armed['id']}.json")
        except FileNotFoundError:
            return None
        return armed

    def at(self, point: str, *, zombie: bool = True) -> int:
        """The point: whoever is to die here dies. Returns 0, or the number of the kill after which this process is a zombie.

        Args: zombie: whether this process can be left behind here. Raises: Fault.
        """
        armed = self.asked(point, refused=(*MUTANTS, *(() if zombie else ("zombie",))))
        if armed is None:
            return 0
        victim = armed["victim"]
        if victim in ("self", "worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif victim == "task":
            raise Fault(f"fault {armed['id']}: this task fails at {point}")
        elif victim == "reader":
            processes.kill(int((self._directory / f"reader.{self._name}").read_text()))
        elif victim == "executor":
            processes.kill(processes.ancestor(os.getpid(), "java"))
        elif victim == "flight":
            processes.kill(processes.child(armed["broker"], "flintmq.flight"))
        elif victim == "zombie":
            self._stay_behind(armed)
            return int(armed["id"])
        else:
            for one in victim.split("+"):
                processes.kill(armed[one])  # broker, driver
        return 0

    def _stay_behind(self, armed: dict[str, Any]) -> None:
        for number in (signal.SIGHUP, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(number, signal.SIG_IGN)
        processes.kill(armed["driver"])
        until = time.monotonic() + ZOMBIE_S_MAX
        while not (self._directory / f"awake.{armed['id']}").exists() and time.monotonic() < until:
            time.sleep(ZOMBIE_STEP_S)

    def reader_is_me(self) -> None:
        """For victims that are killed from elsewhere."""
        (self._directory / f"reader.{self._name}").write_text(str(os.getpid()))

    @contextlib.contextmanager
    def around(self, point: str, *, zombie: bool = True, asks: bool = True) -> Iterator[None]:
        """Points `POINT-enter` and `POINT-exit`, and a note of what came of a zombie's call. asks: whether the call asks the broker."""
        number = self.at(f"{point}-enter", zombie=zombie)
        came = "done"
        try:
            yield
        except BaseException as e:
            came = f"{type(e).__name__}: {e}"
            raise
        finally:
            if number:
                (self._directory / f"zombie.{number}.json").write_text(json.dumps({"point": point, "came": came[:400], "asks": asks}))
        self.at(f"{point}-exit", zombie=False)


MUTANTS = ("drop", "double", "twice")


class CrashReader(queue_stream.QueueStreamReader):  # type: ignore[misc]
    """The stream's reader with points."""

    def __init__(self, options: Any, schema: Any, crash: tuple[str, str]) -> None:
        super().__init__(options, schema)
        self._crash = crash

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_crash": self._crash}

    @property
    def _points(self) -> Points:
        return Points(*self._crash)

    def _is_open(self) -> bool:
        # A process that opens the subscription late is its newest reader, not a zombie.
        return self._claim is not None and bool(self._claim.sub_id)

    def initialOffset(self) -> dict[str, Any]:
        self._points.reader_is_me()
        return super().initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        self._points.reader_is_me()
        with self._points.around("latest", zombie=self._is_open()):
            return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        self._points.reader_is_me()
        with self._points.around("partitions", zombie=self._is_open()):
            parts = list(super().partitions(start, end))
        armed = self._points.asked("partitions-exit", only=("drop", "double")) if parts else None
        if armed is not None:
            return [] if armed["victim"] == "drop" else parts + parts
        return parts

    def commit(self, end: dict[str, Any]) -> None:
        # Spark's commit comes a batch late: mostly latestOffset has committed that set, and nothing is asked.
        asks = self._claim is None or self._claim._committed < int(end["seq"])
        with self._points.around("commit", zombie=self._is_open(), asks=asks):
            super().commit(end)

    def read(self, partition: Any) -> Iterator[Any]:
        points = self._points
        points.at("read-begin", zombie=False)
        for batch in super().read(partition):
            half = batch.num_rows // 2
            if half:
                yield batch.slice(0, half)
            points.at("read-middle", zombie=False)
            yield batch.slice(half)
        points.at("read-end", zombie=False)


class CrashWriter(sink.FlintStreamWriter):  # type: ignore[misc]
    """The sink's writer with points."""

    def __init__(self, schema: Any, raw: dict[str, str], crash: tuple[str, str]) -> None:
        super().__init__(schema, raw)
        self._crash = crash

    def write(self, iterator: Iterator[Any]) -> Any:
        points = Points(*self._crash)
        points.at("write-begin", zombie=False)
        twin = points.asked("write-twice", only=("twice",))
        rows: Any = list(iterator) if twin else iterator
        with _prepare_calls(points):
            staged = super().write(iter(rows))
        points.at("write-prepared", zombie=False)
        if twin and staged.stage_ids:
            self._publish_twin(staged, rows)
        return staged

    def _publish_twin(self, staged: Any, rows: list[Any]) -> None:
        """The mutant: the rows of one task are published a second time, under another scope."""
        place = sink._Place(f"twin:{staged.scope}", self._epoch, staged.batch, 0, 0)
        twin = self._stage(place, iter(rows))
        self._publish([twin], staged.batch, newer_is_done=True)

    def commit(self, messages: Any, batchId: int) -> None:
        with Points(*self._crash).around("sinkcommit"):
            super().commit(messages, batchId)


@contextlib.contextmanager
def _prepare_calls(points: Points) -> Iterator[None]:
    """Within it, the client's stage_prepare has the points `prepare-enter` (all is put, nothing prepared) and `prepare-exit`."""
    from flintmq.flight.client import DataPlane

    real: Callable[..., Any] = DataPlane.stage_prepare

    def stage_prepare(self: Any, *arguments: Any, **named: Any) -> Any:
        with points.around("prepare"):
            return real(self, *arguments, **named)

    DataPlane.stage_prepare = stage_prepare  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataPlane.stage_prepare = real  # type: ignore[method-assign]


class CrashSource(source.FlintSource):  # type: ignore[misc]
    """`format("flintmq_crash")`."""

    def __init__(self, options: Any) -> None:
        given = dict(options)
        taken = {key.lower(): given.pop(key) for key in list(given) if key.lower() in ("crashdir", "crashname")}
        super().__init__(given)
        self._crash = (taken.get("crashdir", ""), taken.get("crashname", ""))

    @classmethod
    def name(cls) -> str:
        return "flintmq_crash"

    def streamReader(self, schema: Any) -> Any:
        from pyspark_flintmq.queue_options import QueueOptions

        return CrashReader(QueueOptions.stream(self._raw), schema, self._crash)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return CrashWriter(schema, self._raw, self._crash)
