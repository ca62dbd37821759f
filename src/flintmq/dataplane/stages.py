"""Stages and scopes: messages that writers put aside, and the one decision that publishes those of a batch.

in: the scope.* and stage.* calls, blocks of messages, time, a restart. out: prepared and committed transactions, notes of kinds 2 and 3.

G1  A note of kind 2 is a scope: the highest committed batch and the epoch. Its key is vhost, NUL, name. Its size does not depend on the
    number of stages.
G2  A stage is the branch FLNG / hash of vhost and scope / 16 random bytes. When it is prepared, a note of kind 3 (key: those bytes) says
    what it is; it stands before the Prepare record, so every prepared stage has one.
G3  A batch is committed at most once: `committed = b` is one durable note (TransactionCoordinator.decide), and what it decides is
    completed by `restore`. Every other stage of the scope up to b was rolled back before, durably: what is prepared for batch b when the
    note is there belongs to it.
G4  A call with an epoch below the scope's highest is refused and changes nothing.
G5  A stage that lost a message (unroutable, over a limit, a refused block) can't be prepared. What only has no room now stays as it is; a
    stage whose work is lost is gone, and who asks is told that there is none.
G6  The messages of a batch are published by the number of their part, those of one part as their stages were begun.
Locks, outermost first: a scope's, held while its decision becomes durable; a stage's, held during one block; `_lock` for the tables.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from itertools import islice
from typing import Any

from flintmq.core.checksum import crc32c_of
from flintmq.dataplane import blocks
from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.blocks import FAIL, Router
from flintmq.dataplane.in_log import FORMAT_STAGE, NOTE_LIFE, NOTE_SCOPE, NOTE_STAGE
from flintmq.dataplane.quotas import Quota
from flintmq.dataplane.scope import ENDED, FAILED, OPEN, PREPARED, Scope, Stage, kind_of
from flintmq.dataplane.scopes import Scopes
from flintmq.dataplane.shared import Caller, Plane, log, refusal_of
from flintmq.dataplane.stage_arguments import BATCH_MAX, routes_of, wish_of
from flintmq.dataplane.wire import Buffer, Refused
from flintmq.errors import PeerError, StoreError
from flintmq.ports import Verb
from flintmq.transactions import BranchState, Outcome, TransactionRefused

# bytes of memory where nobody said a limit
_NO_BOUND = 2**63 - 1
_LIFE_KEY = b"scopes"
_ID_BYTES = 16
_EPOCH_SHIFT = 32


class Stages:
    """See module. Threading: any thread but I/O loops; `tick` from any."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._scopes = Scopes(plane)
        self._stages: dict[bytes, Stage] = {}
        self._begun = 0
        self._epoch = 0
        self._life_ticket = 0
        # Identity -> stage, in the order in which something was last heard of them: what was left behind stands first.
        self._waiting: dict[bool, dict[bytes, Stage]] = {True: {}, False: {}}  # by whether they are prepared
        memory, limits = plane.broker.memory_limit or _NO_BOUND, plane.limits
        self._quota = Quota(
            "bytes of memory in stages",
            "commit or abort some, or write batches of fewer messages; `memory_limit` bounds what a node holds",
            node=int(memory * limits.staged_share),
            vhost=int(memory * limits.staged_vhost_share),
            user=int(memory * limits.staged_user_share),
        )

    # --- restart --------------------------------------------------------------------------------------------------------

    def restore(self) -> list[Outcome]:
        """After a restart, before anything is served. Returns what must be waited for. Raises: StoreError."""
        plane, store = self._plane, self._plane.store
        life = 1
        for _, value in plane.notes(NOTE_LIFE):
            life = max(life, int(value.get("life", 0)) + 1)
        self._epoch = life << _EPOCH_SHIFT
        self._life_ticket = store.note(NOTE_LIFE, _LIFE_KEY, plane.encode({"life": life}))
        try:
            self._scopes.restored([self._restored_scope(key, value) for key, value in plane.notes(NOTE_SCOPE)])
            restored = {identity: self._restored(identity, value) for identity, value in plane.notes(NOTE_STAGE)}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the notes of the pipeline's scopes can't be read: {error!r}") from None
        # A decision's stages are completed in their order (G6); the log has them in the order of their beginnings.
        branches = list(plane.branches(FORMAT_STAGE).items())
        for xid, _ in branches:
            if (stage := restored.get(xid.branch_id)) is not None:
                stage.number = self._next()
        branches.sort(key=lambda one: self._rank(restored.get(one[0].branch_id)))
        outcomes = []
        for xid, view in branches:
            stage = restored.pop(xid.branch_id, None)
            if stage is not None and stage.xid == xid:
                outcomes.append(self._restore_branch(stage, view.state))
            elif view.state is BranchState.PREPARED:
                log.warning("transaction %s belongs to no scope: it is rolled back", xid)
                outcomes.append(plane.coordinator.rollback(xid))
        for prepared, stages in self._waiting.items():
            self._waiting[prepared] = dict(sorted(stages.items(), key=lambda one: one[1].since_ms))
        for identity in restored:  # they ended, and the crash came before their notes were removed
            store.note(NOTE_STAGE, identity, b"")
        return [outcome for outcome in outcomes if outcome is not None]

    @staticmethod
    def _restored_scope(key: bytes, value: dict[str, Any]) -> Scope:
        vhost, _, name = key.decode().partition("\0")
        return Scope(
            name=name,
            vhost=vhost,
            committed=int(value["committed"]),
            epoch=int(value["epoch"]),
            user=str(value["user"]),
            decided=list(value["stages"]) if "stages" in value else None,
            noted=True,
            used_ms=int(value["ms"]),
            kind=str(value.get("kind", kind_of(name))),
        )

    def _rank(self, stage: Stage | None) -> tuple[int, int, int]:
        """Where a restored stage stands among those that are decided. A note of an earlier version names them in their order."""
        if stage is None:
            return (0, 0, 0)
        scope = self._scopes.get(stage.vhost, stage.scope)
        if scope is not None and scope.decided and stage.stage_id in scope.decided:
            return (1, scope.decided.index(stage.stage_id), 0)
        return (1, *stage.place)

    def _weight(self, messages: int) -> int:
        """Bytes of memory that a stage with so many places of messages counts for."""
        return self._plane.limits.stage_bytes + messages * self._plane.limits.staged_message_bytes

    def _heard(self, stage: Stage) -> None:
        """Something was heard of it now, `since_ms`. Under `_lock`, or before anything is served."""
        for stages in self._waiting.values():
            stages.pop(stage.identity, None)
        self._waiting[stage.state == PREPARED][stage.identity] = stage

    def _next(self) -> int:
        """Under `_lock`, or before anything is served."""
        self._begun += 1
        return self._begun

    def _restored(self, identity: bytes, value: dict[str, Any]) -> Stage:
        stage = Stage(
            identity=identity,
            scope=str(value["scope"]),
            vhost=str(value["vhost"]),
            user=str(value["user"]),
            epoch=int(value["epoch"]),
            batch=int(value["batch"]),
            part=int(value["part"]),
            attempt=int(value["attempt"]),
            since_ms=int(value["since_ms"]),
            state=PREPARED,
        )
        stage.crc = int(value["crc"])
        for name in ("count", "bytes", "unroutable", "over_limit"):
            setattr(stage.counts, name, int(value[name]))
        return stage

    def _restore_branch(self, stage: Stage, state: BranchState) -> Outcome | None:
        coordinator = self._plane.coordinator
        scope = self._scopes.get(stage.vhost, stage.scope)
        if scope is None:
            scope = Scope(stage.scope, stage.vhost, user=stage.user, kind=kind_of(stage.scope))
            self._scopes.restored([scope])
        decided = stage.batch <= scope.committed
        if state in (BranchState.HEURISTIC_COMMIT, BranchState.HEURISTIC_ROLLBACK):
            # An operator decided it: `decide` knows what to do with it, until its batch is committed.
            if decided or state is BranchState.HEURISTIC_ROLLBACK:
                self._plane.store.note(NOTE_STAGE, stage.identity, b"")
                return coordinator.forget(stage.xid)
        elif state is not BranchState.PREPARED:
            return None
        elif decided:
            commits = stage.batch == scope.committed if scope.decided is None else stage.stage_id in scope.decided
            log.info("scope %s: the %s of a stage of batch %d is completed", scope.name, "commit" if commits else "rollback", stage.batch)
            self._plane.store.note(NOTE_STAGE, stage.identity, b"")
            return coordinator.commit(stage.xid) if commits else coordinator.rollback(stage.xid)
        scope.epoch = max(scope.epoch, stage.epoch)
        scope.stages[stage.identity] = self._stages[stage.identity] = stage
        self._quota.enter(stage.identity, stage.user, stage.vhost, self._weight(stage.counts.count))
        self._heard(stage)
        return None

    # --- calls: scopes --------------------------------------------------------------------------------------------------

    def open(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.open. A scope that is named hears of the new epoch at once: who came before is fenced from now on."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max, None)
        arguments.done()
        self._plane.check_grants(caller, Verb.WRITE)
        self._plane.durable(self._life_ticket)
        with self._lock:
            self._epoch += 1
            epoch = self._epoch
        if name is None:
            return {"epoch": epoch}
        scope = self._scopes.taken(caller, name)
        with scope.lock:
            scope.epoch = max(scope.epoch, epoch)
            return {"epoch": epoch, "committed": _batch_of(scope)}

    def status(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.status."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max)
        arguments.done()
        scope = self._scopes.get(caller.vhost, name)
        if scope is not None:
            self._scopes.check_owner(caller, scope)
        return self._status(scope if scope is not None else Scope(name, caller.vhost, kind=kind_of(name)))

    def list_all(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.list: the caller's own, by their names, those behind `after`; an administrator sees all. `more`: a page has so many."""
        after = arguments.text("after", self._plane.limits.dataplane_name_max, "")
        arguments.done()
        everybody, most = self._plane.is_administrator(caller), self._plane.limits.scopes_page
        here = [scope for scope in self._scopes.all() if scope.vhost == caller.vhost and scope.name > after]
        scopes = sorted((scope for scope in here if everybody or scope.user == caller.user), key=lambda scope: scope.name)
        page: list[dict[str, Any]] = []
        shown = 0
        for scope in scopes:
            if shown >= most:
                break
            page.append(self._status(scope))
            shown += 1 + len(page[-1]["stages"])
        return {"scopes": page, "more": len(page) < len(scopes)}

    def forget(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.forget: its stages are rolled back, its committed batch is not known any more."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max)
        arguments.done()
        scope = self._scopes.get(caller.vhost, name)
        if scope is None:
            return {"scope": name, "forgotten": True, "rolled_back": 0}
        with scope.lock:
            self._scopes.check_owner(caller, scope)
            rolled_back = self._end(list(scope.stages.values()))
            scope.forgotten = True
            if scope.noted:
                self._plane.durable(self._plane.store.note(NOTE_SCOPE, scope.key, b""))
            self._scopes.leave(scope)
        log.warning("scope %s is forgotten, says user %s", name, caller.user)
        return {"scope": name, "forgotten": True, "rolled_back": rolled_back}

    # --- calls: stages --------------------------------------------------------------------------------------------------

    def begin(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.begin."""
        plane, wish = self._plane, wish_of(self._plane, caller, arguments)
        while True:
            scope = self._scopes.taken(caller, wish.scope, wish.kind)
            with scope.lock:
                if scope.forgotten:
                    continue
                self._check_writes(scope, wish.epoch)
                if wish.batch <= scope.committed:
                    return {"already": True, "committed": scope.committed}
                identity = os.urandom(_ID_BYTES)
                stage = Stage(
                    identity=identity,
                    scope=wish.scope,
                    vhost=caller.vhost,
                    user=caller.name,
                    epoch=wish.epoch,
                    batch=wish.batch,
                    part=wish.part,
                    attempt=wish.attempt,
                    since_ms=plane.now_ms(),
                )
                stage.router = Router(plane, caller, wish.unroutable, wish.over_limit)
                stage.refuses = wish.over_limit.action == FAIL
                with self._lock:
                    self._quota.check(caller.name, caller.vhost, self._weight(0))
                    self._quota.enter(identity, caller.name, caller.vhost, self._weight(0))
                    self._stages[identity] = stage
                    self._heard(stage)
                    stage.number = self._next()
                try:
                    plane.begin(stage.session, stage.xid)
                except BaseException:
                    self._drop(stage)
                    raise
                scope.stages[identity] = stage
                return {"stage_id": stage.stage_id}

    def block(self, caller: Caller, arguments: Arguments, payload: Buffer) -> dict[str, Any]:
        """block."""
        stage = self._stage(caller, arguments)
        routes = routes_of(arguments, self._plane.limits.block_routes_max)
        arguments.done()
        self._plane.make_room()
        with stage.lock:
            self._check_open(stage)
            assert stage.router is not None
            before = (stage.counts.count, stage.counts.bytes)
            try:
                block, all_routes, destinations = stage.router.place(caller, payload, routes, stage.counts)
                if stage.counts.failed == 0:  # else it won't be published: its messages are only counted
                    self._enrol(stage, bytes(block), all_routes, destinations, stage.counts.count - before[0])
            except (Refused, PeerError, ValueError, StoreError) as error:
                reason = error if isinstance(error, Refused) else _reason_of(error)
                self._fail(stage, reason)
                raise reason from None
            stage.crc = crc32c_of(memoryview(payload), stage.crc)
            self._touch(stage)
            return {"count": stage.counts.count - before[0], "bytes": stage.counts.bytes - before[1]}

    def _enrol(self, stage: Stage, block: bytes, routes: list[tuple[bytes, bytes]], destinations: list[list[int]], messages: int) -> None:
        """Raises: Refused LIMIT, and what enqueue_block raises."""
        each = self._plane.limits.staged_message_bytes
        with self._lock:
            self._quota.check(stage.user, stage.vhost, messages * each)
        facts = self._plane.coordinator.enqueue_block(stage.session, stage.xid, block, routes, destinations)
        with self._lock:
            self._quota.grow(stage.identity, facts.enqueues * each)

    def _touch(self, stage: Stage) -> None:
        """Under the stage's lock."""
        stage.since_ms = self._plane.now_ms()
        with self._lock:
            if stage.identity in self._stages:
                self._heard(stage)

    def prepare(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.prepare."""
        stage = self._stage(caller, arguments)
        arguments.done()
        plane = self._plane
        with stage.lock:
            if stage.state == PREPARED:
                return stage.facts()
            self._check_open(stage)
            counts = stage.counts
            if counts.failed:
                text = f"{counts.unroutable} messages are unroutable, {counts.over_limit} are over the limit of a queue: {counts.first}"
                self._fail(stage, Refused("STAGE_FAILED", text))
                assert stage.reason is not None
                raise stage.reason
            plane.room_for_outcome()
            stage.since_ms = plane.now_ms()
            plane.store.note(NOTE_STAGE, stage.identity, plane.encode(self._note_of(stage)))
            try:
                plane.prepare(stage.session, stage.xid)
            except Refused as error:
                if error.code == "UNAVAILABLE":
                    raise  # what is written is written
                plane.store.note(NOTE_STAGE, stage.identity, b"")
                self._roll_back(stage, error)
                raise _gone(stage.stage_id, error.text) from None
            stage.state = PREPARED
            stage.router = None
            self._touch(stage)
            return stage.facts()

    @staticmethod
    def _note_of(stage: Stage) -> dict[str, Any]:
        facts = {key: value for key, value in stage.facts().items() if key != "stage_id"}
        known = {"scope": stage.scope, "vhost": stage.vhost, "user": stage.user, "epoch": stage.epoch, "batch": stage.batch}
        return {**facts, **known, "part": stage.part, "attempt": stage.attempt, "since_ms": stage.since_ms}

    def commit(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.commit: one decision."""
        limits = self._plane.limits
        name = arguments.text("scope", limits.dataplane_name_max)
        epoch = arguments.integer("epoch", 0, BATCH_MAX)
        batch = arguments.integer("batch", 0, BATCH_MAX)
        given = arguments.raw("stage_ids")
        ids = _stage_ids(arguments, given)
        arguments.done()
        scope = self._scopes.taken(caller, name)
        with scope.lock:
            if scope.forgotten:
                raise Refused("NOT_PREPARED", f"scope '{name}' was forgotten")
            self._scopes.check_owner(caller, scope)
            self._check_writes(scope, epoch)
            if batch <= scope.committed:
                return {"committed": scope.committed, "already": True, "rolled_back": 0}
            chosen = sorted((self._chosen(scope, one, batch) for one in ids), key=lambda stage: stage.place)
            if full := blocks.over_limit(self._plane, (stage.counts for stage in chosen if stage.refuses)):
                raise Refused("OVER_LIMIT", f"batch {batch}: {full}. Nothing of it was published")
            named = {stage.identity for stage in chosen}
            others = [stage for stage in scope.stages.values() if stage.batch <= batch and stage.identity not in named]
            self._end(others, f"batch {batch} of scope '{name}' is committed without it")
            self._decide(scope, epoch, batch, chosen, caller.name)
            return {"committed": batch, "already": False, "rolled_back": len(others)}

    def _decide(self, scope: Scope, epoch: int, batch: int, chosen: list[Stage], user: str) -> None:
        """Publishes these stages, which are all that the scope has up to the batch (G3)."""
        plane = self._plane
        used = plane.now_ms()
        value = {"committed": batch, "epoch": epoch, "user": user, "ms": used, "kind": scope.kind}
        note = (NOTE_SCOPE, scope.key, plane.encode(value))
        outcome = plane.guarded(lambda: plane.coordinator.decide(note, [stage.xid for stage in chosen]))
        # A written decision will happen, also when the wait below ends early: calls that come later wait for later records.
        scope.committed, scope.epoch, scope.user, scope.decided, scope.noted, scope.used_ms = batch, epoch, user, None, True, used
        self._scopes.used(scope)
        for stage in chosen:
            self._ended(stage, Refused("STAGE_FAILED", f"batch {batch} of scope '{scope.name}' is committed"))
        plane.wait(outcome)

    def _ended(self, stage: Stage, reason: Refused) -> None:
        """Its outcome is written."""
        if stage.state == PREPARED:
            self._plane.store.note(NOTE_STAGE, stage.identity, b"")
        stage.state, stage.reason, stage.router = ENDED, reason, None
        self._plane.coordinator.session_closed(stage.session)
        self._drop(stage)

    def _chosen(self, scope: Scope, stage_id: str, batch: int) -> Stage:
        try:
            stage = scope.stages.get(bytes.fromhex(stage_id))
        except ValueError:
            stage = None
        if stage is None:
            raise Refused("NOT_PREPARED", f"scope '{scope.name}' has no stage {stage_id}: it was rolled back, or belongs to another scope")
        if stage.batch != batch:
            raise Refused("NOT_PREPARED", f"stage {stage_id} is of batch {stage.batch}, not {batch}")
        with stage.lock:
            if stage.state != PREPARED:
                raise Refused("NOT_PREPARED", f"stage {stage_id} is {stage.state}, not prepared")
        return stage

    def abort(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """stage.abort: stages of a batch are rolled back; with an epoch, only those that were begun with it or before, and nothing is begun
        with it any more: its tasks may still run. With a stage_id that one alone, if it is there."""
        name = arguments.text("scope", self._plane.limits.dataplane_name_max)
        batch = arguments.integer("batch", 0, BATCH_MAX)
        epoch = arguments.integer("epoch", 0, BATCH_MAX, None)
        stage_id = arguments.text("stage_id", 2 * _ID_BYTES, None)
        arguments.done()
        scope = self._scopes.get(caller.vhost, name)
        if scope is None:
            return {"rolled_back": 0}
        with scope.lock:
            self._scopes.check_owner(caller, scope)
            if epoch is not None:
                self._check_epoch(scope, epoch)
            stages = [stage for stage in scope.stages.values() if stage.batch == batch and (epoch is None or stage.epoch <= epoch)]
            if epoch is not None and stage_id is None:
                scope.aborted = epoch
            return {"rolled_back": self._end([stage for stage in stages if stage_id in (None, stage.stage_id)])}

    def _end(self, stages: list[Stage], why: str = "it was rolled back") -> int:
        """Rolls stages back (under their scope's lock); durable when this returns. A block under way ends first."""
        outcomes = []
        for stage in stages:
            with stage.lock:
                outcomes.append(self._roll_back(stage, Refused("STAGE_FAILED", why)))
        for stage, outcome in zip(stages, outcomes, strict=True):
            if outcome is not None:
                self._plane.rolled_back(stage.xid, outcome)
        return len(stages)

    # --- time -----------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Rolls back what was left behind, some at a time. Never waits: what is in use now is looked at the next time."""
        limits, now = self._plane.limits, self._plane.now_ms()
        self._scopes.tick()
        for prepared, most in ((True, limits.stage_prepared_s), (False, limits.stage_unprepared_s)):
            with self._lock:
                first = list(islice(self._waiting[prepared].values(), limits.stages_a_pass))
            for stage in first:
                if now - stage.since_ms <= most * 1000:
                    break
                self._left_behind(stage, most)

    def _left_behind(self, stage: Stage, most: int) -> None:
        scope = self._scopes.get(stage.vhost, stage.scope)
        if scope is None or not scope.lock.acquire(blocking=False):
            return
        try:
            if not stage.lock.acquire(blocking=False):
                return
            try:
                log.warning("scope %s: a stage of batch %d (%s) was left behind: it is rolled back", stage.scope, stage.batch, stage.state)
                self._roll_back(stage, Refused("STAGE_FAILED", f"nothing was heard of it for {most} s: it was rolled back"))
            finally:
                stage.lock.release()
        finally:
            scope.lock.release()

    def close(self) -> None:
        """The broker stops: what was not prepared is undone."""
        with self._lock:
            stages = list(self._stages.values())
        for stage in stages:
            if stage.state == OPEN:
                self._plane.coordinator.session_closed(stage.session)

    def counts(self) -> dict[str, int]:
        """For `status`."""
        with self._lock:
            states = [stage.state for stage in self._stages.values()]
        return {"scopes": len(self._scopes), "open_stages": states.count(OPEN), "prepared_stages": states.count(PREPARED)}

    def figures(self) -> dict[str, Any]:
        """For metrics: scopes by kind; (vhost, user, state) -> stages; age in ms of the oldest prepared stage; scopes that made room."""
        with self._lock:
            stages = [(stage.vhost, stage.user, stage.state, stage.since_ms) for stage in self._stages.values()]
        now = self._plane.now_ms()
        return {
            "scopes": self._scopes.counts(),
            "stages": Counter((vhost, user, state) for vhost, user, state, _ in stages if state in (OPEN, PREPARED)),
            "oldest_prepared_ms": max((now - since for _, _, state, since in stages if state == PREPARED), default=0),
            "forgotten": self._scopes.made_room,
        }

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _check_epoch(self, scope: Scope, epoch: int) -> None:
        if epoch < scope.epoch:
            raise Refused("FENCED", f"scope '{scope.name}' is used with epoch {scope.epoch}, this is {epoch}: another driver has it")
        if epoch > self._epoch:
            raise Refused("BAD_ARGUMENT", f"epoch {epoch} was never given out (scope.open)")
        scope.epoch = epoch

    def _check_writes(self, scope: Scope, epoch: int) -> None:
        """Whether this run may go on. Raises: Refused FENCED, BAD_ARGUMENT."""
        self._check_epoch(scope, epoch)
        if epoch <= scope.aborted:
            raise Refused("FENCED", f"the run of scope '{scope.name}' with epoch {epoch} was aborted")

    def _status(self, scope: Scope) -> dict[str, Any]:
        now = self._plane.now_ms()
        stages = sorted(scope.stages.values(), key=lambda stage: (stage.batch, stage.part, stage.attempt))
        views = [stage.view(now) for stage in stages if stage.state in (OPEN, PREPARED)]
        return {
            "scope": scope.name,
            "committed": _batch_of(scope),
            "epoch": scope.epoch,
            "user": scope.user,
            "kind": scope.kind,
            "used_ms": scope.used_ms,
            "open": sum(view["state"] == OPEN for view in views),
            "prepared": sum(view["state"] == PREPARED for view in views),
            "stages": views[: self._plane.limits.scope_stages_shown],
        }

    def _stage(self, caller: Caller, arguments: Arguments) -> Stage:
        stage_id = arguments.text("stage_id", 2 * _ID_BYTES)
        with self._lock:
            stage = self._stages.get(bytes.fromhex(stage_id)) if _is_hex(stage_id) else None
        if stage is None or stage.vhost != caller.vhost:
            raise _gone(stage_id, "its batch was committed without it, or it was rolled back")
        if stage.user != caller.user:
            raise Refused("FORBIDDEN", f"stage {stage_id} belongs to another user")
        return stage

    @staticmethod
    def _check_open(stage: Stage) -> None:
        if stage.reason is not None:
            raise Refused("STAGE_FAILED", stage.reason.text)
        if stage.state != OPEN:
            raise Refused("STAGE_FAILED", f"stage {stage.stage_id} is {stage.state}: it takes no more messages")

    def _fail(self, stage: Stage, reason: Refused) -> None:
        """Under the stage's lock: its work is undone; it stays, to say why, until its batch is decided or its time is over."""
        stage.state, stage.reason, stage.router = FAILED, reason, None
        self._plane.discard(stage.session, stage.xid)

    def _roll_back(self, stage: Stage, reason: Refused) -> Outcome | None:
        """Under the scope's lock and the stage's."""
        if stage.state == ENDED:
            return None
        outcome = self._plane.discard(stage.session, stage.xid)
        self._ended(stage, reason)
        return outcome

    def _drop(self, stage: Stage) -> None:
        with self._lock:
            self._stages.pop(stage.identity, None)
            for stages in self._waiting.values():
                stages.pop(stage.identity, None)
            self._quota.leave(stage.identity)
        scope = self._scopes.get(stage.vhost, stage.scope)
        if scope is not None:
            scope.stages.pop(stage.identity, None)


def _gone(stage_id: str, why: str) -> Refused:
    """For a stage that is not there any more: its rows may be staged again."""
    return Refused("NOT_FOUND", f"there is no stage {stage_id}: {why}")


def _batch_of(scope: Scope) -> int | None:
    return None if scope.committed < 0 else scope.committed


def _is_hex(text: str) -> bool:
    return len(text) == 2 * _ID_BYTES and all(one in "0123456789abcdef" for one in text)


def _reason_of(error: Exception) -> Refused:
    if isinstance(error, TransactionRefused | PeerError):
        return refusal_of(error)
    if isinstance(error, StoreError):
        return Refused("UNAVAILABLE", str(error))
    return Refused("BAD_ARGUMENT", f"block: {error}")


def _stage_ids(arguments: Arguments, value: object) -> list[str]:
    """Ids of stages: like `Arguments.texts`, and there may be none. Bounded by the bytes of a call."""
    if not isinstance(value, list) or not all(isinstance(one, str) and _is_hex(one) for one in value):
        raise arguments.refuse("stage_ids", "a list of ids of stages", value)
    if len(set(value)) != len(value):
        raise arguments.refuse("stage_ids", "a list of different ids", value)
    return value
