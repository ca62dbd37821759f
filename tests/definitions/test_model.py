"""Whatever is asked of the service, in whatever order, with crashes in between: it has what a plain dict has, whole changes only."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flintmq.definitions.change_line import Refused
from flintmq.definitions.verbs import GLOBAL, OPERATOR_POLICY, POLICY, TOPIC, topic_name
from flintmq.errors import PeerError
from flintmq.ports import Resource, Verb
from tests.definitions.rig import Rig

users = st.sampled_from(["u", "v", "wé"])
vhosts = st.sampled_from(["/", "a", "b"])
tags = st.lists(st.sampled_from(["administrator", "management", "other"]), unique=True, max_size=2)
patterns = st.sampled_from(["", ".*", "^q", "["])
names = st.sampled_from(["p1", "p2", "p3"])
lengths = st.integers(0, 4)


class Service(RuleBasedStateMachine):
    """The service, a dict, and a queue "q" in each virtual host that shows which policies have an effect."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="flintmq-service-"))
        self.rig = Rig(self.directory)
        # users, vhosts; permissions, topics, policies, limits, globals by their keys
        self.model: dict[str, dict[Any, Any]] = {
            "user": {},
            "vhost": {"/": "Default virtual host"},
            **{kind: {} for kind in ("permission", TOPIC, POLICY, OPERATOR_POLICY, "limit", GLOBAL)},
        }
        self._queue("/")

    def teardown(self) -> None:
        self.rig.close()
        shutil.rmtree(self.directory)

    def _queue(self, vhost: str) -> None:
        self.rig.broker.vhosts[vhost].run(self.rig.broker.vhosts[vhost].declare_queue("q"))

    # --- the model ----------------------------------------------------------------------------------------------------

    def expected(self, verb: str, *arguments: Any, **options: Any) -> dict[str, dict[Any, Any]] | None:
        """The model after the verb; None: it is refused."""
        after = {kind: dict(known) for kind, known in self.model.items()}
        good = getattr(self, f"_{verb}")(after, *arguments, **options)
        return after if good else None

    @staticmethod
    def _put_user(model: Any, name: str, found: Any) -> bool:
        model["user"][name] = tuple(found)
        return True

    @staticmethod
    def _delete_users(model: Any, gone: list[str]) -> bool:
        if any(name not in model["user"] for name in gone):
            return False
        for name in gone:
            del model["user"][name]
            model["limit"].pop(("user", name), None)
            for kind in ("permission", TOPIC):
                model[kind] = {key: value for key, value in model[kind].items() if key[1] != name}
        return True

    @staticmethod
    def _put_permission(model: Any, vhost: str, user: str, sent: dict[str, str]) -> bool:
        if "[" in sent.values() or vhost not in model["vhost"] or user not in model["user"]:
            return False
        model["permission"][vhost, user] = (sent["configure"], sent["write"], sent["read"])
        return True

    @staticmethod
    def _clear_permission(model: Any, vhost: str, user: str) -> bool:
        model[TOPIC] = {key: value for key, value in model[TOPIC].items() if key[:2] != (vhost, user)}
        return model["permission"].pop((vhost, user), None) is not None

    @staticmethod
    def _put_topic(model: Any, vhost: str, user: str, exchange: str, sent: dict[str, str]) -> bool:
        if "[" in sent.values() or vhost not in model["vhost"] or user not in model["user"]:
            return False
        model[TOPIC][vhost, user, exchange] = dict(sent)
        return True

    @staticmethod
    def _put_vhost(model: Any, name: str, value: dict[str, Any]) -> bool:
        model["vhost"][name] = value["description"]
        return True

    @staticmethod
    def _delete_vhost(model: Any, name: str) -> bool:
        if name not in model["vhost"]:
            return False
        del model["vhost"][name]
        model["limit"].pop(("vhost", name), None)
        for kind in ("permission", TOPIC, POLICY, OPERATOR_POLICY):
            model[kind] = {key: value for key, value in model[kind].items() if key[0] != name}
        return True

    @staticmethod
    def _put_policy(model: Any, vhost: str, name: str, value: dict[str, Any], *, operator: bool) -> bool:
        if vhost not in model["vhost"] or value["pattern"] == "[":
            return False
        model[OPERATOR_POLICY if operator else POLICY][vhost, name] = value
        return True

    @staticmethod
    def _delete_policy(model: Any, vhost: str, name: str, *, operator: bool) -> bool:
        return model[OPERATOR_POLICY if operator else POLICY].pop((vhost, name), None) is not None

    @staticmethod
    def _put_limit(model: Any, kind: str, name: str, limit: str, value: Any) -> bool:
        if name not in model[kind]:
            return False
        limits = {**model["limit"].get((kind, name), {})}
        limits.pop(limit, None)
        if value is not None:
            limits[limit] = value
        model["limit"].pop((kind, name), None)
        if limits:
            model["limit"][kind, name] = limits
        return True

    @staticmethod
    def _put_global(model: Any, name: str, value: Any) -> bool:
        model[GLOBAL][name] = value
        return True

    # --- what is asked --------------------------------------------------------------------------------------------------

    calls = st.one_of(
        st.tuples(st.just("put_user"), st.tuples(users, tags), st.just({})),
        st.tuples(st.just("delete_users"), st.tuples(st.lists(users, min_size=1, max_size=2, unique=True)), st.just({})),
        st.tuples(
            st.just("put_permission"),
            st.tuples(vhosts, users, st.fixed_dictionaries({"configure": patterns, "write": patterns, "read": patterns})),
            st.just({}),
        ),
        st.tuples(st.just("clear_permission"), st.tuples(vhosts, users), st.just({})),
        st.tuples(
            st.just("put_topic"),
            st.tuples(vhosts, users, st.just("amq.topic"), st.fixed_dictionaries({"write": patterns, "read": patterns})),
            st.just({}),
        ),
        st.tuples(st.just("put_vhost"), st.tuples(vhosts, st.fixed_dictionaries({"description": st.sampled_from(["", "x"])})), st.just({})),
        st.tuples(st.just("delete_vhost"), st.tuples(vhosts), st.just({})),
        st.tuples(
            st.just("put_policy"),
            st.tuples(
                vhosts,
                names,
                st.fixed_dictionaries(
                    {
                        "pattern": patterns,
                        "apply-to": st.sampled_from(["all", "queues", "exchanges"]),
                        "priority": st.integers(0, 1),
                        "definition": st.fixed_dictionaries({"max-length": lengths}),
                    }
                ),
            ),
            st.fixed_dictionaries({"operator": st.booleans()}),
        ),
        st.tuples(st.just("delete_policy"), st.tuples(vhosts, names), st.fixed_dictionaries({"operator": st.booleans()})),
        st.tuples(
            st.just("put_limit"),
            st.tuples(st.just("user"), users, st.just("max-connections"), st.none() | st.integers(-1, 3)),
            st.just({}),
        ),
        st.tuples(
            st.just("put_limit"), st.tuples(st.just("vhost"), vhosts, st.just("max-queues"), st.none() | st.integers(5, 9)), st.just({})
        ),
        st.tuples(st.just("put_global"), st.tuples(names, st.sampled_from([1, "x", {"a": [None]}])), st.just({})),
    )

    @rule(call=calls)
    def ask(self, call: Any) -> None:
        verb, arguments, options = call
        after = self.expected(verb, *arguments, **options)
        answer = self.rig.ask(verb, *arguments, **options)
        try:
            answer.wait()
        except Refused:
            assert after is None, call
            return
        assert after is not None, call
        self._became(after)

    def _became(self, after: dict[str, dict[Any, Any]]) -> None:
        new = [name for name in after["vhost"] if name not in self.model["vhost"]]
        self.model = after
        for name in new:
            self._queue(name)

    @rule(call=calls)
    def crash(self, call: Any) -> None:
        """The machine stops at some moment of a change: the next start finds it whole, or nothing of it."""
        verb, arguments, options = call
        after = self.expected(verb, *arguments, **options)
        answer = self.rig.ask(verb, *arguments, **options)
        copy = Path(tempfile.mkdtemp(prefix="flintmq-service-"))
        for part in ("definitions.db", "definitions.db-wal"):  # in this order: nothing is moved from one to the other before a close
            if (self.directory / part).exists():
                shutil.copyfile(self.directory / part, copy / part)
        try:
            answer.wait()
        except Refused:
            assert after is None, call
        self.rig.close()
        shutil.rmtree(self.directory)
        self.directory = copy
        self.rig = Rig(copy)
        found = self.seen()
        assert found in ([self.model] if after is None else [self.model, after]), call
        self.model = found
        for name in self.model["vhost"]:
            self._queue(name)

    # --- what there is --------------------------------------------------------------------------------------------------

    def seen(self) -> dict[str, dict[Any, Any]]:
        """What the service and the broker show, in the model's form."""
        rig, service = self.rig, self.rig.service
        assert sorted(service.vhosts) == sorted(rig.broker.vhosts)
        found: dict[str, dict[Any, Any]] = {
            "user": {name: rig.users.get(name).tags for name in rig.users.names()},  # type: ignore[union-attr]
            "vhost": {name: record.description for name, record in service.vhosts.items()},
            "permission": {(one.vhost, one.user): (one.configure, one.write, one.read) for one in rig.permissions.records()},
            "limit": {(one.kind, one.name): dict(one.limits) for one in rig.broker.quotas.records()},
            GLOBAL: {one.name: one.value for one in service.of(GLOBAL)},
            TOPIC: {},
        }
        for user in ("u", "v", "wé"):
            for vhost in ("/", "a", "b"):
                value = service.value(TOPIC, vhost, topic_name(user, "amq.topic"))
                if value is not None:
                    found[TOPIC][vhost, user, "amq.topic"] = value
        for kind in (POLICY, OPERATOR_POLICY):
            found[kind] = {(one.vhost, one.name): one.value for one in service.of(kind)}
        return found

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        assert self.seen() == self.model

    @invariant()
    def policies_have_their_effect(self) -> None:
        """The first of the highest priority, the lower of the two numbers; on a queue that was there before and after."""
        for vhost in self.model["vhost"]:
            limits = []
            for kind in (POLICY, OPERATOR_POLICY):
                fit = [
                    (-value["priority"], name, value["definition"]["max-length"])
                    for (where, name), value in self.model[kind].items()
                    if where == vhost and value["apply-to"] != "exchanges" and value["pattern"] in (".*", "^q", "")
                ]
                if fit:
                    limits.append(min(fit)[2])
            queue = self.rig.broker.vhosts[vhost].queues["q"]
            assert queue.policy.max_length == (min(limits) if limits else None)
            assert queue.core.max_length == (min(limits) if limits else 2**64 - 1)

    @invariant()
    def permissions_have_their_effect(self) -> None:
        for user in ("u", "v", "wé"):
            for vhost in ("/", "a", "b"):
                sent = self.model["permission"].get((vhost, user))
                may = sent is not None and sent[2] in (".*", "^q")
                try:
                    self.rig.permissions.authorize(user, vhost, Verb.READ, Resource("queue", "q"))
                except PeerError:
                    assert not may
                else:
                    assert may


TestService = Service.TestCase
TestService.settings = settings(max_examples=6, stateful_step_count=20, deadline=None)
