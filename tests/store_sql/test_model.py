"""Whatever is done to it in whatever order, SqlDefinitions holds what MemoryDefinitions holds; restarts change nothing."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flintmq.config import Limits
from flintmq.ports import BindingRecord, ExchangeRecord, PermissionRecord, QueueRecord, UserRecord, VhostRecord
from flintmq.protocol.v0_9_1.codec import Timestamp
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.changes import Delete, Save
from flintmq.store.sql.definitions import SqlDefinitions

VHOSTS = ["/", "a", "b\\"]
vhosts = st.sampled_from(VHOSTS)
names = st.sampled_from(["x", "y", "z\udcff", ""])
keys = st.sampled_from([b"", b"k", b"\xff\0"])
arguments = st.sampled_from([{}, {"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": b"1"}, {"a": Timestamp(1)}, {"b": [1, {"c": None}]}])
kinds = st.sampled_from(["queue", "exchange"])
users = st.sampled_from(["u", "v"])
bindings = st.builds(BindingRecord, vhosts, names, kinds, names, keys, arguments)


class Twins(RuleBasedStateMachine):
    """One SQL store and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="flintmq-definitions-"))
        self.sql = self._open()
        self.model = MemoryDefinitions()
        self.ids: list[int] = []
        self.known = {"/"}

    def _open(self) -> SqlDefinitions:
        return SqlDefinitions.open(self.directory, limits=Limits(queue_id_block=3), timestamp=Timestamp)

    def teardown(self) -> None:
        self.sql.close()
        shutil.rmtree(self.directory)

    @initialize()
    def first_id(self) -> None:
        self.new_id()

    def both(self, method: str, *values: Any) -> None:
        """The same call on both, with the same outcome."""
        outcomes = []
        for twin in (self.sql, self.model):
            try:
                outcomes.append(getattr(twin, method)(*values))
            except ValueError:
                outcomes.append(ValueError)
        assert outcomes[0] == outcomes[1]

    def change(self, saves: bool, record: Any, submitted: bool) -> None:
        """By a method of its own or by `submit`."""
        kind = type(record).__name__.removesuffix("Record").lower()
        key = {
            "vhost": lambda: (record.name,),
            "user": lambda: (record.name,),
            "permission": lambda: (record.user, record.vhost),
            "exchange": lambda: (record.vhost, record.name),
            "queue": lambda: (record.vhost, record.name),
            "binding": lambda: (record,),
        }[kind]
        values = (record,) if saves else key()
        method = f"{'save' if saves else 'delete'}_{kind}"
        if not submitted:
            self.both(method, *values)
            return
        done = threading.Event()
        errors: list[Exception | None] = []

        def answer(error: Exception | None) -> None:
            errors.append(error)
            done.set()

        try:
            self.sql.submit([(Save if saves else Delete)(record)], answer)
        except ValueError as error:
            answer(error)
        assert done.wait(30)
        try:
            getattr(self.model, method)(*values)
            assert errors == [None]
        except ValueError:
            assert isinstance(errors[0], ValueError)

    @rule()
    def new_id(self) -> None:
        queue_id = self.sql.new_queue_id()
        assert queue_id > max(self.ids, default=0)
        assert queue_id <= self.sql.queue_id_high_water
        self.ids.append(queue_id)
        self.model._last_queue_id = queue_id

    @rule(name=vhosts, description=names, submitted=st.booleans())
    def save_vhost(self, name: str, description: str, submitted: bool) -> None:
        self.known.add(name)
        self.change(True, VhostRecord(name, description), submitted)

    @rule(name=vhosts, submitted=st.booleans())
    def delete_vhost(self, name: str, submitted: bool) -> None:
        self.known.discard(name)
        self.change(False, VhostRecord(name), submitted)

    @rule(name=users, password=names, saves=st.booleans(), submitted=st.booleans())
    def user(self, name: str, password: str, saves: bool, submitted: bool) -> None:
        self.change(saves, UserRecord(name, password.encode("utf-8", "replace").hex(), ("t", name)), submitted)

    @rule(user=users, vhost=vhosts, pattern=names, saves=st.booleans(), submitted=st.booleans())
    def permission(self, user: str, vhost: str, pattern: str, saves: bool, submitted: bool) -> None:
        if vhost in self.known or not saves:
            self.change(saves, PermissionRecord(user, vhost, pattern, "", ".*"), submitted)

    @rule(
        vhost=vhosts,
        name=names,
        flags=st.tuples(st.booleans(), st.booleans()),
        table=arguments,
        saves=st.booleans(),
        submitted=st.booleans(),
    )
    def exchange(self, vhost: str, name: str, flags: tuple[bool, bool], table: dict[str, Any], saves: bool, submitted: bool) -> None:
        if vhost in self.known or not saves:
            self.change(saves, ExchangeRecord(vhost, name, "topic", *flags, table), submitted)

    @rule(
        vhost=vhosts, name=names, which=st.integers(0, 5), flag=st.booleans(), table=arguments, saves=st.booleans(), submitted=st.booleans()
    )
    def queue(self, vhost: str, name: str, which: int, flag: bool, table: dict[str, Any], saves: bool, submitted: bool) -> None:
        queue_id = self.ids[-which] if which < len(self.ids) else self.ids[-1] + 1  # also ids in use, and one not given out
        if vhost in self.known or not saves:
            self.change(saves, QueueRecord(vhost, name, queue_id, flag, table), submitted)

    @rule(record=bindings, saves=st.booleans(), submitted=st.booleans())
    def binding(self, record: BindingRecord, saves: bool, submitted: bool) -> None:
        if record.vhost in self.known or not saves:
            self.change(saves, record, submitted)

    @rule()
    def restart(self) -> None:
        high_water = self.sql.queue_id_high_water
        self.sql.close()
        self.sql = self._open()
        assert self.sql.queue_id_high_water == high_water
        # The rest of a block is skipped: to the model, as if those ids had been given out.
        self.ids.append(high_water)
        self.model._last_queue_id = high_water

    @invariant()
    def same(self) -> None:
        for method in ("load_vhosts", "load_users", "load_permissions"):
            assert list(getattr(self.sql, method)()) == list(getattr(self.model, method)())
        for vhost in VHOSTS:
            for method in ("load_exchanges", "load_queues"):
                left, right = ({record.name: repr(record) for record in getattr(twin, method)(vhost)} for twin in (self.sql, self.model))
                assert left == right
            assert list(map(repr, self.sql.load_bindings(vhost))) == list(map(repr, self.model.load_bindings(vhost)))


Twins.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTwins = Twins.TestCase
