"""The stage calls of docs/DATAPLANE.md in memory, with faults: what the sink's logic is tested against.

In: the methods of the data plane's client that the sink uses. Out: `queue`, the published rows in order; refusals as PlaneError.
A fault is the number of a call, counted over all clients: `before` it raises UNAVAILABLE and changes nothing, `after` its answer is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flintmq.flight.plane_error import PlaneError
from flintmq.flight.results import Committed, Prepared, Put, StageBegun


@dataclass
class FakeStage:
    scope: str
    epoch: int
    batch: int
    part: int
    attempt: int
    options: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    prepared: bool = False


class FakeStages:
    """The broker's side. `unroutable`: routing keys that no queue has."""

    def __init__(self) -> None:
        self.queue: list[dict[str, Any]] = []
        self.stages: dict[str, FakeStage] = {}
        self.committed: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.unroutable: set[str] = set()
        self.calls: list[str] = []
        self.faults: dict[int, str] = {}
        self._epoch = self._ids = 0
        self.open_clients = 0

    def client(self) -> FakeClient:
        self.open_clients += 1
        return FakeClient(self)

    def restart(self) -> None:
        """What a kill of the broker leaves: prepared stages, committed batches, epochs above all earlier ones."""
        self.stages = {key: stage for key, stage in self.stages.items() if stage.prepared}
        self._epoch += 1000

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def next_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def check(self, scope: str, epoch: int) -> None:
        if epoch < self.epochs.get(scope, 0):
            raise PlaneError("FENCED", f"scope '{scope}' is used with epoch {self.epochs[scope]}, this is {epoch}")
        self.epochs[scope] = epoch


class FakeClient:
    """What `Connection.open` gives."""

    store = ""

    def __init__(self, broker: FakeStages) -> None:
        self._broker = broker
        self._closed = False

    def close(self) -> None:
        assert not self._closed, "closed twice"
        self._closed = True
        self._broker.open_clients -= 1

    def _call(self, name: str, effect: Any) -> Any:
        assert not self._closed
        broker = self._broker
        number = len(broker.calls)
        broker.calls.append(name)
        fault = broker.faults.pop(number, None)
        if fault == "before":
            raise PlaneError("UNAVAILABLE", "nobody listens")
        answer = effect()
        if fault == "after":
            raise PlaneError("UNAVAILABLE", "the answer was lost")
        return answer

    def scope_open(self, scope: str | None = None) -> int:
        assert scope is None
        return int(self._call("scope.open", self._broker.next_epoch))

    def stage_begin(self, scope: str, epoch: int, batch: int, *, part: int = 0, attempt: int = 0, **options: Any) -> StageBegun:
        broker = self._broker

        def effect() -> StageBegun:
            broker.check(scope, epoch)
            if batch <= broker.committed.get(scope, -1):
                return StageBegun(None, True)
            stage_id = broker.next_id()
            broker.stages[stage_id] = FakeStage(scope, epoch, batch, part, attempt, options)
            return StageBegun(stage_id, False)

        return self._call("stage.begin", effect)  # type: ignore[no-any-return]

    def put(self, stage_id: str, batches: Iterable[Any]) -> Put:
        rows = []
        for batch in batches:
            assert batch.num_rows
            rows += batch.to_pylist()

        def effect() -> Put:
            stage = self._stage(stage_id)
            if stage.prepared:
                raise PlaneError("STAGE_FAILED", "it takes no more messages")
            stage.rows += rows
            return Put(len(rows), 0)

        return self._call("put", effect)  # type: ignore[no-any-return]

    def stage_prepare(self, stage_id: str) -> Prepared:
        def effect() -> Prepared:
            stage = self._stage(stage_id)
            lost = sum(row["routing_key"] in self._broker.unroutable for row in stage.rows)
            if lost and stage.options["unroutable"] == "fail":
                text = (
                    f"{lost} messages are unroutable, 0 are over the limit of a queue: exchange 'x' with routing key 'y' leads to no queue"
                )
                raise PlaneError("STAGE_FAILED", text)
            stage.prepared = True
            return Prepared(len(stage.rows), unroutable=lost)

        return self._call("stage.prepare", effect)  # type: ignore[no-any-return]

    def stage_commit(self, scope: str, epoch: int, batch: int, stage_ids: list[str]) -> Committed:
        broker = self._broker

        def effect() -> Committed:
            broker.check(scope, epoch)
            if batch <= broker.committed.get(scope, -1):
                return Committed(broker.committed[scope], True)
            chosen = [broker.stages.get(one) for one in stage_ids]
            if any(one is None or not one.prepared or (one.scope, one.batch) != (scope, batch) for one in chosen):
                raise PlaneError("NOT_PREPARED", "a stage is not prepared")
            for stage in chosen:
                assert stage is not None
                broker.queue += [row for row in stage.rows if row["routing_key"] not in broker.unroutable]
            broker.committed[scope] = batch
            broker.stages = {key: one for key, one in broker.stages.items() if one.scope != scope or one.batch > batch}
            return Committed(batch, False)

        return self._call("stage.commit", effect)  # type: ignore[no-any-return]

    def stage_abort(self, scope: str, batch: int, *, epoch: int | None = None, stage_id: str | None = None) -> Any:
        broker = self._broker

        def effect() -> None:
            if epoch is not None:
                broker.check(scope, epoch)
            gone = [
                key
                for key, one in broker.stages.items()
                if (one.scope, one.batch) == (scope, batch) and (epoch is None or one.epoch <= epoch) and stage_id in (None, key)
            ]
            for key in gone:
                del broker.stages[key]

        return self._call("stage.abort", effect)

    def scope_status(self, scope: str) -> dict[str, Any]:
        return self._call("scope.status", lambda: {"committed": self._broker.committed.get(scope)})  # type: ignore[no-any-return]

    def scope_forget(self, scope: str) -> Any:
        return self._call("scope.forget", lambda: self._broker.committed.pop(scope, None))

    def _stage(self, stage_id: str) -> FakeStage:
        stage = self._broker.stages.get(stage_id)
        if stage is None:
            raise PlaneError("NOT_FOUND", f"there is no stage {stage_id}")
        return stage
