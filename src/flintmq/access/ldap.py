"""Logins by a directory (LDAP), as rabbitmq_auth_backend_ldap has them: finds the entry of a user, binds as it, reads its groups.

in: a name and a password. out: the user: one of the broker, or an LdapUser; or no.

D1  A check runs in a line of its own (access.checks): Limits.ldap_checks_max threads, bounded, fair by source, slowed by user and source
    after wrong passwords. Passwords of the broker's own users never wait for a directory.
D2  A password is only good when a bind as the very entry of the user took it, whatever found the entry. An empty one is refused here: a
    directory takes a bind with it as anonymous, and says yes (RFC 4513, 5.1.2).
D3  A user has one name, the one that the directory spells: "ANN" is nobody besides "ann" with limits of her own. A user of the broker who
    has a password is never looked for in a directory.
D4  A password leaves over TLS, or to this machine. Where the directory can't say, the login is refused, and the log says why.
D5  A yes is remembered under a keyed MAC for Limits.credential_cache_ms; no password is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from flintmq.access.audit import LineBound
from flintmq.access.checks import Check, Checks, source_of
from flintmq.access.ldap_names import Dn, escape_dn, fold, folded, read_dn
from flintmq.access.ldap_queries import LdapFacts, LdapUser, Queries, is_attribute, parse
from flintmq.access.ldap_wire import NO, SUCCESS, Conversation, Entry, LdapError, Server, TooManyError
from flintmq.access.secret import Secret
from flintmq.access.tags import TAGS
from flintmq.access.throttle import Throttle
from flintmq.access.users import LoginAnswer, is_loopback
from flintmq.clock import Clock
from flintmq.config import Config, Limits
from flintmq.errors import OperatorError
from flintmq.ports import UserRecord

log = logging.getLogger("flintmq.access")

NAME = "${username}"
# groups of groups of ... that are looked at
_NESTED_MAX = 16


def read_server(url: str, starttls: bool) -> Server:
    """ldap://host[:389] or ldaps://host[:636]. Raises: OperatorError 78."""
    try:
        parts = urlsplit(url)
        port = parts.port if parts.port is not None else 636 if parts.scheme == "ldaps" else 389
    except ValueError:
        raise OperatorError(f"--ldap-url {url}: its port is none") from None
    if parts.scheme not in ("ldap", "ldaps") or not parts.hostname or parts.username is not None or parts.path.strip("/") or parts.query:
        raise OperatorError(f"--ldap-url {parts.scheme}://{parts.hostname}: ldap://host[:port] or ldaps://host[:port] is expected")
    server = Server(parts.hostname, port, parts.scheme == "ldaps")
    if not (server.tls or starttls or server.host == "localhost" or is_loopback(server.host)):
        raise OperatorError(f"--ldap-url {url}: passwords leave this machine over TLS only: use ldaps://, or --ldap-starttls")
    return server


def read_queries(config: Config) -> Queries:
    """The queries of the options. Raises: OperatorError 78."""

    def one(option: str, text: str, kind: str) -> object:
        try:
            return parse(text, kind)
        except ValueError as error:
            raise OperatorError(f"--ldap-{option} {text}: {error}") from None

    tags = {}
    for text in config.ldap_tag_queries:
        tag, equals, query = text.partition("=")
        if not equals or tag not in TAGS:
            raise OperatorError(f"--ldap-tag-query {text}: TAG=QUERY is expected, with a tag of {', '.join(TAGS)}")
        tags[tag] = one("tag-query", query, "tag")
    vhost = None if config.ldap_vhost_query is None else one("vhost-query", config.ldap_vhost_query, "vhost")
    resource, topic = one("resource-query", config.ldap_resource_query, "resource"), one("topic-query", config.ldap_topic_query, "topic")
    return Queries(vhost, resource, topic, tags)  # type: ignore[arg-type]


class Directory:
    """Args: config: its ldap_* fields; clock; record_of: the record of a user of the broker; throttle: of its users.

    Raises: OperatorError 78.
    """

    def __init__(self, config: Config, clock: Clock, record_of: Callable[[str], UserRecord | None], throttle: Throttle) -> None:
        self._config = config
        self._clock = clock
        self._limits: Limits = config.limits
        self._record_of = record_of
        self._throttle = throttle
        self._servers = [read_server(url, config.ldap_starttls) for url in config.ldap_urls]
        # server -> monotonic seconds until which it is asked last
        self._down_until_s: dict[Server, float] = {}
        self._queries = read_queries(config)
        self._check_options()
        self._password = self._bind_password()
        self._context: ssl.SSLContext | None = None
        if config.ldap_starttls or any(server.tls for server in self._servers):
            try:
                self._context = ssl.create_default_context(cafile=config.ldap_ca)
            except (ssl.SSLError, OSError) as error:
                raise OperatorError(f"--ldap-ca {config.ldap_ca}: no certificates in PEM form ({error})") from error
        limits = config.limits.replace(password_checks_max=config.limits.ldap_checks_max)
        self.checks = Checks(lambda *one: self.check(*one), lambda *one: self.cached(*one) is not None, clock, limits)
        self._mac_key = os.urandom(32)
        self._say = LineBound(clock, self._limits.ldap_lines, 16, seconds=10).say
        self._lock = threading.Lock()
        self._verified: OrderedDict[bytes, tuple[str, int]] = OrderedDict()  # MAC -> user, end of validity (monotonic ns)
        self._unsure: OrderedDict[bytes, None] = OrderedDict()  # MACs that no server could say anything of, until that is told

    def _check_options(self) -> None:
        config = self._config
        pattern = config.ldap_user_dn
        if pattern is None and config.ldap_base is None:
            raise OperatorError("--ldap-url needs --ldap-user-dn or --ldap-base: how a user's entry is found")
        if pattern is not None and NAME not in pattern:
            raise OperatorError(f"--ldap-user-dn {pattern}: it has no {NAME}: everybody would be one user")
        if pattern is not None and config.ldap_base is None:
            try:
                read_dn(pattern)
            except ValueError as error:
                raise OperatorError(f"--ldap-user-dn {pattern}: {error}; a name of another kind needs --ldap-base") from None
        if not is_attribute(config.ldap_attribute):
            raise OperatorError(f"--ldap-attribute {config.ldap_attribute}: the name of an attribute is expected, such as uid")
        if (config.ldap_bind_dn is None) != (config.ldap_bind_password_file is None):
            raise OperatorError("--ldap-bind-dn and --ldap-bind-password-file go together")
        if self._queries.groups and self._group_base() is None:
            raise OperatorError("in_group needs --ldap-group-base, or --ldap-base: where groups are")
        if self._queries.tags and self._queries.vhost is None:
            raise OperatorError("--ldap-tag-query needs --ldap-vhost-query: without it users are the broker's, and so are their tags")

    def _group_base(self) -> str | None:
        return self._config.ldap_group_base or self._config.ldap_base

    def _bind_password(self) -> Secret:
        path = self._config.ldap_bind_password_file
        if path is None:
            return Secret("")
        try:
            password = Secret(Path(path).read_text(encoding="utf-8").rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as error:
            raise OperatorError(f"--ldap-bind-password-file {path}: {error}") from error
        if not password:
            raise OperatorError(f"--ldap-bind-password-file {path}: it is empty")
        return password

    def close(self) -> None:
        self.checks.close()

    # --- logins -----------------------------------------------------------------------------------------------------------

    def is_asked(self, user: str) -> bool:
        """Whether a name is looked for in the directory: the broker has no password of it (D3)."""
        record = self._record_of(user)
        return record is None or not record.password_hash

    def cached(self, user: str, password: Secret | str) -> str | None:
        """The user of a name and a password that were verified lately. Fast, any thread."""
        mac = self._mac(user, password)
        with self._lock:
            known, until = self._verified.get(mac, ("", 0))
            if self._clock.monotonic_ns() >= until or not self._is_still(known):
                self._verified.pop(mac, None)
                return None
            self._verified.move_to_end(mac)
            return known

    def _is_still(self, user: str) -> bool:
        """Whether what was decided of a user holds: the broker has a record of it, without a password, or it has none."""
        record = self._record_of(str(user))
        return record is None if isinstance(user, LdapUser) else record is not None and not record.password_hash

    def submit(self, user: str, password: Secret | str, answer: LoginAnswer, source: str = "") -> Check:
        """Checks when its turn comes. Cancel what is returned when the caller leaves. Raises: RuntimeError after `close`."""
        where, label, mac = source_of(source), fold(user), self._mac(user, password)

        def answered(good: bool | None) -> None:
            outcome = self.cached(user, password) if good else None
            with self._lock:
                unsure = mac in self._unsure
                self._unsure.pop(mac, None)
            if outcome is not None:
                self._throttle.passed(label, where)
            elif good is not None and not unsure:  # a directory that is away makes nobody a guesser
                self._throttle.failed(label, where)
            answer(None if good is None else outcome or False)

        if self._throttle.refuses(label, where):
            answer(None)
            return Check(self.checks, where, answered)
        return self.checks.submit(user, password, mac, where, answered)

    def check(self, user: str, password: Secret | str) -> bool:
        """The check itself, in this thread, Limits.ldap_answer_ms at most and what a look for the server's address takes."""
        try:
            outcome = self.verify(user, password)
        except LdapError as error:
            self._say(log.error, "no answer", "the directory can't say whether user %.80r may log in, who is refused: %s", user, error)
            with self._lock:
                self._unsure[self._mac(user, password)] = None
                if len(self._unsure) > self._limits.password_waiting_max:
                    self._unsure.popitem(last=False)
            return False
        if outcome is None:
            return False
        until = self._clock.monotonic_ns() + self._limits.credential_cache_ms * 1_000_000
        with self._lock:
            self._verified[self._mac(user, password)] = outcome, until
            if len(self._verified) > self._limits.ldap_cache_max:
                self._verified.popitem(last=False)
        return True

    def verify(self, user: str, password: Secret | str) -> str | None:
        """The user; None: no. Raises: LdapError."""
        limits = self._limits
        if not password or not 1 <= len(user) <= limits.login_name_max or not user.isprintable():  # D2
            return None
        now_s = time.monotonic()
        end_s = now_s + limits.ldap_answer_ms / 1000
        servers = sorted(self._servers, key=lambda one: self._down_until_s.get(one, 0.0) > now_s)
        why = LdapError("there is no server")
        for number, server in enumerate(servers):
            # One that does not answer leaves time for the others.
            now_s = time.monotonic()
            share_s = now_s + (end_s - now_s) / (len(servers) - number)
            try:
                talk = Conversation(server, self._context, self._config.ldap_starttls and not server.tls, share_s)
                try:
                    return self._verify(talk, user, password)
                finally:
                    talk.close()
            except LdapError as error:
                why = error
                self._down_until_s[server] = time.monotonic() + limits.ldap_down_ms / 1000
        raise why

    def _verify(self, talk: Conversation, user: str, password: Secret | str) -> str | None:
        """One server's answer. D2: whatever came before, the last bind is the one of the entry that is used."""
        config = self._config
        pattern = None if config.ldap_user_dn is None else config.ldap_user_dn.replace(NAME, escape_dn(user))
        if config.ldap_base is None:
            assert pattern is not None
            dn: str | None = pattern
        else:
            if config.ldap_bind_dn is not None:
                self._bind_service(talk)
            elif pattern is not None and not self._is_taken(talk, pattern, password):
                return None
            dn = self._entry_of(talk, user)
        if dn is None or not self._is_taken(talk, dn, password):
            return None
        if config.ldap_bind_dn is not None:
            self._bind_service(talk)
        entry = talk.read(dn, (self._attribute(),))
        name = None if entry is None else self._name_of(entry, user)
        if entry is None or name is None:
            self._say(
                log.error, "entry", "the entry of user %.80r, %.200r, shows no such %s: the login is refused", user, dn, self._attribute()
            )
            return None
        return self._user(talk, name, entry.dn)

    def _bind_service(self, talk: Conversation) -> None:
        assert self._config.ldap_bind_dn is not None
        code = talk.bind(self._config.ldap_bind_dn, self._password)
        if code != SUCCESS:
            raise LdapError(f"--ldap-bind-dn is refused, result {code}")

    @staticmethod
    def _is_taken(talk: Conversation, dn: str, password: Secret | str) -> bool:
        """Whether a bind takes the password."""
        code = talk.bind(dn, password)
        if code != SUCCESS and code not in NO:
            raise LdapError(f"a bind as {dn[:200]!r} ended with result {code}")
        return code == SUCCESS

    def _attribute(self) -> str:
        """The attribute that names users: the one that is searched, or of the pattern."""
        if self._config.ldap_base is None and self._config.ldap_user_dn is not None:
            for part in read_dn(self._config.ldap_user_dn):
                for kind, value in part:
                    if value == NAME:
                        return kind
        return self._config.ldap_attribute

    def _entry_of(self, talk: Conversation, user: str) -> str | None:
        """The DN of the one entry of a name. None: there is none, or more than one."""
        assert self._config.ldap_base is not None
        try:
            entries = talk.find(self._config.ldap_base, self._config.ldap_attribute, user, most=1)
        except TooManyError:
            self._say(log.warning, "several entries", "user %.80r stands for several entries of the directory: the login is refused", user)
            return None
        return entries[0].dn if entries and entries[0].dn else None

    def _name_of(self, entry: Entry, user: str) -> str | None:
        """The name as the directory spells it (D3)."""
        spelled = entry.values.get(self._attribute().lower(), [])
        names = [user] if user in spelled else sorted(one for one in spelled if fold(one) == fold(user))
        good = names and 1 <= len(names[0]) <= self._limits.login_name_max and names[0].isprintable()
        return names[0] if good else None

    def _user(self, talk: Conversation, name: str, dn: str) -> str | None:
        """The broker's user of that name, or one that the queries are asked about."""
        record = self._record_of(name)
        if record is not None:
            if not record.password_hash:
                return name
            self._say(
                log.error,
                "a name twice",
                "user %.80r of the directory is a user of the broker with a password, too: the login is refused",
                name,
            )
            return None
        if self._queries.vhost is None:
            self._say(
                log.error,
                "no user",
                "user %.80r of the directory is no user of the broker, and there is no --ldap-vhost-query: refused",
                name,
            )
            return None
        groups = {(attribute, nested): self._groups(talk, dn, attribute, nested) for attribute, nested in self._queries.groups}
        return LdapUser(LdapFacts(name, dn, groups), self._queries)

    def _groups(self, talk: Conversation, dn: str, attribute: str, nested: bool) -> frozenset[Dn]:
        """Groups whose attribute names the user; nested: and groups that name these. All or an error: a query may say `not`."""
        base, most = self._group_base(), self._limits.ldap_groups_max
        assert base is not None
        groups: dict[Dn, str] = {}
        members = [dn]
        for _ in range(_NESTED_MAX if nested else 1):
            fresh: list[str] = []
            for member in members:
                for entry in talk.find(base, attribute, member, most=most):
                    try:
                        key = folded(read_dn(entry.dn))
                    except ValueError as error:
                        raise LdapError(f"a group's name: {error}") from None
                    if key not in groups:
                        groups[key] = entry.dn
                        fresh.append(entry.dn)
                if len(groups) > most:
                    raise TooManyError(f"{dn[:200]!r} is in more than {most} groups")
            members = fresh
            if not members:
                return frozenset(groups)
        if nested:
            raise TooManyError(f"groups of {dn[:200]!r} are nested more than {_NESTED_MAX} deep")
        return frozenset(groups)

    def _mac(self, user: str, password: Secret | str) -> bytes:
        name = user.encode("utf-8", "surrogatepass")
        text = len(name).to_bytes(4, "big") + name + password.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._mac_key, digest_size=32, person=b"ldap").digest()
