"""Contract of the Definitions port: subclass DefinitionsContract and say how to make an empty one."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

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


class DefinitionsContract(ABC):
    """What every Definitions does."""

    @abstractmethod
    def make(self) -> Definitions: ...

    @pytest.fixture
    def definitions(self) -> Definitions:
        return self.make()

    def test_the_default_vhost_exists(self, definitions: Definitions) -> None:
        assert [record.name for record in definitions.load_vhosts()] == ["/"]

    def test_queue_ids_are_never_reused(self, definitions: Definitions) -> None:
        first = definitions.new_queue_id()
        definitions.save_queue(QueueRecord("/", "q", first))
        definitions.delete_queue("/", "q")
        second = definitions.new_queue_id()
        assert 0 < first < second <= definitions.queue_id_high_water

    def test_a_queue_id_belongs_to_one_queue(self, definitions: Definitions) -> None:
        queue_id = definitions.new_queue_id()
        definitions.save_queue(QueueRecord("/", "q", queue_id))
        definitions.save_queue(QueueRecord("/", "q", queue_id, auto_delete=True))
        with pytest.raises(ValueError):
            definitions.save_queue(QueueRecord("/", "other", queue_id))
        with pytest.raises(ValueError):
            definitions.save_queue(QueueRecord("/", "other", queue_id + 100))
        assert list(definitions.load_queues("/")) == [QueueRecord("/", "q", queue_id, auto_delete=True)]

    def test_what_is_saved_is_loaded_with_its_types(self, definitions: Definitions) -> None:
        arguments = {"i": 1, "t": True, "s": "x", "b": b"\xff", "n": None, "l": [1, {"d": 2.5}]}
        exchange = ExchangeRecord("/", "x", "topic", True, True, arguments)
        queue = QueueRecord("/", "q", definitions.new_queue_id(), False, arguments)
        binding = BindingRecord("/", "x", "queue", "q", b"\xffkey", arguments)
        definitions.save_exchange(exchange)
        definitions.save_queue(queue)
        definitions.save_binding(binding)
        assert list(definitions.load_exchanges("/")) == [exchange]
        assert list(definitions.load_queues("/")) == [queue]
        assert list(definitions.queue_rows("/")) == [(queue.name, queue.queue_id, queue.auto_delete, queue.arguments)]
        assert list(definitions.load_bindings("/")) == [binding]
        (loaded,) = definitions.load_queues("/")
        assert loaded.arguments["t"] is True
        assert type(loaded.arguments["i"]) is int

    def test_bindings_differ_by_key_and_by_the_types_of_arguments(self, definitions: Definitions) -> None:
        records = [BindingRecord("/", "x", "queue", "q", b"k", {"a": value}) for value in (1, True, "1")]
        records.append(BindingRecord("/", "x", "queue", "q", b"k2"))
        records.append(BindingRecord("/", "x", "exchange", "q", b"k2"))
        for record in (*records, records[0]):
            definitions.save_binding(record)
        assert list(definitions.load_bindings("/")) == records
        rows = list(definitions.binding_rows("/"))
        assert rows == [(one.source, one.destination_kind, one.destination, one.routing_key, one.arguments) for one in records]
        definitions.delete_binding(records[1])
        definitions.delete_binding(records[1])
        assert list(definitions.load_bindings("/")) == [record for record in records if record is not records[1]]

    def test_deleting_an_end_deletes_its_bindings(self, definitions: Definitions) -> None:
        for name in ("a", "b"):
            definitions.save_exchange(ExchangeRecord("/", name, "fanout"))
        definitions.save_queue(QueueRecord("/", "a", definitions.new_queue_id()))  # same name as an exchange
        to_queue = BindingRecord("/", "b", "queue", "a", b"")
        to_exchange = BindingRecord("/", "b", "exchange", "a", b"")
        from_a = BindingRecord("/", "a", "exchange", "b", b"")
        to_itself = BindingRecord("/", "a", "exchange", "a", b"")
        for record in (to_queue, to_exchange, from_a, to_itself):
            definitions.save_binding(record)
        definitions.delete_exchange("/", "a")
        assert list(definitions.load_bindings("/")) == [to_queue]
        definitions.delete_queue("/", "a")
        assert list(definitions.load_bindings("/")) == []

    def test_vhosts_are_apart_and_take_their_things_along(self, definitions: Definitions) -> None:
        definitions.save_vhost(VhostRecord("other", "text"))
        for vhost in ("/", "other"):
            definitions.save_exchange(ExchangeRecord(vhost, "x", "fanout"))
            definitions.save_queue(QueueRecord(vhost, "q", definitions.new_queue_id()))
            definitions.save_binding(BindingRecord(vhost, "x", "queue", "q", b""))
            definitions.save_permission(PermissionRecord("u", vhost, ".*", ".*", ".*"))
        definitions.delete_vhost("other")
        assert [record.name for record in definitions.load_vhosts()] == ["/"]
        assert not definitions.load_exchanges("other")
        assert not definitions.load_queues("other")
        assert not definitions.load_bindings("other")
        assert len(definitions.load_bindings("/")) == 1
        assert [record.vhost for record in definitions.load_permissions()] == ["/"]

    def test_limits_go_with_whom_they_are_for(self, definitions: Definitions) -> None:
        definitions.save_vhost(VhostRecord("other"))
        definitions.save_user(UserRecord("u", "hash"))
        records = [
            LimitsRecord("user", "other", {"max-connections": 5}),
            LimitsRecord("user", "u", {"max-channels": -1, "max-connections": 0}),
            LimitsRecord("vhost", "/", {"max-queues": 1}),
            LimitsRecord("vhost", "other", {"max-queues": 2}),
        ]
        definitions.save_limits(LimitsRecord("user", "u", {"max-consumers": 7}))
        for record in records:
            definitions.save_limits(record)
        assert list(definitions.load_limits()) == records
        definitions.delete_vhost("other")
        definitions.delete_user("u")
        definitions.save_limits(LimitsRecord("vhost", "/"))
        assert list(definitions.load_limits()) == records[:1]

    def test_parameters_go_with_their_vhost(self, definitions: Definitions) -> None:
        definitions.save_vhost(VhostRecord("other"))
        records = [
            ParameterRecord("policy", "/", "p\0\udcff", {"a": [1, None, "\0", True]}),
            ParameterRecord("policy", "other", "p", "x"),
            ParameterRecord("policy", "other", "q", 0),
        ]
        definitions.save_parameter(ParameterRecord("policy", "other", "q", {}))
        for record in (ParameterRecord("shovel", "", "p", {}), *reversed(records)):
            definitions.save_parameter(record)
        assert list(definitions.load_parameters("policy")) == records
        definitions.delete_parameter(records[1])
        definitions.delete_parameter(records[1])
        assert list(definitions.load_parameters("policy")) == [records[0], records[2]]
        definitions.delete_vhost("other")
        assert list(definitions.load_parameters("policy")) == records[:1]
        assert [record.vhost for record in definitions.load_parameters("shovel")] == [""]

    def test_users_and_permissions(self, definitions: Definitions) -> None:
        definitions.save_user(UserRecord("u", "hash", ("monitoring",)))
        definitions.save_user(UserRecord("u", "hash2"))
        definitions.save_permission(PermissionRecord("u", "/", "a", "b", "c"))
        assert list(definitions.load_users()) == [UserRecord("u", "hash2")]
        assert "hash2" not in repr(definitions.load_users())
        definitions.delete_user("u")
        definitions.delete_user("u")
        assert not definitions.load_users()
        assert not definitions.load_permissions()
