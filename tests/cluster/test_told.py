"""Definitions that others are told of: each change of the port is heard once it is durable, and none that was not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flintmq.cluster.told import ToldDefinitions
from flintmq.ports import (
    BindingRecord,
    Definitions,
    ExchangeRecord,
    LimitsRecord,
    ParameterRecord,
    PermissionRecord,
    QueueRecord,
    UserRecord,
    VhostRecord,
)
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.changes import Change, Delete, Save
from flintmq.store.sql.definitions import SqlDefinitions

RECORDS: dict[str, Any] = {
    "vhost": VhostRecord("v"),
    "user": UserRecord("u"),
    "permission": PermissionRecord("u", "v", ".*", "", ""),
    "limits": LimitsRecord("user", "u", {"max-channels": 5}),
    "parameter": ParameterRecord("policy", "v", "p", {}),
    "exchange": ExchangeRecord("v", "x", "direct"),
    "binding": BindingRecord("v", "x", "exchange", "x", b"k"),
}
ENDS: dict[str, tuple[Any, ...]] = {
    "vhost": ("v",),
    "user": ("u",),
    "permission": ("u", "v"),
    "parameter": (RECORDS["parameter"],),
    "exchange": ("v", "x"),
    "queue": ("v", "q"),
    "binding": (RECORDS["binding"],),
}
# saved when a queue is declared; the rows of shared queues are written before, and of others there are none
UNHEARD = {"save_queue"}


class Ear:
    def __init__(self) -> None:
        self.heard: list[Change] = []

    def note(self, changes: Sequence[Change]) -> None:
        self.heard += changes

    def when_told(self, changes: Sequence[Change], done: Callable[[Exception | None], object]) -> bool:
        return True

    def when_named(self, vhost: str, names: Sequence[Hashable], done: Callable[[Exception | None], object]) -> bool:
        return True


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def told(ear: Ear) -> ToldDefinitions:
    made = ToldDefinitions(MemoryDefinitions())
    made.ear = ear
    return made


def test_each_method_of_the_port_that_changes_something_is_heard() -> None:
    changing = {name for name, _ in inspect.getmembers(Definitions, inspect.isfunction) if name.startswith(("save_", "delete_"))}
    assert changing - UNHEARD == {f"save_{kind}" for kind in RECORDS} | {f"delete_{kind}" for kind in ENDS}
    assert all(name in vars(ToldDefinitions) for name in changing - UNHEARD)


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_saved_is_there_and_heard(told: ToldDefinitions, ear: Ear, kind: str) -> None:
    for name, record in RECORDS.items():
        getattr(told, f"save_{name}")(record)
        if name == kind:
            break
    assert ear.heard[-1] == Save(RECORDS[kind])
    loaders = {"exchange": "exchanges", "binding": "bindings", "limits": "limits"}
    arguments = {"exchange": ("v",), "binding": ("v",), "parameter": ("policy",)}
    assert RECORDS[kind] in getattr(told.untold, f"load_{loaders.get(kind, kind + 's')}")(*arguments.get(kind, ()))


@pytest.mark.parametrize("kind", ENDS)
def test_a_record_that_is_deleted_is_heard(told: ToldDefinitions, ear: Ear, kind: str) -> None:
    getattr(told, f"delete_{kind}")(*ENDS[kind])
    (change,) = ear.heard
    assert isinstance(change, Delete) and type(change.record).__name__.lower().startswith(kind)


def test_what_the_database_refuses_and_what_is_not_told_is_not_heard(tmp_path: Path, ear: Ear) -> None:
    told = ToldDefinitions(SqlDefinitions.open(tmp_path))
    told.ear = ear
    results: list[Exception | None] = []
    told.submit([Save(ExchangeRecord("none", "x", "direct"))], results.append)
    told.submit([Save(RECORDS["vhost"]), Save(RECORDS["user"])], results.append)
    told.untold.save_user(UserRecord("w"))
    told.save_queue(QueueRecord("v", "q", told.new_queue_id()))
    told.close()
    assert results[0] is not None and results[1] is None
    assert ear.heard == [Save(RECORDS["vhost"]), Save(RECORDS["user"])]


def test_definitions_without_a_writer_thread_offer_none(told: ToldDefinitions) -> None:
    assert not hasattr(told, "submit")
