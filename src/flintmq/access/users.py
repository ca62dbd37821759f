"""Users and their passwords: argon2id in a bounded line (access.checks), and a short memory of verified passwords.

in: user records of Definitions; a name and a password from a peer. out: yes, no, or "must be checked" (then a callback).

I1  A password is never kept: the cache holds a MAC of it under a key that exists only in this process.
I2  A cached yes is forgotten after Limits.credential_cache_ms, and at once when the user changes; a check that was under way
    while the user changed answers no.
I3  Unknown users, users without a password and wrong passwords cost the same work, in the same pool.
I4  Callers are never blocked by a check; how many run and wait, and in which order, is decided by access.checks.
I5  With SCRAM on (`stranger`) a password that is set gets keys, and one that was verified and has none gets them (`on_keys`): they stand
    behind its hash, which stays what it was. A SCRAM login costs microseconds, and its guesses count as all others (`throttle`).
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from flintmq.access.checks import Answer, Check, Checks, source_of
from flintmq.access.hashes import hash_of, is_foreign, keys_of, matches, with_keys
from flintmq.access.outside_user import OutsideUser
from flintmq.access.secret import Secret
from flintmq.access.throttle import Throttle
from flintmq.clock import Clock, SystemClock
from flintmq.config import Limits
from flintmq.digests import blake2b
from flintmq.ports import Definitions, ParameterRecord, PermissionRecord, UserRecord
from flintmq.slotted import replaced

if TYPE_CHECKING:
    from flintmq.access import scram

# the parameter that keeps what salts are made with, once SCRAM was on; its component is this broker's own
_SALTS = "scram-salts"
DEFAULT_USER = "guest"
# the user who is let in; False: nobody; None: not checked, too many wait
LoginAnswer = Callable[[str | bool | None], None]

# Hash of a random password nobody knows: what an unknown user is checked against.
_NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$uZ/HhQgXq4LFFMFKfnE9uQ$hS6z6VFYBeDesPEAsogafKs6BevgCSV/nKG5/2yEsEI"
# Hash of the password "guest", which is public anyway: a start does not spend a check on computing it.
_GUEST = "$argon2id$v=19$m=19456,t=2,p=1$H7SHEa4YDI1bQw4rzgH/+g$1jycT6eMbUlgaCAsLnXYBYTA7/VZGlj9CmMMkQPC8kg"


def hash_password(password: str) -> str:
    """An argon2id hash with a fresh salt, in PHC form. Takes about 50 ms and 19 MiB: not on a loop thread."""
    from flintmq.access.argon import hashed

    return hashed(password)


@lru_cache(maxsize=1024)
def is_loopback(address: str) -> bool:
    """Whether a peer's address (as the socket gives it, never the listener's) is this machine: 127/8, ::1, mapped; "" or "unix-uid-...":
    of a Unix socket (net.unix_socket)."""
    if not address or address.startswith("unix-uid-"):
        return True
    try:
        parsed = ipaddress.ip_address(address.split("%", 1)[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def default_user(vhost: str = "/") -> tuple[PermissionRecord, UserRecord]:
    """What a store is made with, and never gets again: guest/guest, let in from this machine only, with all permissions in `vhost`.

    Save them in this order: a crash in between leaves no user who may do nothing.
    """
    return PermissionRecord(DEFAULT_USER, vhost, ".*", ".*", ".*"), UserRecord(DEFAULT_USER, _GUEST, ("administrator",))


class PasswordDirectory(Protocol):
    """Whoever else checks passwords (access.ldap.Directory)."""

    def is_asked(self, user: str) -> bool:
        """Whether this name is one for it."""

    def cached(self, user: str, password: Secret | str) -> str | None:
        """The user of a name and a password that were verified lately."""

    def submit(self, user: str, password: Secret | str, answer: LoginAnswer, source: str = "") -> Check:
        """Checks when its turn comes."""

    def close(self) -> None: ...


class Users:
    """The users of a node. `throttle` slows who guesses.

    Args: definitions; clock; limits; loopback_users: may connect from this machine only (RabbitMQ's loopback_users); scram: keys for
    SCRAM are made and kept.
    """

    def __init__(
        self,
        definitions: Definitions,
        clock: Clock | None = None,
        limits: Limits | None = None,
        loopback_users: frozenset[str] = frozenset({DEFAULT_USER}),
        scram: bool = False,
    ) -> None:
        self._definitions = definitions
        self._clock = clock or SystemClock()
        limits = limits or Limits()
        self._cache_ns = limits.credential_cache_ms * 1_000_000
        # By name: whoever replaces one of the two (a test) is asked.
        self.checks = Checks(lambda *one: self.check(*one), lambda *one: self.check_cached(*one), self._clock, limits)
        self.throttle = Throttle(self._clock, limits)
        self._loopback_users = loopback_users
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._users = {record.name: record for record in definitions.load_users()}
        self._births = itertools.count(1)
        self._born = {name: next(self._births) for name in self._users}
        self._verified: dict[str, tuple[bytes, int]] = {}  # user -> MAC of user and password, end of validity (monotonic ns)
        # None: SCRAM is off
        self.stranger = self._salts(limits.scram_iterations) if scram else None
        # where passwords of users are checked of whom the broker has none; None: nowhere
        self.directory: PasswordDirectory | None = None
        # called when a user is gone, or has another password
        self.on_changed: Callable[[], None] = lambda: None
        # is told the record of a user whose password was right, and the same with keys: to be kept unless the user changed meanwhile
        self.on_keys: Callable[[UserRecord, UserRecord], object] = lambda record, fresh: None

    def _salts(self, iterations: int) -> scram.Stranger:
        """What salts are made with: kept from the first start with SCRAM on."""
        from flintmq.access import scram

        for record in self._definitions.load_parameters(_SALTS):
            return scram.Stranger(bytes.fromhex(str(record.value)), iterations)
        key = os.urandom(32)
        self._definitions.save_parameter(ParameterRecord(_SALTS, "", "key", key.hex()))
        return scram.Stranger(key, iterations)

    # --- management -----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> UserRecord | None:
        if type(name) is not str and isinstance(name, OutsideUser):
            return name.record()
        return self._users.get(name)

    def is_user(self, name: str) -> bool:
        """Whether the broker has a user of this name."""
        return str(name) in self._users

    def born(self, name: str) -> int:
        """A number that a user keeps for as long as it is there; another user of the same name has another one. 0: there is none."""
        if type(name) is not str and isinstance(name, OutsideUser):
            return name.born
        return self._born.get(name, 0)

    def names(self) -> list[str]:
        return sorted(self._users)

    def __len__(self) -> int:
        return len(self._users)

    def put(self, record: UserRecord) -> None:
        """Creates or replaces a user; what was verified of it is forgotten."""
        self._definitions.save_user(record)
        self.changed(record)

    def changed(self, record: UserRecord) -> None:
        """The definitions have this record now; what was verified of the user is forgotten."""
        with self._lock:
            known = self._users.get(record.name)
            if known is None:
                self._born[record.name] = next(self._births)
            self._users[record.name] = record
            if known is None or hash_of(known.password_hash) != hash_of(record.password_hash):
                self._verified.pop(record.name, None)
        self.on_changed()

    def set_password(self, name: str, password: Secret | str) -> None:
        """Changes a password (slow: see hash_password). Raises: KeyError for an unknown user."""
        hashed = self.stored(name, password)
        self.put(replaced(self._users[name], password_hash=hashed))

    def stored(self, name: str, password: Secret | str) -> str:
        """The stored form of a password that this user gets: its hash, and its keys when SCRAM is on. Slow: see hash_password."""
        hashed = hash_password(password)
        if self.stranger is None:
            return hashed
        from flintmq.access import scram

        return with_keys(hashed, scram.written(self.stranger.keys_for(name, password)))

    def delete(self, name: str) -> bool:
        """False when there was no such user. Its permissions go too: tell Permissions.forget_user."""
        self._definitions.delete_user(name)  # first: a user that could not be deleted for good must not seem to be gone
        return self.gone(name)

    def gone(self, name: str) -> bool:
        """The definitions have this user no more. False when there was none."""
        with self._lock:
            known = self._users.pop(name, None)
            self._born.pop(name, None)
            self._verified.pop(name, None)
        self.on_changed()
        return known is not None

    # --- checking -------------------------------------------------------------------------------------------------------

    def refused_from(self, user: str, peer_address: str) -> bool:
        """Whether `user` may not connect from there (log text of RabbitMQ: "user 'guest' can only connect via localhost")."""
        return user in self._loopback_users and not is_loopback(peer_address)

    def login_cached(self, user: str, password: Secret | str) -> str | None:
        """The user whom this name and password let in, when they were verified lately; None: they must be checked (submit_login). Fast,
        any thread. It goes by the returned name from then on: a directory may spell a name in another way."""
        if self.directory is not None and self.directory.is_asked(user):
            return self.directory.cached(user, password)
        return user if self.check_cached(user, password) else None

    def submit_login(self, user: str, password: Secret | str, answer: LoginAnswer, source: str = "") -> Check:
        """As submit_check, with the user in place of True."""
        if self.directory is not None and self.directory.is_asked(user):
            return self.directory.submit(user, password, answer, source)
        return self.submit_check(user, password, lambda good: answer(user if good else good), source)

    def check_cached(self, user: str, password: Secret | str) -> bool | None:
        """True when this password was verified lately; None: it must be checked (submit_check). Fast, any thread."""
        with self._lock:
            known = self._verified.get(user)
            if known is None:
                return None
            mac, until = known
            if self._clock.monotonic_ns() >= until:
                del self._verified[user]
                return None
        from flintmq.access.argon import same  # loaded by the check that verified it

        return True if same(mac, self._mac(user, password)) else None

    def submit_check(self, user: str, password: Secret | str, callback: Answer, source: str = "") -> Check:
        """Checks when its turn comes: `callback(True | False)`, or `callback(None)` when too many wait (C1, C2 of access.checks)
        or failed before (access.throttle).

        Cancel what is returned when the caller leaves. Args: source: the peer's address, or a name for all callers of a service.
        The callback runs once, in a thread of the pool or of this call. Raises: RuntimeError after `close`.
        """
        where = source_of(source)

        def answered(good: bool | None) -> None:
            if good is not None:
                (self.throttle.passed if good else self.throttle.failed)(user, where)
            callback(good)

        if self.throttle.refuses(user, where):
            check = Check(self.checks, where, callback)
            callback(None)
            return check
        return self.checks.submit(user, password, self._mac(user, password), where, answered)

    def check(self, user: str, password: Secret | str) -> bool:
        """The check itself, in this thread: tens of milliseconds. For management and the pool."""
        from flintmq.access.argon import verified

        record = self._users.get(user)
        stored = hash_of(record.password_hash) if record is not None else ""
        foreign = is_foreign(stored)
        good = verified(_NOBODY if foreign else stored or _NOBODY, password)
        if foreign:  # I3
            good = matches(stored, password)
        if not good or not stored or record is None:
            return False
        with self._lock:
            known = self._users.get(user)
            if known is None or hash_of(known.password_hash) != stored:
                return False
            self._verified[user] = (self._mac(user, password), self._clock.monotonic_ns() + self._cache_ns)
        if self.stranger is not None and not keys_of(known.password_hash):
            from flintmq.access import scram

            keys = scram.written(self.stranger.keys_for(user, password))
            self.on_keys(known, replaced(known, password_hash=with_keys(stored, keys)))
        return True

    # --- SCRAM ----------------------------------------------------------------------------------------------------------

    def conversation(self) -> scram.Conversation:
        """A login by SCRAM that begins. Only while `stranger` is there."""
        from flintmq.access import scram

        return scram.Conversation(self._keys)

    def _keys(self, user: str) -> scram.Keys:
        from flintmq.access import scram

        assert self.stranger is not None
        record = self._users.get(user)
        nobody = self.stranger.nobody(user)
        return (scram.read(keys_of(record.password_hash)) if record is not None else None) or nobody

    def still(self, conversation: scram.Conversation) -> bool:
        """Whether the keys of a conversation are those of its user now."""
        return conversation.keys == self._keys(conversation.user)

    def prove(self, conversation: scram.Conversation, message: bytes, source: str) -> tuple[bool | None, bytes]:
        """The last message of a SCRAM login. (True, the server's answer); False: wrong; None: failed too often before (T1), nothing was
        looked at. Raises: scram.ScramError, which counts as wrong."""
        user, where = conversation.user, source_of(source)
        if self.throttle.refuses(user, where):
            return None, b""
        answer: bytes | None = None
        try:
            answer = conversation.final(message)
        finally:
            (self.throttle.failed if answer is None else self.throttle.passed)(user, where)
        return (False, b"") if answer is None else (True, answer)

    def close(self) -> None:
        """Stops the pool; checks that wait are not run and their callbacks not called."""
        self.checks.close()
        if self.directory is not None:
            self.directory.close()

    def _mac(self, user: str, password: Secret | str) -> bytes:
        name = user.encode("utf-8", "surrogatepass")
        text = len(name).to_bytes(4, "big") + name + password.encode("utf-8", "surrogatepass")
        return blake2b(text, key=self._key, digest_size=32).digest()
