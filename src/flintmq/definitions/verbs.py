"""The one service through which users, permissions, limits, virtual hosts, policies and parameters change while the broker runs.

in: verbs, each with the actor who asks. out: durable changes that connections see at their next command; what everybody may read.

S1  Every verb asks `access.tags.authorize` once, when its turn comes; nothing was looked up for it before.
S2  What is read (`users`, `permissions`, the dicts below) is what the database has; dicts are changed by one thread at a time (line.L1).
S3  Who loses a right loses it for the next command: caches of connections are made anew (Permissions.on_changed). The connections of a
    deleted user, or virtual host, are closed with RabbitMQ's text.
S4  A policy is applied to queues in slices; the verb is over when all queues have it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from flintmq.access import tags as rules
from flintmq.access.hashes import hash_of, stored_hash
from flintmq.access.outside_user import OutsideUser
from flintmq.broker import closing
from flintmq.definitions import checks
from flintmq.definitions.change_line import BROKER, Actor, Done, Job, Line, Plan, Refused
from flintmq.definitions.checks import bad, members
from flintmq.guard import guarded
from flintmq.ports import LimitsRecord, ParameterRecord, PermissionRecord, UserRecord, VhostRecord
from flintmq.routing.binding import EXCHANGE, QUEUE
from flintmq.slotted import replaced
from flintmq.store.sql.changes import Change, Delete, Save
from flintmq.vhost.policies import made

POLICY, OPERATOR_POLICY, TOPIC, GLOBAL, VHOST_METADATA = "policy", "operator_policy", "topic-permission", "global", "vhost-metadata"
# who set a parameter of a link: the name of the record is [component, name] of the parameter as JSON
OWNER = "link-owner"
# queues that rest: the name of the record is the queue's, its value the queue's id, so that a new queue of the name does not rest
PAUSED = "queue-pause"
_KEPT = (POLICY, OPERATOR_POLICY, TOPIC, GLOBAL, VHOST_METADATA, OWNER, PAUSED, *checks.COMPONENTS)
CLUSTER_NAME = "cluster_name"
# a part of a user that a change leaves as it is; None is a value of JSON, and none that a user may have
KEPT: Any = object()
# nanoseconds in which one slice gives queues their policy (10 us each or so)
FOLLOW_NS = 50_000

Key = tuple[str, str, str]  # component, vhost, name


def _missing(kind: str, name: str, vhost: str | None = None) -> Refused:
    """Not there: the thing is named, since a path or a script names several."""
    return Refused("not_found", f"no {kind} '{name}'" + ("" if vhost is None else f" in vhost '{vhost}'"))


def topic_name(user: str, exchange: str) -> str:
    """The name under which a topic permission is kept."""
    return json.dumps([user, exchange])


class DefinitionsService:
    """Args: broker: broker.broker.Broker, with its definitions, users, permissions and quotas. `load` comes first."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._limits = broker.limits
        self._line = Line(broker.definitions, broker.limits.definitions_line_max, broker.events.changed)
        self.parameters: dict[Key, ParameterRecord] = {}
        self.vhosts: dict[str, VhostRecord] = {}
        # what is done when parameters of links (shovels, upstreams) have changed; what their makers may reach (links.rights.Rights)
        self.on_links: Callable[[], object] = lambda: None
        self.rights: Any = None

    # --- start ------------------------------------------------------------------------------------------------------

    def load(self) -> list[str]:
        """Reads what is kept; the names of the virtual hosts. Once, before `prepare`."""
        definitions = self._broker.definitions
        self.vhosts = {record.name: record for record in definitions.load_vhosts()}
        for component in _KEPT:
            for record in definitions.load_parameters(component):
                self.parameters[component, record.vhost, record.name] = record
        name = self.parameters.get((GLOBAL, "", CLUSTER_NAME))
        if name is not None:
            self._broker.cluster_name = str(name.value)
        return list(self.vhosts)

    def prepare(self, vhost: Any) -> None:
        """Gives a virtual host that is about to be restored its policies and topic permissions. A record that can't be read is left out."""
        for record in [one for one in self.parameters.values() if one.vhost == vhost.name]:
            if record.component in (POLICY, OPERATOR_POLICY, TOPIC):
                guarded("definitions at the start", f"{record.component} {record.name!r}", self._prepare, vhost, record)
        vhost.keyed = self._keyed(vhost.name)
        vhost.default_queue_type = self._default_queue_type(vhost.name)

    def _prepare(self, vhost: Any, record: ParameterRecord) -> None:
        if record.component == TOPIC:
            user, exchange = json.loads(record.name)
            self._broker.permissions.set_topic(user, record.vhost, exchange, record.value["write"], record.value["read"])
        else:
            vhost.policies.put(made(record.name, record.value), record.component == OPERATOR_POLICY)

    def _keyed(self, vhost: str) -> set[str]:
        return {json.loads(name)[1] for component, where, name in list(self.parameters) if component == TOPIC and where == vhost}

    # --- around every verb ------------------------------------------------------------------------------------------

    def allow(self, actor: Actor, verb: str, vhost: str | None = None) -> None:
        """The one question of each verb (S1). Raises: NotAuthorised."""
        if actor.user is None:
            return
        record = self._broker.users.get(actor.user)
        has_vhost = vhost is None or self._broker.permissions.has_vhost(actor.user, vhost)
        try:
            rules.authorize(verb, () if record is None else record.tags, has_vhost)
        except rules.NotAuthorised as error:
            where = "" if vhost is None else f" in vhost {vhost!r}"
            self._broker.audit.refused(actor.user, f"{verb}{where}: {error}", actor.peer)
            raise

    def _perform(self, actor: Actor, verb: str, vhost: str | None, text: str, plan: Callable[[], Plan], done: Done) -> None:
        self._line.perform(Job(actor, text, partial(self.allow, actor, verb, vhost), plan, done))

    def _is_administrator(self, actor: Actor) -> bool:
        record = None if actor.user is None else self._broker.users.get(actor.user)
        return actor.user is None or (record is not None and rules.ADMINISTRATOR in record.tags)

    def _need_vhost(self, name: str) -> VhostRecord:
        record = self.vhosts.get(name)
        if record is None:
            raise _missing("vhost", name)
        return record

    def value(self, component: str, vhost: str, name: str) -> Any:
        """The value of a parameter, or None."""
        record = self.parameters.get((component, vhost, name))
        return None if record is None else record.value

    def of(self, component: str, vhost: str | None = None) -> list[ParameterRecord]:
        """Parameters of a component, of one virtual host or of all, by vhost and name."""
        chosen = [one for one in list(self.parameters.values()) if one.component == component and vhost in (None, one.vhost)]
        return sorted(chosen, key=lambda one: (one.vhost, one.name))

    # --- users ------------------------------------------------------------------------------------------------------

    def put_user(
        self,
        actor: Actor,
        name: str,
        tags: Any,
        done: Done,
        *,
        password_hash: str = "",
        algorithm: str = "",
        exists: bool | None = None,
    ) -> None:
        """Creates or replaces a user; True: it is new. Args: tags, password_hash: KEPT: as they are; password_hash: as stored, or with
        `algorithm` as definitions files have it; exists: False: refused ("exists") when there is one of the name, True: ("not_found") when
        there is none. It is decided here, where one change is under way at a time: of two scripts that add a user, one is refused."""

        def plan() -> Plan:
            known = self._broker.users.get(name)
            if exists is False and known is not None:
                raise Refused("exists", f"user '{name}' already exists")
            if exists and known is None:
                raise _missing("user", name)
            record = self._user_record(name, known, tags, password_hash, algorithm)
            new = known is None
            if new and len(self._broker.users) >= self._limits.users_max:
                raise bad(f"there are {self._limits.users_max} users, which is the limit")
            return Plan([Save(record)], partial(self._broker.users.changed, record), new, before=known)

        self._perform(actor, "user.change", None, f"user {name!r} with tags {tags!r} is set", plan, done)

    @staticmethod
    def _user_record(name: str, known: UserRecord | None, tags: Any, password_hash: str, algorithm: str) -> UserRecord:
        if password_hash is KEPT:
            hashed = "" if known is None else known.password_hash
        else:
            try:
                hashed = stored_hash(algorithm, password_hash) if password_hash and algorithm else password_hash
            except ValueError as error:
                raise bad(str(error)) from None
            if known is not None and hash_of(known.password_hash) == hashed:
                hashed = known.password_hash  # the keys of the password stay with it
        kept = (() if known is None else known.tags) if tags is KEPT else checks.parse_tags(tags)
        return UserRecord(checks.check_name(name, "user"), hashed, kept)

    def keep_keys(self, known: UserRecord, fresh: UserRecord) -> None:
        """Keeps the keys for SCRAM that were made of a password (Users.on_keys), unless the user changed meanwhile. Any thread."""

        def plan() -> Plan:
            if self._broker.users.get(known.name) is not known:
                return Plan([], lambda: None)
            return Plan([Save(fresh)], partial(self._broker.users.changed, fresh), quiet=True)

        text = f"user {known.name!r} gets keys for SCRAM"
        self._line.perform(Job(BROKER, text, lambda: None, plan, lambda result, error: None))

    def delete_users(self, actor: Actor, names: Sequence[str], done: Done) -> None:
        """All or none. Their connections are closed."""

        def plan() -> Plan:
            for name in names:
                if self._broker.users.get(name) is None:
                    raise _missing("user", name) if len(names) == 1 else bad(f"no user '{name}': none of the {len(names)} is deleted")
            topics = [one for one in self.of(TOPIC) if json.loads(one.name)[0] in names]
            # A new user of the name is another user: nobody acts for it with what the old one set.
            topics += [one for one in self.of(OWNER) if one.value in names]
            changes: list[Change] = [Delete(UserRecord(name)) for name in names]
            changes += [Delete(one) for one in topics]
            return Plan(changes, partial(self._users_gone, names, topics))

        self._perform(actor, "user.change", None, f"users {list(names)!r} are deleted", plan, done)

    def _users_gone(self, names: Sequence[str], topics: Iterable[ParameterRecord]) -> None:
        broker = self._broker
        self._forget(topics)
        for name in names:
            broker.users.gone(name)
            broker.permissions.forget_user(name)
            broker.quotas.put(LimitsRecord("user", name))
            closing.close_connections(broker, partial(_is_of, name), f"user '{name}' is deleted")
        self.on_links()

    # --- permissions ------------------------------------------------------------------------------------------------

    def put_permission(self, actor: Actor, vhost: str, user: str, patterns: Mapping[str, Any], done: Done) -> None:
        """Args: patterns: configure, write, read. True: the user had none there."""

        def plan() -> Plan:
            configure, write, read = members(patterns, ("configure", "write", "read"))
            checks.check_patterns({"configure": configure, "write": write, "read": read})
            self._need_both(vhost, user)
            record = PermissionRecord(user, vhost, configure, write, read)
            new = not self._broker.permissions.has_vhost(user, vhost)
            return Plan([Save(record)], partial(self._broker.permissions.changed, record), new)

        self._perform(actor, "permission.change", None, f"permissions of user {user!r} in vhost {vhost!r}: {dict(patterns)!r}", plan, done)

    def _need_both(self, vhost: str, user: str) -> None:
        if vhost not in self.vhosts:
            raise bad(f"no vhost '{vhost}'")
        if self._broker.users.get(user) is None:
            raise bad(f"no user '{user}'")

    def clear_permission(self, actor: Actor, vhost: str, user: str, done: Done) -> None:
        def plan() -> Plan:
            if not self._broker.permissions.has_vhost(user, vhost):
                raise Refused("not_found", f"no permissions of user '{user}' in vhost '{vhost}'")
            topics = [one for one in self.of(TOPIC, vhost) if json.loads(one.name)[0] == user]
            changes: list[Change] = [Delete(PermissionRecord(user, vhost)), *(Delete(one) for one in topics)]
            return Plan(changes, partial(self._cleared, vhost, user, topics))

        self._perform(actor, "permission.change", None, f"permissions of user {user!r} in vhost {vhost!r} are cleared", plan, done)

    def _cleared(self, vhost: str, user: str, topics: Iterable[ParameterRecord]) -> None:
        self._forget(topics)
        self._broker.permissions.gone(lambda key: key == (user, vhost))

    def put_topic(self, actor: Actor, vhost: str, user: str, exchange: str, patterns: Mapping[str, Any], done: Done) -> None:
        """Patterns for routing keys of a topic exchange. True: the user had none for it."""

        def plan() -> Plan:
            write, read = members(patterns, ("write", "read"))
            checks.check_patterns({"write": write, "read": read})
            checks.check_name(exchange, "exchange")
            self._need_both(vhost, user)
            record = ParameterRecord(TOPIC, vhost, topic_name(user, exchange), {"write": write, "read": read})
            new = (TOPIC, vhost, record.name) not in self.parameters

            def apply() -> None:
                self._keep(record)
                self._broker.permissions.set_topic(user, vhost, exchange, write, read)
                self._keys_changed(vhost)

            return Plan([Save(record)], apply, new)

        text = f"topic permissions of user {user!r} for exchange {exchange!r} in vhost {vhost!r}: {dict(patterns)!r}"
        self._perform(actor, "permission.change", None, text, plan, done)

    def clear_topics(self, actor: Actor, vhost: str, user: str, exchange: str | None, done: Done) -> None:
        """Args: exchange: None: all of them."""

        def plan() -> Plan:
            topics = [one for one in self.of(TOPIC, vhost) if json.loads(one.name)[0] == user]
            if exchange is not None:
                topics = [one for one in topics if json.loads(one.name)[1] == exchange]
            if not topics:
                where = "" if exchange is None else f" for exchange '{exchange}'"
                raise Refused("not_found", f"no topic permissions of user '{user}'{where} in vhost '{vhost}'")
            return Plan([Delete(one) for one in topics], partial(self._forget, topics))

        self._perform(actor, "permission.change", None, f"topic permissions of user {user!r} in vhost {vhost!r} are cleared", plan, done)

    def _keep(self, record: ParameterRecord) -> None:
        self.parameters[record.component, record.vhost, record.name] = record

    def _forget(self, records: Iterable[ParameterRecord]) -> None:
        records = list(records)
        for record in records:
            self.parameters.pop((record.component, record.vhost, record.name), None)
            if record.component == TOPIC:
                user, exchange = json.loads(record.name)
                self._broker.permissions.clear_topic(user, record.vhost, exchange)
        for vhost in {record.vhost for record in records if record.component == TOPIC}:
            self._keys_changed(vhost)

    def _keys_changed(self, name: str) -> None:
        vhost = self._broker.vhosts.get(name)
        if vhost is not None:
            vhost.set_keyed(self._keyed(name))

    # --- limits -----------------------------------------------------------------------------------------------------

    def put_limit(self, actor: Actor, kind: str, name: str, limit: str, value: Any, done: Done) -> None:
        """Sets one limit of a "user" or "vhost". Args: value: None: takes it away."""

        def plan() -> Plan:
            if kind == "vhost":
                self._need_vhost(name)
            elif self._broker.users.get(name) is None:
                raise _missing("user", name)
            limits = dict(next((one.limits for one in self._broker.quotas.records() if (one.kind, one.name) == (kind, name)), {}))
            if value is None:
                limits.pop(limit, None)
            else:
                limits[limit] = checks.check_limit(kind, limit, value)
            record = LimitsRecord(kind, name, limits)
            return Plan([Save(record)], partial(self._limits_changed, record))

        self._perform(actor, "limit.change", None, f"limit {limit} of {kind} {name!r}: {value}", plan, done)

    def _limits_changed(self, record: LimitsRecord) -> None:
        self._broker.quotas.put(record)
        vhost = self._broker.vhosts.get(record.name) if record.kind == "vhost" else None
        if vhost is not None:
            vhost.set_quotas(self._broker.quotas.of_vhost(record.name))

    def put_limits(self, actor: Actor, record: LimitsRecord, done: Done) -> None:
        """All limits of a user or virtual host at once; none takes them away."""

        def plan() -> Plan:
            if (record.name not in self.vhosts) if record.kind == "vhost" else (self._broker.users.get(record.name) is None):
                raise _missing(record.kind, record.name)
            for limit, value in record.limits.items():
                checks.check_limit(record.kind, limit, value)
            return Plan([Save(record)], partial(self._limits_changed, record))

        self._perform(actor, "limit.change", None, f"limits of {record.kind} {record.name!r}: {dict(record.limits)!r}", plan, done)

    # --- virtual hosts ----------------------------------------------------------------------------------------------

    def put_vhost(self, actor: Actor, name: str, value: Mapping[str, Any], done: Done, *, exists: bool | None = None) -> None:
        """Creates a virtual host, in which the actor gets all permissions, or changes its description, tags and default queue type.

        True: it is new. Args: exists: as of `put_user`.
        """

        def plan() -> Plan:
            checks.check_name(name, "virtual host")
            if exists is False and name in self.vhosts:
                raise Refused("exists", f"vhost '{name}' already exists")
            if exists and name not in self.vhosts:
                raise _missing("vhost", name)
            tracing = value.get("tracing")
            if tracing is not None and not isinstance(tracing, bool):
                raise bad("tracing must be true or false")
            known = self.vhosts.get(name)
            if known is None and len(self.vhosts) >= self._limits.vhosts_max:
                raise bad(f"there are {self._limits.vhosts_max} virtual hosts, which is the limit")
            description = value.get("description", "" if known is None else known.description)
            if not isinstance(description, str) or len(description) > 4096:
                raise bad("the description must be a text of at most 4096 characters")
            record = VhostRecord(name, description)
            changes: list[Change] = [Save(record)]
            kept = {**(self.value(VHOST_METADATA, name, "metadata") or {}), **checks.vhost_metadata(value)}
            metadata = None
            if any(name in value for name in checks.VHOST_METADATA):
                metadata = ParameterRecord(VHOST_METADATA, name, "metadata", kept)
                changes.append(Save(metadata))
            permission = None
            if known is None and actor.user is not None and self._broker.users.get(actor.user) is not None:
                permission = PermissionRecord(actor.user, name, ".*", ".*", ".*")
                changes.append(Save(permission))

            def apply() -> None:
                self._vhost_changed(record, metadata, permission)
                if tracing is not None:
                    self._broker.tracer.turn(name, tracing)

            return Plan(changes, apply, known is None)

        self._perform(actor, "vhost.change", None, f"vhost {name!r} is set", plan, done)

    def _vhost_changed(self, record: VhostRecord, metadata: ParameterRecord | None, permission: PermissionRecord | None) -> None:
        self.vhosts[record.name] = record
        if metadata is not None:
            self._keep(metadata)
        if permission is not None:
            self._broker.permissions.changed(permission)
        if record.name not in self._broker.vhosts:
            self._broker.add_vhost(record.name)
        self._broker.vhosts[record.name].default_queue_type = self._default_queue_type(record.name)

    def put_metadata(self, actor: Actor, vhost: str, value: Mapping[str, Any] | None, done: Done) -> None:
        """Tags and default queue type of a virtual host are these, and no others. None: there are none."""

        def plan() -> Plan:
            self._need_vhost(vhost)
            record = ParameterRecord(VHOST_METADATA, vhost, "metadata", None if value is None else checks.vhost_metadata(value))

            def apply() -> None:
                self._keep(record) if value is not None else self._forget([record])
                self._broker.vhosts[vhost].default_queue_type = self._default_queue_type(vhost)

            return Plan([Delete(record) if value is None else Save(record)], apply)

        self._perform(actor, "vhost.change", None, f"tags and default queue type of vhost {vhost!r} are set", plan, done)

    def _default_queue_type(self, vhost: str) -> str | None:
        return (self.value(VHOST_METADATA, vhost, "metadata") or {}).get("default_queue_type")

    def delete_vhost(self, actor: Actor, name: str, done: Done) -> None:
        """With all that is in it; connections are closed, queues end in slices."""

        def plan() -> Plan:
            if name not in self.vhosts:
                raise _missing("vhost", name)

            def after(over: Callable[[], None]) -> None:
                closing.end_vhost(self._broker, name, lambda whole: over())

            return Plan([Delete(VhostRecord(name))], partial(self._vhost_gone, name), None, after)

        self._perform(actor, "vhost.change", None, f"vhost {name!r} is deleted", plan, done)

    def _vhost_gone(self, name: str) -> None:
        del self.vhosts[name]
        self._forget([one for one in self.parameters.values() if one.vhost == name])
        self._broker.permissions.gone(lambda key: key[1] == name)
        self._broker.quotas.put(LimitsRecord("vhost", name))
        self.on_links()

    # --- policies ---------------------------------------------------------------------------------------------------

    def put_policy(self, actor: Actor, vhost: str, name: str, value: Mapping[str, Any], done: Done, *, operator: bool = False) -> None:
        """Creates or replaces a policy, or an operator policy, and applies it. True: it is new. Args: value: RabbitMQ's members."""
        component = OPERATOR_POLICY if operator else POLICY

        def plan() -> Plan:
            checks.check_name(name, "policy")
            self._need_vhost(vhost)
            members(value, ("pattern", "definition"))
            checked = checks.check_policy(value, operator=operator)
            self._allow_targets(actor, vhost, checked["definition"])
            new = (component, vhost, name) not in self.parameters
            limits, administers = self._limits, self._is_administrator(actor)
            most = limits.policies_vhost_max if administers else limits.policies_policymaker_max
            if new and len(self.of(component, vhost)) >= most:
                whose = "" if administers else " of a policymaker; an administrator may set more"
                raise bad(f"vhost '{vhost}' has {most} policies, which is the limit{whose}")
            checks.check_value(checked, self._limits.parameter_bytes_max)
            record = ParameterRecord(component, vhost, name, checked)

            def apply() -> None:
                self._keep(record)
                self._broker.vhosts[vhost].policies.put(made(name, checked), operator)
                self.on_links()

            return Plan([Save(record)], apply, new, partial(self._follow, vhost))

        self._perform(actor, f"{_verb_of(operator)}.change", vhost, f"{component} {name!r} in vhost {vhost!r}: {dict(value)!r}", plan, done)

    def _allow_targets(self, actor: Actor, vhost: str, definition: Mapping[str, Any]) -> None:
        """A policy leads messages to no exchange that its maker may not write to; an administrator's leads anywhere. Raises: PeerError."""
        if self._is_administrator(actor):
            return
        for key in ("dead-letter-exchange", "alternate-exchange"):
            target = definition.get(key)
            if target is not None:
                self._broker.permissions.authorize_method(actor.user, vhost, "basic.publish", {"exchange": target})

    def delete_policy(self, actor: Actor, vhost: str, name: str, done: Done, *, operator: bool = False) -> None:
        component = OPERATOR_POLICY if operator else POLICY

        def plan() -> Plan:
            record = self.parameters.get((component, vhost, name))
            if record is None:
                raise _missing("operator policy" if operator else "policy", name, vhost)

            def apply() -> None:
                self._forget([record])
                self._broker.vhosts[vhost].policies.remove(name, operator)
                self.on_links()

            return Plan([Delete(record)], apply, None, partial(self._follow, vhost))

        self._perform(actor, f"{_verb_of(operator)}.change", vhost, f"{component} {name!r} in vhost {vhost!r} is deleted", plan, done)

    def _follow(self, name: str, over: Callable[[], None]) -> None:
        """S4. Queues that are declared meanwhile have the new policies from the start."""
        vhost = self._broker.vhosts.get(name)
        if vhost is None:
            over()
            return
        queues, exchanges, clock = iter(list(vhost.queues)), iter(list(vhost.exchanges)), self._broker.clock

        among = vhost.policies.for_names()

        def some(kind: str, names: Iterator[str]) -> bool:
            """A slice. True: there are no more names."""
            until_ns = clock.monotonic_ns() + FOLLOW_NS
            for one in names:
                guarded("policies", f"{kind} {one!r} of vhost {name!r}", vhost.follow_policies, kind, [one], among)
                if kind == QUEUE and (queue := vhost.queues.get(one)) is not None:
                    self._broker.queue_limits.follow_policy(queue)
                if clock.monotonic_ns() >= until_ns:
                    return False
            return True

        def step() -> bool:
            return some(QUEUE, queues) and some(EXCHANGE, exchanges)

        self._broker.loops.in_slices(step, lambda whole: over())

    # --- parameters -------------------------------------------------------------------------------------------------

    def put_parameter(self, actor: Actor, component: str, vhost: str, name: str, value: Any, done: Done) -> None:
        """A parameter of a virtual host. True: it is new."""

        def plan() -> Plan:
            if component not in checks.COMPONENTS:
                raise bad(f"Validation failed\n\ncomponent {component} not found\n")
            checks.check_name(name, "parameter")
            self._need_vhost(vhost)
            record = ParameterRecord(component, vhost, name, value)
            made_plan = self._parameter(record)
            checks.check_link(component, name, value)
            if self.rights is not None:
                self.rights.check(actor.user, component, value, vhost)
            self._limit_links(actor, record)
            owner = self._owner_record(record, actor.user)
            if actor.user is not None:
                changes: list[Change] = [*made_plan.changes, Save(owner)]
            else:
                changes = [*made_plan.changes, *([Delete(owner)] if self._owned(owner) else [])]
            return replaced(made_plan, changes=changes, apply=partial(self._link_set, record, owner))

        self._perform(actor, "parameter.change", vhost, f"parameter {component} {name!r} in vhost {vhost!r} is set", plan, done)

    def _limit_links(self, actor: Actor, record: ParameterRecord) -> None:
        """Links of a virtual host and of a user. A link acts for its user for ever: nobody from outside may. Raises: Refused."""
        if isinstance(actor.user, OutsideUser):
            raise bad(f"shovels and upstreams are set by users of the broker: user '{actor.user}' is named by a token or a directory")
        if record.component != checks.SHOVEL or (record.component, record.vhost, record.name) in self.parameters:
            return
        if len(self.of(checks.SHOVEL, record.vhost)) >= self._limits.links_vhost_max:
            raise bad(f"vhost '{record.vhost}' has {self._limits.links_vhost_max} shovels, which is the limit")
        if sum(one.value == actor.user for one in self.of(OWNER)) >= self._limits.links_user_max:
            raise bad(f"user '{actor.user}' has set {self._limits.links_user_max} shovels and upstreams, which is the limit")

    def _owner_record(self, record: ParameterRecord, user: str | None) -> ParameterRecord:
        return ParameterRecord(OWNER, record.vhost, json.dumps([record.component, record.name]), user)

    def _owned(self, owner: ParameterRecord) -> bool:
        return (owner.component, owner.vhost, owner.name) in self.parameters

    def owner(self, component: str, vhost: str, name: str) -> str | None:
        """The user who set a parameter of a link. None: the broker, or somebody who is deleted."""
        value = self.value(OWNER, vhost, json.dumps([component, name]))
        return None if value is None else str(value)

    def _link_set(self, record: ParameterRecord, owner: ParameterRecord) -> None:
        self._keep(record)
        if owner.value is None:
            self._forget([owner])
        else:
            self._keep(owner)
        self.on_links()

    def _parameter(self, record: ParameterRecord) -> Plan:
        checks.check_value(record.value, self._limits.parameter_bytes_max)
        new = (record.component, record.vhost, record.name) not in self.parameters
        if new and len(self.parameters) >= self._limits.parameters_max:
            raise bad(f"there are {self._limits.parameters_max} parameters, which is the limit")
        if new and sum(key[:2] == (record.component, record.vhost) for key in list(self.parameters)) >= self._limits.parameters_vhost_max:
            where = f"vhost '{record.vhost}'" if record.vhost else "the node"
            raise bad(f"{where} has {self._limits.parameters_vhost_max} {record.component} parameters, which is the limit")
        return Plan([Save(record)], partial(self._keep, record), new)

    def delete_parameter(
        self, actor: Actor, component: str, vhost: str, name: str, done: Done, *, only: ParameterRecord | None = None
    ) -> None:
        """Args: only: the parameter is deleted when this is it, still."""

        def plan() -> Plan:
            record = self.parameters.get((component, vhost, name)) if component in checks.COMPONENTS else None
            if record is None or (only is not None and record is not only):
                raise _missing(f"parameter of component '{component}',", name, vhost)
            owner = self._owner_record(record, None)
            gone = [record, owner] if self._owned(owner) else [record]

            def apply() -> None:
                self._forget(gone)
                self.on_links()

            return Plan([Delete(one) for one in gone], apply)

        self._perform(actor, "parameter.change", vhost, f"parameter {component} {name!r} in vhost {vhost!r} is deleted", plan, done)

    # --- queues that rest -------------------------------------------------------------------------------------------

    def pause_queue(self, actor: Actor, vhost: str, name: str, paused: bool, done: Done) -> None:
        """Deliveries of a queue rest, or go on; of a durable queue over a restart, too. The caller asks for AMQP's permissions."""

        def plan() -> Plan:
            host = self._broker.vhosts.get(vhost)
            queue = None if host is None else host.queues.get(name)
            if queue is None:
                raise _missing("queue", name, vhost)
            record = ParameterRecord(PAUSED, vhost, name, queue.queue_id)
            changes: list[Change] = []
            if queue.durable and paused:
                changes = list(self._parameter(record).changes)
            elif self.value(PAUSED, vhost, name) is not None:
                changes = [Delete(record)]

            def apply() -> None:
                if changes:
                    self._keep(record) if paused else self._forget([record])
                self._broker.pauses.set(queue, paused)

            return Plan(changes, apply)

        self._perform(actor, "vhost.use", vhost, f"queue {name!r} in vhost {vhost!r} is {'paused' if paused else 'resumed'}", plan, done)

    def restore_pauses(self) -> None:
        """Queues that rested before the start do so again. Once, when the queues are there."""
        for record in self.of(PAUSED):
            vhost = self._broker.vhosts.get(record.vhost)
            queue = None if vhost is None else vhost.queues.get(record.name)
            if queue is not None and queue.queue_id == record.value:
                self._broker.pauses.set(queue, True)
            else:
                self._drop_pause(record)
        self._broker.pauses.on_gone = self._queue_gone

    def _queue_gone(self, queue: Any) -> None:
        record = self.parameters.get((PAUSED, queue.vhost, queue.name))
        if record is not None and record.value == queue.queue_id:
            self._broker.loops.in_slices(partial(self._drop_pause, record))

    def _drop_pause(self, record: ParameterRecord) -> bool:
        """The queue is gone, and what was kept of its pause goes, too. True: there is no second step."""

        def plan() -> Plan:
            if self.parameters.get((PAUSED, record.vhost, record.name)) is not record:
                return Plan([], lambda: None)
            return Plan([Delete(record)], partial(self._forget, [record]))

        text = f"queue {record.name!r} in vhost {record.vhost!r}, which was paused, is gone"
        self._perform(BROKER, "vhost.use", record.vhost, text, plan, lambda result, error: None)
        return True

    def put_global(self, actor: Actor, name: str, value: Any, done: Done) -> None:
        """A parameter of the node; `cluster_name` is told to clients that connect from then on. True: it is new."""

        def plan() -> Plan:
            checks.check_name(name, "parameter")
            if name == CLUSTER_NAME:
                checks.check_name(value, "cluster")
            made_plan = self._parameter(ParameterRecord(GLOBAL, "", name, value))
            if name == CLUSTER_NAME:
                return replaced(made_plan, apply=partial(self._cluster_named, ParameterRecord(GLOBAL, "", name, value)))
            return made_plan

        self._perform(actor, _verb_of_global(name), None, f"global parameter {name!r} is set", plan, done)

    def _cluster_named(self, record: ParameterRecord) -> None:
        self._keep(record)
        self._broker.cluster_name = record.value

    def delete_global(self, actor: Actor, name: str, done: Done) -> None:
        def plan() -> Plan:
            record = self.parameters.get((GLOBAL, "", name))
            if record is None:
                raise _missing("global parameter", name)
            return Plan([Delete(record)], partial(self._forget, [record]))

        self._perform(actor, _verb_of_global(name), None, f"global parameter {name!r} is deleted", plan, done)


def _is_of(user: str, handler: Any) -> bool:
    return bool(handler.user == user)


def _verb_of_global(name: str) -> str:
    """The cluster's name is told to every client before it logs in: it is the node's, not a policymaker's."""
    return "node.change" if name == CLUSTER_NAME else "global-parameter.change"


def _verb_of(operator: bool) -> str:
    return "operator-policy" if operator else "policy"
