"""The scopes of a node: found by name, made when there is a place, forgotten for others when that can't publish anything twice.

in: names, callers, commits, a restart's notes. out: Scope values; Refused LIMIT, FORBIDDEN.

N1  What a scope has committed is remembered for `scope_remember_s` after its last commit. Only then may it be forgotten for another one,
    which the log says: a batch that is repeated after that is published again.
N2  What nobody can repeat is forgotten after `stage_unprepared_s`, the time of a task: a write without a name, and a named one that never
    committed anything.
N3  One name with growing numbers (`txnId` with `txnVersion`) is one scope for ever, however many writes it has had.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from flintmq.dataplane.in_log import NOTE_SCOPE
from flintmq.dataplane.quotas import Quota
from flintmq.dataplane.scope import KINDS, ONCE, QUERY, WRITE, Scope, kind_of
from flintmq.dataplane.shared import Caller, Plane, log
from flintmq.dataplane.wire import Refused
from flintmq.ports import Verb

# share of a user's places for named writes at which the log warns
_WARN_SHARE = 0.8
# scopes that one pass of housekeeping forgets: less than a millisecond
_A_PASS = 16
# (nothing is lost by forgetting it, kinds that share places, user, vhost)
_Line = tuple[bool, bool, str, str]


class Scopes:
    """See module. Threading: any thread. A scope's own lock is taken before ours, but by who forgets, who does not wait for it."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._scopes: dict[tuple[str, str], Scope] = {}
        # scopes of one line in the order of their last use, and the line of each: who makes room is found at the head
        self._lines: dict[_Line, dict[bytes, Scope]] = {}
        self._line_of: dict[bytes, _Line] = {}
        self.made_room = 0  # scopes that were forgotten for others
        limits = plane.limits
        queries = Quota("scopes", "`scope.forget` some", node=limits.scopes_max, vhost=limits.scopes_vhost_max, user=limits.scopes_user_max)
        hint = "write with one 'txnId' whose 'txnVersion' grows, which takes one place for ever, or `scope.forget` some"
        writes = Quota("named writes", hint, node=limits.writes_max, vhost=limits.writes_vhost_max, user=limits.writes_user_max)
        self._quotas = {kind: queries if kind == QUERY else writes for kind in KINDS}

    # --- finding ----------------------------------------------------------------------------------------------------------

    def get(self, vhost: str, name: str) -> Scope | None:
        """The scope, whoever's it is."""
        with self._lock:
            return self._scopes.get((vhost, name))

    def all(self) -> list[Scope]:
        """A copy. O(scopes)."""
        with self._lock:
            return list(self._scopes.values())

    def __len__(self) -> int:
        return len(self._scopes)

    def counts(self) -> dict[str, int]:
        """Scopes by kind."""
        with self._lock:
            kinds = Counter(scope.kind for scope in self._scopes.values())
        return {kind: kinds[kind] for kind in KINDS}

    def taken(self, caller: Caller, name: str, kind: str = "") -> Scope:
        """The caller's scope of this name, a new one if need be. Raises: Refused FORBIDDEN, LIMIT."""
        with self._lock:
            scope = self._scopes.get((caller.vhost, name))
            if scope is None:
                self._plane.check_grants(caller, Verb.WRITE)
                kind = kind or kind_of(name)
                quota = self._quotas[kind]
                full = quota.full(caller.name, caller.vhost)
                if full and not self._forget_oldest(full, caller, quota):
                    raise quota.refused(full, caller.user, caller.vhost)
                scope = self._enter(Scope(name, caller.vhost, user=caller.name, used_ms=self._plane.now_ms(), kind=kind))
                if kind == WRITE:
                    self._warn(quota, caller)
        self.check_owner(caller, scope)
        return scope

    def check_owner(self, caller: Caller, scope: Scope) -> None:
        """Another user could else declare batches committed that never were. An administrator may. Raises: Refused FORBIDDEN."""
        if scope.user not in ("", caller.user) and not self._plane.is_administrator(caller):
            text = f"scope '{scope.name}' belongs to user '{scope.user}': take another one, or an administrator may `scope.forget` it"
            raise Refused("FORBIDDEN", text)

    # --- life -------------------------------------------------------------------------------------------------------------

    def restored(self, scopes: list[Scope]) -> None:
        """What the notes tell, before anything is served."""
        with self._lock:
            for scope in sorted(scopes, key=lambda scope: scope.used_ms):
                self._enter(scope)

    def used(self, scope: Scope) -> None:
        """It has committed something: it stands last in its line, a named write from now on among those that must be remembered."""
        with self._lock:
            if scope.key in self._line_of:
                self._leave_line(scope)
                self._enter_line(scope)

    def leave(self, scope: Scope) -> None:
        """It is forgotten."""
        with self._lock:
            self._leave(scope)

    def tick(self) -> None:
        """Housekeeping: N2, some at a time. Never waits."""
        over = self._over(True)
        with self._lock:
            heads = [
                scope
                for (loose, *_), scopes in self._lines.items()
                if loose
                for scope in islice(scopes.values(), _A_PASS)
                if scope.used_ms < over and not scope.stages
            ]
            for scope in heads[:_A_PASS]:
                self._forget(scope)

    # --- inside: under the lock -------------------------------------------------------------------------------------------

    def _enter(self, scope: Scope) -> Scope:
        self._scopes[scope.vhost, scope.name] = scope
        self._quotas[scope.kind].enter(scope.key, scope.user, scope.vhost)
        self._enter_line(scope)
        return scope

    def _leave(self, scope: Scope) -> None:
        if self._scopes.get((scope.vhost, scope.name)) is scope:
            del self._scopes[scope.vhost, scope.name]
            self._quotas[scope.kind].leave(scope.key)
            self._leave_line(scope)

    def _enter_line(self, scope: Scope) -> None:
        loose = scope.kind == ONCE or (scope.kind == WRITE and not scope.noted)
        line = (loose, scope.kind == QUERY, scope.user, scope.vhost)
        self._line_of[scope.key] = line
        self._lines.setdefault(line, {})[scope.key] = scope

    def _leave_line(self, scope: Scope) -> None:
        line = self._line_of.pop(scope.key)
        scopes = self._lines[line]
        del scopes[scope.key]
        if not scopes:
            del self._lines[line]

    def _heads(self, full: str, caller: Caller, quota: Quota) -> Iterator[tuple[bool, int, Scope]]:
        """(something is lost by forgetting it, its last use, scope) of the longest unused one of each line among those whose places are
        taken. O(lines), and O(stages) where scopes are under way."""
        over = {loose: self._over(loose) for loose in (True, False)}
        for (loose, queries, user, vhost), scopes in self._lines.items():
            if self._quotas[QUERY if queries else WRITE] is not quota:
                continue
            if (full == "user" and user != caller.name) or (full == "vhost" and vhost != caller.vhost):
                continue
            head = next((scope for scope in scopes.values() if not scope.stages and not scope.forgotten), None)
            if head is not None and head.used_ms < over[loose]:
                yield not loose, head.used_ms, head

    def _over(self, loose: bool) -> int:
        """A scope that was last used before may be forgotten. The answer to the commit of one that nobody repeats may have been lost: it is
        asked for again within the time of a task."""
        limits = self._plane.limits
        return self._plane.now_ms() - (limits.stage_unprepared_s if loose else limits.scope_remember_s) * 1000

    def _forget(self, scope: Scope) -> bool:
        """False: it is in use, or a stage was begun since it was chosen."""
        if not scope.lock.acquire(blocking=False):
            return False
        try:
            if scope.stages:
                return False
            scope.forgotten = True
            self._leave(scope)
            if scope.noted:
                self._plane.store.note(NOTE_SCOPE, scope.key, b"")
        finally:
            scope.lock.release()
        return True

    def _forget_oldest(self, full: str, caller: Caller, quota: Quota) -> bool:
        """Makes room for a scope among those whose places are taken (`full`: the user's, the vhost's, the node's). False: none may go."""
        head = min(self._heads(full, caller, quota), key=lambda one: one[:2], default=None)
        if head is None:
            return False
        lost, _, oldest = head
        if not self._forget(oldest):
            return False
        self.made_room += 1
        if lost:
            log.warning(
                "scope %s of user %s makes room for others, since it was not used for more than %d s: what it published would be "
                "published again if its writer came back",
                oldest.name,
                oldest.user,
                self._plane.limits.scope_remember_s,
            )
        return True

    def _warn(self, quota: Quota, caller: Caller) -> None:
        most = self._plane.limits.writes_user_max
        if quota.of_user(caller.name) == int(most * _WARN_SHARE):
            text = "user %s has %d named writes, of which %d are remembered; the next ones are refused then: %s"
            log.warning(text, caller.name, quota.of_user(caller.name), most, quota.hint)
