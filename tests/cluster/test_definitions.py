"""Definitions of several nodes with one engine in memory.

Properties: each kind comes, changes and goes on all nodes; whoever asked is answered when the engine has the change; a node that was away,
or is new, becomes what the engine says; what can't be followed holds up nothing else; no other loop waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flintmq.cluster.known import Known
from flintmq.cluster.local_definitions import LocalDefinitions
from flintmq.engines.engine import Commit
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import BindingRecord, ExchangeRecord, ParameterRecord, QueueRecord, UserRecord, VhostRecord
from flintmq.shared import queue_rows
from flintmq.shared.definition_rows import DefinitionRow, key_of
from flintmq.store.definitions import MemoryDefinitions
from tests.cluster.several_nodes import NodeOfMany, Nodes, good, until
from tests.twins.faulty_engine import Fate, Plan, RandomPlan

PATTERNS = {"configure": ".*", "write": ".*", "read": ""}
POLICY = {"pattern": "^q", "apply-to": "queues", "priority": 1, "definition": {"max-length": 5}}
SHARED = {"x-queue-type": "shared"}
Ask = Callable[[NodeOfMany], Coroutine[Any, Any, Any]]


def run(body: Callable[[Nodes], Coroutine[Any, Any, None]], plan: Plan | None = None, **limits: int) -> None:
    async def whole() -> None:
        nodes = Nodes(plan, **limits)
        try:
            await body(nodes)
        finally:
            nodes.plan.gate = None
            await nodes.close()

    asyncio.run(whole())


def asking(verb: str, *arguments: Any, **options: Any) -> Ask:
    return lambda node: good(node.ask(verb, *arguments, **options))


def asking_vhost(verb: str, *arguments: Any, **options: Any) -> Ask:
    return lambda node: good(node.ask_vhost("/", verb, *arguments, **options))


# kind -> how it is made, how it is changed, how it ends
KINDS: dict[str, tuple[list[Ask], list[Ask], list[Ask]]] = {
    "user": (
        [asking("put_user", "u", ["management"], password_hash="$argon2id$1")],
        [asking("put_user", "u", ["administrator"], password_hash="$argon2id$2")],
        [asking("delete_users", ["u"])],
    ),
    "user's limits": (
        [asking("put_limit", "user", "guest", "max-channels", 5), asking("put_limit", "user", "guest", "max-consumers", 5)],
        [asking("put_limit", "user", "guest", "max-channels", 7)],
        [asking("put_limit", "user", "guest", one, None) for one in ("max-channels", "max-consumers")],
    ),
    "vhost": (
        [asking("put_vhost", "v", {"description": "d", "tags": ["t"], "default_queue_type": "quorum"})],
        [asking("put_vhost", "v", {"description": "e", "tags": []})],
        [asking("delete_vhost", "v")],
    ),
    "vhost's limits": (
        [asking("put_limit", "vhost", "/", "max-queues", 5)],
        [asking("put_limit", "vhost", "/", "max-queues", 7)],
        [asking("put_limit", "vhost", "/", "max-queues", None)],
    ),
    "permission": (
        [asking("put_user", "u", []), asking("put_permission", "/", "u", PATTERNS)],
        [asking("put_permission", "/", "u", {**PATTERNS, "read": "^a"})],
        [asking("clear_permission", "/", "u"), asking("delete_users", ["u"])],
    ),
    "topic permission": (
        [asking("put_topic", "/", "guest", "amq.topic", {"write": "a", "read": "b"})],
        [asking("put_topic", "/", "guest", "amq.topic", {"write": "a", "read": "c"})],
        [asking("clear_topics", "/", "guest", "amq.topic")],
    ),
    "policy": (
        [asking("put_policy", "/", "p", POLICY)],
        [asking("put_policy", "/", "p", {**POLICY, "priority": 2})],
        [asking("delete_policy", "/", "p")],
    ),
    "operator policy": (
        [asking("put_policy", "/", "p", POLICY, operator=True)],
        [asking("put_policy", "/", "p", {**POLICY, "priority": 2}, operator=True)],
        [asking("delete_policy", "/", "p", operator=True)],
    ),
    "global parameter": (
        [asking("put_global", "cluster_name", "here")],
        [asking("put_global", "cluster_name", "there")],
        [asking("delete_global", "cluster_name")],
    ),
    "exchange": (
        [asking_vhost("declare_exchange", "x", "topic", durable=True, internal=True, arguments={"alternate-exchange": "a", "n": 5})],
        [],
        [asking_vhost("delete_exchange", "x")],
    ),
    "binding of exchanges": (
        [asking_vhost("declare_exchange", "x", durable=True), asking_vhost("bind_exchange", "x", "amq.topic", b"\xff", {"a": 1})],
        [],
        [asking_vhost("unbind_exchange", "x", "amq.topic", b"\xff", {"a": 1}), asking_vhost("delete_exchange", "x")],
    ),
}


def effects(node: NodeOfMany) -> dict[str, Any]:
    """What definitions do, beside being there."""
    host = node.broker.vhosts["/"]
    queue = host.queues.get("q1")
    return {
        "policy": None if queue is None else queue.policy,
        "type": {name: one.default_queue_type for name, one in node.broker.vhosts.items()},
        "keyed": host.keyed,
        "topics": sorted(node.permissions._topics),
        "quotas": [host._quotas, node.broker.quotas.of("user", "guest")],
        "bindings": sorted(repr(identity) for one in host.exchanges.values() for identity in one.bindings),
        "name": node.broker.cluster_name,
        "stored": [node.stored.load_exchanges("/"), node.stored.load_users(), node.stored.load_permissions(), node.stored.load_limits()],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_comes_changes_and_goes_on_the_other_node(kind: str) -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        for node in (one, other):
            node.broker.vhosts["/"].run(node.broker.vhosts["/"].declare_queue("q1", durable=True))
        before = one.world()
        for asks in KINDS[kind]:
            seen = one.world()
            for ask in asks:
                await ask(one)
            assert (one.world() != seen) == bool(asks)
            await nodes.settle()
            assert other.world() == one.world() and effects(other) == effects(one)
            one, other = other, one
        assert {**one.world(), **before} == {**one.world()} and set(one.world()) - set(before) <= {
            key_of(ParameterRecord("vhost-metadata", "v", "metadata"))
        }
        assert not one.cluster.facts()["refused"] and not other.cluster.facts()["refused"]

    run(body)


def test_a_verb_is_answered_when_the_engine_has_the_change_and_not_before() -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()
        gate = asyncio.Event()

        async def stand(call: str) -> None:
            if call == "commit":
                await gate.wait()

        nodes.plan.gate = stand
        answers = [node.ask("put_user", "u", []), node.exchange("x")]
        assert node.users.is_user("u") and "x" in node.broker.vhosts["/"].exchanges
        again = node.exchange("amq.direct")
        assert again.is_good  # it has changed nothing
        for _ in range(50):
            await asyncio.sleep(0)
        assert not any(answer.is_over for answer in answers) and key_of(UserRecord("u")) not in nodes.rows
        gate.set()
        for answer in answers:
            await good(answer)
        assert key_of(UserRecord("u")) in nodes.rows and key_of(ExchangeRecord("/", "x", "")) in nodes.rows

    run(body)


def test_a_verb_that_changes_nothing_waits_for_the_earlier_one_that_has_yet_to_be_told_and_for_no_other() -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()
        await good(node.exchange("y"))
        gate = asyncio.Event()

        async def stand(call: str) -> None:
            if call == "commit":
                await gate.wait()

        nodes.plan.gate = stand
        binding = ("y", "amq.topic", b"k", {"a": 1})
        answers = [node.exchange("x"), node.ask_vhost("/", "bind_exchange", *binding), node.ask_vhost("/", "delete_exchange", "z")]
        assert answers.pop().is_good and node.exchange("y").is_good and node.ask_vhost("/", "declare_queue", "x").is_good
        answers += [node.exchange("x"), node.ask_vhost("/", "bind_exchange", *binding)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert not any(answer.is_over for answer in answers)
        gate.set()
        for answer in answers:
            await good(answer)

    run(body)


def test_an_engine_that_is_away_is_waited_for_within_a_bound_and_told_later() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        away = True

        async def stand(call: str) -> None:
            while away:
                await asyncio.sleep(0.001)

        nodes.plan.gate = stand
        answers = [one.ask("put_user", "u", []), one.exchange("x")]
        for answer in answers:
            await until(lambda answer=answer: answer.is_over)
            assert isinstance(answer.error, PeerError) and answer.error.code == ReplyCode.INTERNAL_ERROR
        assert one.cluster.facts()["waiting"] == 2 and one.cluster.facts()["lag_ms"] > 0
        away = False
        await until(lambda: other.users.is_user("u") and "x" in other.broker.vhosts["/"].exchanges)

    run(body, shared_waiting_ms_max=20)


def test_a_full_engine_takes_ends_and_later_the_rest() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        await good(one.exchange("x"))
        await nodes.settle()
        full = True

        class Full(Plan):
            async def fate(self, call: str, commit: Commit | None = None) -> Fate:
                return Fate.FULL if full else Fate.DONE

        for engine in nodes.engines:
            engine.plan = Full()
        put = one.exchange("y")
        one.ask_vhost("/", "delete_exchange", "x")
        await until(lambda: one.cluster.facts()["waiting"] == 2)
        full = False
        await good(put)
        await until(lambda: "y" in other.broker.vhosts["/"].exchanges and "x" not in other.broker.vhosts["/"].exchanges)

    run(body)


def test_a_virtual_host_ends_with_all_that_is_in_it_and_a_new_one_of_the_name_is_empty() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        await good(one.ask("put_vhost", "v", {"tags": ["t"]}))
        await good(one.ask("put_permission", "v", "guest", PATTERNS))
        await good(one.ask("put_policy", "v", "p", POLICY))
        await good(one.exchange("x", vhost="v"))
        await good(one.ask_vhost("v", "bind_exchange", "x", "amq.topic", b"k"))
        await queue_rows.declare(one.thread.engine, "v", "s", SHARED)
        await until(lambda: "v" in other.broker.vhosts and "s" in other.broker.vhosts["v"].queues)
        await nodes.settle()
        deleted = other.ask("delete_vhost", "v")
        made = other.ask("put_vhost", "v", {})
        await good(deleted)
        await good(made)
        await nodes.settle()
        for node in nodes.nodes:
            host = node.broker.vhosts["v"]
            assert not host.queues and "x" not in host.exchanges and not host.binding_count
            assert not node.service.of("policy", "v") and not node.permissions.has_vhost("guest", "v")
        await until(lambda: len([key for key in nodes.rows if b"\0\1v" in key]) == 1)

    run(body)


def test_a_user_who_is_deleted_and_made_anew_at_once_has_none_of_the_old_one_s_rights() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        await good(one.ask("put_user", "u", []))
        await good(one.ask("put_permission", "/", "u", PATTERNS))
        await good(one.ask("put_topic", "/", "u", "amq.topic", {"write": "a", "read": "b"}))
        await nodes.settle()
        born = other.users.born("u")
        one.ask("delete_users", ["u"])
        await good(one.ask("put_user", "u", []))
        await until(lambda: other.users.born("u") not in (born, 0))
        await nodes.settle()
        for node in nodes.nodes:
            assert not node.permissions.has_vhost("u", "/") and not node.service.of("topic-permission")

    run(body)


def test_an_exchange_that_is_made_anew_loses_its_bindings_on_all_nodes() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        await good(one.exchange("x"))
        await good(one.ask_vhost("/", "bind_exchange", "x", "amq.topic", b"k"))
        await nodes.settle()
        one.ask_vhost("/", "delete_exchange", "x")
        await good(one.exchange("x", "fanout"))
        await until(lambda: getattr(other.broker.vhosts["/"].exchanges.get("x"), "kind", "") == "fanout")
        await nodes.settle()
        assert not other.broker.vhosts["/"].exchanges["amq.topic"].bindings

    run(body)


def test_of_two_exchanges_of_one_name_the_first_counts_and_the_other_is_refused() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        answers = [one.exchange("x", "direct"), other.exchange("x", "fanout")]
        await until(lambda: all(answer.is_over for answer in answers))
        await nodes.settle()
        kind = one.broker.vhosts["/"].exchanges["x"].kind
        (refused,) = [answer.error for answer in answers if answer.error is not None]
        assert isinstance(refused, PeerError) and refused.code == ReplyCode.PRECONDITION_FAILED
        assert answers[kind == "fanout"].is_good

    run(body)


def test_an_exchange_that_goes_with_its_last_binding_stays_while_a_node_has_one() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        await good(one.exchange("x", auto_delete=True))
        await nodes.settle()
        for node in nodes.nodes:
            await good(node.ask_vhost("/", "declare_queue", "q", durable=True))
            await good(node.ask_vhost("/", "bind_queue", "q", "x", b""))
        await good(one.ask_vhost("/", "unbind_queue", "q", "x", b""))
        await until(lambda: "x" in one.broker.vhosts["/"].exchanges)
        await nodes.settle()
        assert other.broker.vhosts["/"].exchanges["x"].bindings
        await good(other.ask_vhost("/", "unbind_queue", "q", "x", b""))
        await until(lambda: not any("x" in node.broker.vhosts["/"].exchanges for node in nodes.nodes))

    run(body)


def test_a_shared_queue_and_its_bindings_come_and_go_and_those_of_a_local_queue_stay_on_their_node() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        rows: list[Any] = []
        one.local.know_queue = lambda queue: rows.append(queue.row)
        row, _ = await queue_rows.declare(one.thread.engine, "/", "s", SHARED)
        await until(lambda: all("s" in node.broker.vhosts["/"].queues for node in nodes.nodes) and rows == [row])
        await good(one.ask_vhost("/", "declare_queue", "q", durable=True))
        await good(one.ask_vhost("/", "bind_queue", "s", "amq.topic", b"a", {"x": 1}))
        await good(one.ask_vhost("/", "bind_queue", "q", "amq.topic", b"b"))
        await nodes.settle()
        (binding,) = other.broker.vhosts["/"].exchanges["amq.topic"].bindings.values()
        assert (binding.destination.name, binding.routing_key, binding.arguments) == ("s", b"a", {"x": 1})
        await queue_rows.remove(other.thread.engine, "/", "s", row)
        await queue_rows.declare(other.thread.engine, "/", "s", {**SHARED, "x-max-length": 5})
        await until(
            lambda: all(
                "x-max-length" in node.broker.vhosts["/"].queues["s"].arguments
                for node in nodes.nodes
                if "s" in node.broker.vhosts["/"].queues
            )
        )
        await nodes.settle()
        assert not other.broker.vhosts["/"].exchanges["amq.topic"].bindings
        assert [one.routing_key for one in one.broker.vhosts["/"].exchanges["amq.topic"].bindings.values()] == [b"b"]

    run(body)


def test_links_and_the_node_s_own_parameters_are_not_shared() -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()
        count = len(nodes.rows)
        node.definitions.save_parameter(ParameterRecord("shovel", "/", "s", {"src-uri": "amqp://user:secret@host"}))
        node.definitions.save_parameter(ParameterRecord("scram-salts", "", "key", "secret"))
        await asyncio.sleep(0.01)
        assert len(nodes.rows) == count and not any(b"secret" in value for value in nodes.rows.values())

    run(body)


# --- a node that was away, and a new one ------------------------------------------------------------------------------------


def test_a_node_that_was_away_has_the_state_of_the_others_when_it_is_back() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        for name in ("gone", "kept"):
            await good(one.ask("put_user", name, []))
            await good(one.ask("put_permission", "/", name, PATTERNS))
            await good(one.ask("put_vhost", name, {}))
            await good(one.exchange(name))
        await nodes.settle()
        await good(other.ask_vhost("gone", "declare_queue", "q", durable=True))
        stored = await nodes.stop(other)
        await good(one.ask("delete_users", ["gone"]))
        await good(one.ask("delete_vhost", "gone"))
        await good(one.ask_vhost("/", "delete_exchange", "gone"))
        await good(one.ask("put_user", "kept", ["management"]))
        await good(one.exchange("new"))
        other = await nodes.start(stored)
        await nodes.settle()
        assert other.world() == one.world() and "gone" not in other.broker.vhosts
        assert "new" in other.broker.vhosts["/"].exchanges and not other.stored.load_queues("gone")

    run(body)


def test_the_first_node_gives_its_definitions_and_a_new_one_takes_them_but_for_what_its_queues_hang_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(nodes: Nodes) -> None:
        mine = store_with("mine", "$argon2id$mine")
        theirs = store_with("theirs", "$argon2id$theirs")
        one = await nodes.start(mine)
        other = await nodes.start(theirs)
        await nodes.settle()
        assert other.world() == one.world() and one.users.is_user("mine") and not other.users.is_user("theirs")
        for node in (one, other):
            record = node.users.get("guest")
            assert record is not None and record.password_hash == "$argon2id$mine"
        host = other.broker.vhosts["vhost of theirs"]
        assert "q" in host.queues and set(host.exchanges["fed"].bindings) and "x" not in host.exchanges
        assert "fed" in one.broker.vhosts["vhost of theirs"].exchanges and "q" not in one.broker.vhosts["vhost of theirs"].queues
        assert not other.permissions.has_vhost("theirs", "vhost of theirs")

    caplog.set_level(logging.INFO)
    run(body)
    assert "user 'theirs' is not on the other nodes, and ends here" in caplog.text and "argon2id" not in caplog.text


def store_with(name: str, password_hash: str) -> MemoryDefinitions:
    """A store with a user, a virtual host, two exchanges in it and a queue bound to one of them, all of its own."""
    stored = MemoryDefinitions()
    vhost = f"vhost of {name}"
    stored.save_user(UserRecord("guest", password_hash))
    stored.save_user(UserRecord(name))
    stored.save_vhost(VhostRecord(vhost))
    stored.save_exchange(ExchangeRecord(vhost, "fed", "direct"))
    stored.save_exchange(ExchangeRecord(vhost, "feeding", "direct"))
    stored.save_exchange(ExchangeRecord(vhost, "x", "direct"))
    if name == "theirs":
        stored.save_queue(QueueRecord(vhost, "q", stored.new_queue_id()))
        stored.save_binding(BindingRecord(vhost, "fed", "queue", "q", b"k"))
        stored.save_binding(BindingRecord(vhost, "feeding", "exchange", "fed", b"k"))
    return stored


def test_of_nodes_that_begin_together_one_gives_its_definitions_and_all_have_them() -> None:
    async def body(nodes: Nodes) -> None:
        stores = [store_with(f"n{number}", "") for number in range(3)]
        started = [await nodes.start(stored, wait=False) for stored in stores]
        await until(lambda: all(node.cluster.wait_first(0) for node in started))
        await nodes.settle()
        assert sum(started[0].users.is_user(f"n{number}") for number in range(3)) == 1

    run(body)


@pytest.mark.parametrize("seed", range(8))
def test_the_first_definitions_are_whole_whatever_becomes_of_calls(seed: int) -> None:
    async def body(nodes: Nodes) -> None:
        stores = [store_with(f"n{number}", "") for number in range(2)]
        started = [await nodes.start(stored, wait=False) for stored in stores]
        await until(lambda: all(node.cluster.wait_first(0) for node in started))
        assert isinstance(nodes.plan, RandomPlan)
        nodes.plan.share = 0.0
        while nodes.plan.late:
            await nodes.plan.let_happen()
        await nodes.settle()
        winners = [number for number in range(2) if started[0].users.is_user(f"n{number}")]
        assert len(winners) == 1
        for node in started:
            assert {"fed", "feeding", "x"} <= set(node.broker.vhosts[f"vhost of n{winners[0]}"].exchanges)

    run(body, RandomPlan(seed, 0.3), shared_definitions_batch=2, shared_definitions_first_ms=100)


def test_a_first_node_that_stops_in_the_middle_is_followed_by_another_one_with_its_own() -> None:
    async def body(nodes: Nodes) -> None:
        commits = 0

        async def stand(call: str) -> None:
            nonlocal commits
            commits += call == "commit"
            if commits == 4:
                await asyncio.Event().wait()

        nodes.plan.gate = stand
        first = await nodes.start(store_with("first", ""), wait=False)
        await until(lambda: commits == 4)
        nodes.plan.gate = None
        await nodes.stop(first)
        assert key_of(VhostRecord("vhost of first")) in nodes.rows
        second = await nodes.start(store_with("second", ""))
        await nodes.settle()
        assert second.users.is_user("second") and key_of(VhostRecord("vhost of first")) not in nodes.rows
        assert not second.cluster.facts()["refused"]

    run(body, shared_definitions_batch=1)


# --- what can't be followed -------------------------------------------------------------------------------------------------


def test_what_a_node_cannot_do_is_refused_by_itself_said_once_and_done_when_it_can(caplog: pytest.LogCaptureFixture) -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        host = other.broker.vhosts["/"]
        host.run(host.declare_exchange("x", "fanout"))  # transient: nobody else has it
        await good(one.exchange("x"))
        await good(one.ask_vhost("/", "bind_exchange", "x", "amq.topic", b"k"))
        await good(one.exchange("y"))
        await until(lambda: "y" in host.exchanges and other.cluster.facts()["refused"] == 2)
        await asyncio.sleep(0.05)
        assert caplog.text.count("exchange 'x' in vhost '/' is not here as on other nodes") == 1
        host.run(host.delete_exchange("x"))
        await until(lambda: "x" in host.exchanges and host.exchanges["x"].durable and not other.cluster.facts()["refused"])
        await nodes.settle()

    run(body)


def test_a_row_that_a_later_version_wrote_is_left_alone_and_what_is_here_stays() -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()
        await good(node.exchange("x"))
        key = key_of(ExchangeRecord("/", "x", ""))
        await nodes.engines[0].engine.commit(Commit((), {key: b"{later}", b"d/z/later": b"?"}))
        await until(lambda: node.cluster._known.rows[key].row is None)
        nodes.engines[0].lose_watches()
        await until(lambda: node.cluster.facts()["refused"] == 1)
        assert "x" in node.broker.vhosts["/"].exchanges and nodes.rows[key] == b"{later}"

    run(body)


def test_a_change_of_what_others_have_deleted_is_refused_and_comes_to_nothing() -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        await good(one.ask("put_user", "u", []))
        await nodes.settle()
        held = asyncio.Event()

        async def stand(call: str) -> None:
            if call == "get":
                await held.wait()

        nodes.engines[1].plan = Plan()
        nodes.engines[1].plan.gate = stand  # the other node does not hear of it
        await good(one.ask("delete_users", ["u"]))
        answer = other.ask("put_permission", "/", "u", PATTERNS)
        held.set()
        await until(lambda: answer.is_over)
        assert isinstance(answer.error, PeerError) and answer.error.code == ReplyCode.PRECONDITION_FAILED
        await nodes.settle()
        assert not other.permissions.has_vhost("u", "/")

    run(body)


def test_one_definition_more_than_the_limit_is_refused_and_what_is_there_can_be_changed() -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()  # a virtual host, a user, a permission
        await good(node.ask("put_user", "u", []))
        answer = node.ask("put_user", "v", [])
        await until(lambda: answer.is_over)
        assert isinstance(answer.error, PeerError) and "limit" in answer.error.text
        await good(node.ask("put_user", "u", ["management"]))
        await until(lambda: not node.users.is_user("v"))

    run(body, shared_definitions_max=4)


def test_a_change_that_waits_to_be_told_is_not_undone_by_what_the_engine_has_still() -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()
        await good(node.ask("put_policy", "/", "p", POLICY))
        await nodes.settle()
        stands = True

        async def stand(call: str) -> None:
            while stands and call == "commit":
                await asyncio.sleep(0)

        nodes.plan.gate = stand
        first = node.ask("put_global", "g", 1)  # its commit stands
        for _ in range(20):
            await asyncio.sleep(0)
        node.ask("put_policy", "/", "p", {**POLICY, "priority": 7})
        seen: list[Any] = []
        node.cluster._known.touch(key_of(ParameterRecord("policy", "/", "p")))
        put = node.local.put
        node.local.put = lambda record, done: (seen.append(record), put(record, done))  # type: ignore[method-assign,assignment]
        await node.cluster._follow(dict(node.cluster._known.dirty))
        assert not seen and node.service.value("policy", "/", "p")["priority"] == 7
        stands = False
        await good(first)

    run(body)


def test_a_thing_that_came_while_all_rows_were_read_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()
        await nodes.settle()
        read_all, ended = Known.read_all, []
        monkeypatch.setattr(LocalDefinitions, "end", lambda local, record, done: (ended.append(record), done(None)))

        async def read_and_declare(known: Known) -> None:
            await read_all(known)
            if "s" not in node.broker.vhosts["/"].queues:
                await queue_rows.declare(node.thread.engine, "/", "s", SHARED)
                await good(node.ask_vhost("/", "declare_queue", "s", durable=True, arguments=SHARED))

        monkeypatch.setattr(Known, "read_all", read_and_declare)
        nodes.engines[0].lose_watches()
        await until(lambda: "s" in node.broker.vhosts["/"].queues)
        await nodes.settle()
        assert not ended

    run(body)


# --- bounds -----------------------------------------------------------------------------------------------------------------


def test_between_two_turns_of_the_loop_one_definition_at_most_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(nodes: Nodes) -> None:
        one = await nodes.start()
        for number in range(200):
            one.exchange(f"x{number}")
        await nodes.settle()
        turn, turns = 0, []
        put = LocalDefinitions.put
        monkeypatch.setattr(LocalDefinitions, "put", lambda *args: (turns.append(turn), put(*args)))
        await nodes.start(wait=False)
        while len(turns) < 200:
            await asyncio.sleep(0)
            turn += 1
        assert max(map(turns.count, set(turns))) <= 2

    run(body, shared_definitions_page=500, shared_definitions_batch=50, shared_definitions_verbs=200)


def test_a_node_s_own_change_is_not_made_again_when_the_engine_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(nodes: Nodes) -> None:
        one, other = await nodes.start(), await nodes.start()
        made: list[Any] = []
        put = LocalDefinitions.put
        monkeypatch.setattr(LocalDefinitions, "put", lambda local, record, done: (made.append((local, record)), put(local, record, done)))
        for number in range(10):
            await good(one.ask("put_user", f"u{number}", []))
        await nodes.settle()
        assert len(made) == 10 and all(local is other.local for local, _ in made)

    run(body)


def test_rows_that_hang_on_ended_things_are_deleted_by_any_node() -> None:
    async def body(nodes: Nodes) -> None:
        node = await nodes.start()
        binding = BindingRecord("/", "amq.topic", "exchange", "x", b"k")
        row = DefinitionRow(binding, "t", "", ("no life", "no life"))
        await nodes.engines[0].engine.commit(Commit((), {key_of(binding): row.pack()}))
        await until(lambda: key_of(binding) not in nodes.rows)
        assert not node.cluster.facts()["refused"]

    run(body)
