"""What a directory lets a user do: the queries of rabbitmq_auth_backend_ldap, in its words, and the user whom they decide about.

in: texts of queries (Erlang terms, as in RabbitMQ's configuration), what a login found out about a user. out: yes or no.

Q1  A query is decided from what the login has read (LdapFacts): nothing here waits for a server, so it may run on an I/O loop.
Q2  A name of a client is a value, never syntax: a pattern of a DN is taken apart before its variables are filled in, and what goes into a
    regular expression is escaped. Names of queues and exchanges and routing keys can't stand in one.
Q3  What is no query is refused when the broker starts, whole or in part, and whatever it stands in: no mistake grants anything.

Queries: {constant, true|false}, {in_group, "DN"}, {in_group, "DN", "attribute"}, {in_group_nested, "DN"[, "attribute"]},
{equals, "a", "b"}, {match, "text", "regular expression"}, {'not', Q}, {'and', [Q, ...]}, {'or', [Q, ...]},
{for, [{permission|resource, word, Q}, ...]}; a text may be {string, "..."}. Those that ask for attributes of entries (exists, attribute)
are not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flintmq import patterns
from flintmq.access.ldap_names import Dn, fill, read_dn
from flintmq.access.outside_user import OutsideUser
from flintmq.access.tags import TAGS
from flintmq.patterns import Pattern, Undecided

# attribute of a group's entry that names its members, unless a query says otherwise
MEMBER = "member"
# virtual hosts whose rights one user keeps
_KEPT = 16
_DEPTH_MAX = 32
_TOKENS = re.compile(r"""\s*(?:(?P<sign>[{}\[\],])|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>'[a-z_]+'|[a-z_]+))""")
_VARIABLE = re.compile(r"\$\{([a-z_]+)\}")
# variables of each kind of query; ${ad_user} and ${ad_domain} are not there
_OF_VHOST = frozenset({"username", "user_dn", "vhost"})
_OF_RESOURCE = _OF_VHOST | {"resource", "name", "permission"}
VARIABLES = {
    "vhost": _OF_VHOST,
    "resource": _OF_RESOURCE,
    "topic": _OF_RESOURCE | {"routing_key"},
    "tag": frozenset({"username", "user_dn"}),
}
# what may stand in a regular expression: nothing that a client chooses (Q2)
_IN_PATTERN = frozenset({"username", "vhost", "permission", "resource"})


@dataclass(frozen=True, slots=True)
class LdapFacts:
    """What a login read. groups: (attribute, nested) -> groups that the user is in."""

    user: str
    user_dn: str
    groups: Mapping[tuple[str, bool], frozenset[Dn]] = field(default_factory=dict)


Values = Mapping[str, str]
Decide = Callable[[LdapFacts, Values], bool]


class Query(NamedTuple):
    """decide: the answer; groups: (attribute, nested) that a login must read for it; constant: it is the same for all, None: it is not."""

    decide: Decide
    groups: frozenset[tuple[str, bool]]
    constant: bool | None

    def allows(self, facts: LdapFacts, values: Values) -> bool:
        """Its answer; what is not decided is a no, whatever stands around it: a 'not' must not turn it into a yes."""
        try:
            return self.decide(facts, values)
        except Undecided as error:
            patterns.report.add("directory", error)
            return False


def parse(text: str, kind: str) -> Query:
    """A query. Args: kind: a key of VARIABLES. Raises: ValueError with the mistake."""
    parser = _Parser(text, VARIABLES[kind])
    term = parser.term(0)
    parser.end()
    query = parser.query(term)
    constant = term[1] == "true" if isinstance(term, tuple) and term[0] == "constant" else None
    return Query(query, frozenset(parser.groups), constant)


class _Text(str):
    """A text in quotes; a plain str is a word."""

    __slots__ = ()


class _Parser:
    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self._tokens = list(self._split(text))
        self._at = 0
        self._variables = variables
        self.groups: set[tuple[str, bool]] = set()

    @staticmethod
    def _split(text: str) -> Iterator[str]:
        offset, text = 0, text.strip()
        while offset < len(text):
            match = _TOKENS.match(text, offset)
            if match is None:
                raise ValueError(f"{text[offset : offset + 20]!r} can't be read")
            offset = match.end()
            if match["text"] is not None:
                yield _Text(re.sub(r"\\(.)", r"\1", match["text"][1:-1], flags=re.DOTALL))
            else:
                yield match["sign"] or match["word"].strip("'")

    # --- terms ------------------------------------------------------------------------------------------------------------

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ValueError("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise ValueError(f"{self._tokens[self._at]!r} stands behind its end")

    def term(self, depth: int) -> Any:
        """A tuple, a list, a text or a word."""
        if depth > _DEPTH_MAX:
            raise ValueError(f"it is nested more than {_DEPTH_MAX} deep")
        token = self._next()
        if isinstance(token, _Text) or token not in "{}[],":
            return token
        if token not in "{[":
            raise ValueError(f"{token!r} is not expected")
        closing = "}" if token == "{" else "]"
        parts = []
        while True:
            parts.append(self.term(depth + 1))
            sign = self._next()
            if isinstance(sign, _Text) or sign not in (",", closing):
                raise ValueError(f"',' or '{closing}' is expected, not {sign!r}")
            if sign == closing:
                return tuple(parts) if closing == "}" else parts

    # --- queries ----------------------------------------------------------------------------------------------------------

    def query(self, term: Any) -> Decide:
        if not isinstance(term, tuple) or isinstance(term[0], _Text) or not isinstance(term[0], str):
            raise ValueError(f"a query like {{constant, true}} is expected, not {term!r}")
        name, arguments = term[0], term[1:]
        made: dict[str, Callable[..., Decide]] = {
            "constant": self._constant,
            "in_group": lambda *rest: self._in_group(False, *rest),
            "in_group_nested": lambda *rest: self._in_group(True, *rest),
            "equals": self._equals,
            "match": self._match,
            "not": self._not,
            "and": lambda several: self._each(all, several),
            "or": lambda several: self._each(any, several),
            "for": self._for,
        }
        if name not in made:
            raise ValueError(f"there is no query {name!r}; there are {', '.join(made)}")
        try:
            return made[name](*arguments)
        except TypeError:
            raise ValueError(f"{name!r} with {len(arguments)} arguments is no query") from None

    def _text(self, term: Any) -> str:
        """The text of an argument, with variables that are there."""
        if isinstance(term, tuple) and len(term) == 2 and term[0] == "string":
            term = term[1]
        if not isinstance(term, _Text):
            raise ValueError(f"a text in quotes is expected, not {term!r}")
        self._check(term, self._variables)
        return str(term)

    @staticmethod
    def _check(text: str, known: frozenset[str]) -> None:
        for name in _VARIABLE.findall(text):
            if name not in known:
                raise ValueError(f"${{{name}}} can't stand in {text!r}; what can: {', '.join(sorted(known))}")

    @staticmethod
    def _constant(value: Any) -> Decide:
        if value not in ("true", "false") or isinstance(value, _Text):
            raise ValueError(f"constant is true or false, not {value!r}")
        good = value == "true"
        return lambda facts, values: good

    def _in_group(self, nested: bool, pattern: Any, attribute: Any = None) -> Decide:
        if attribute is None:
            attribute = _Text(MEMBER)
        if not isinstance(attribute, _Text) or not is_attribute(attribute):
            raise ValueError(f"the name of an attribute is expected, not {attribute!r}")
        dn, key = read_dn(self._text(pattern)), (str(attribute), nested)
        self.groups.add(key)
        return lambda facts, values: fill(dn, values) in facts.groups.get(key, ())

    def _equals(self, one: Any, other: Any) -> Decide:
        left, right = self._text(one), self._text(other)
        return lambda facts, values: filled(left, values) == filled(right, values)

    def _match(self, subject: Any, pattern: Any) -> Decide:
        text, expression = self._text(subject), self._text(pattern)
        self._check(expression, _IN_PATTERN)
        reason = patterns.check(filled(expression, dict.fromkeys(_IN_PATTERN, "x")))
        if reason is not None:
            raise ValueError(f"{expression!r}: {reason}")
        return lambda facts, values: Pattern(filled(expression, values, patterns.quoted), "directory").decide(filled(text, values))

    def _not(self, term: Any) -> Decide:
        query = self.query(term)
        return lambda facts, values: not query(facts, values)

    def _each(self, how: Callable[[Any], bool], several: Any) -> Decide:
        if not isinstance(several, list):
            raise ValueError(f"a list of queries is expected, not {several!r}")
        queries = [self.query(one) for one in several]
        return lambda facts, values: how(query(facts, values) for query in queries)

    def _for(self, several: Any) -> Decide:
        """The query of the first line whose word is the case; none is a no."""
        lines: list[tuple[str, str, Decide]] = []
        for line in several if isinstance(several, list) else [several]:
            if not isinstance(line, tuple) or len(line) != 3 or line[0] not in ("permission", "resource", "vhost"):
                raise ValueError(f"a line like {{permission, write, Query}} is expected, not {line!r}")
            if line[0] not in self._variables:
                raise ValueError(f"{line[0]!r} can't be asked for here")
            lines.append((line[0], str(line[1]), self.query(line[2])))

        def decide(facts: LdapFacts, values: Values) -> bool:
            return next((query(facts, values) for name, value, query in lines if values[name] == value), False)

        return decide


def is_attribute(name: str) -> bool:
    """Whether it is the name of an attribute, and nothing else (RFC 4512, 1.4)."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}", name) is not None


def filled(text: str, values: Values, escape: Callable[[str], str] = str) -> str:
    """A text with its variables; what a value looks like is not looked at again."""
    return _VARIABLE.sub(lambda match: escape(values[match[1]]), text)


# --- users --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queries:
    """All queries of a broker. vhost None: only users whom the broker has a record of are let in."""

    vhost: Query | None
    resource: Query
    topic: Query
    tags: Mapping[str, Query]

    @property
    def groups(self) -> frozenset[tuple[str, bool]]:
        """(attribute, nested) of groups that a login reads."""
        if self.vhost is None:
            return frozenset()
        several: Sequence[Query] = (self.vhost, self.resource, self.topic, *self.tags.values())
        return frozenset().union(*(query.groups for query in several))


class LdapRights:
    """What an LdapUser may do in one virtual host."""

    __slots__ = ("_facts", "_query", "_values", "everything")

    def __init__(self, facts: LdapFacts, query: Query, values: Values) -> None:
        self._facts, self._query, self._values = facts, query, values
        self.everything = query.constant is True

    def allows(self, verb: str, kind: str, name: str) -> bool:
        return self._query.allows(self._facts, {**self._values, "permission": verb, "resource": kind, "name": name})

    def grants(self, verb: str) -> bool:
        return self._query.constant is not False


class LdapUser(OutsideUser):
    """Args: facts: what the login read; queries: of the broker. Its virtual host's query is there."""

    __slots__ = ("_facts", "_queries", "_rights")

    _facts: LdapFacts
    _queries: Queries
    _rights: dict[str, LdapRights | None]

    def __new__(cls, facts: LdapFacts, queries: Queries) -> LdapUser:
        made = super().__new__(cls, facts.user)
        made._facts, made._queries, made._rights = facts, queries, {}
        made.born = cls.birth()
        values = {"username": facts.user, "user_dn": facts.user_dn}
        made.tags = tuple(tag for tag in TAGS if tag in queries.tags and queries.tags[tag].allows(facts, values))
        return made

    def rights(self, vhost: str) -> LdapRights | None:
        if vhost not in self._rights:
            if len(self._rights) >= _KEPT:
                self._rights.clear()
            values, query = self._values(vhost), self._queries.vhost
            opens = query is not None and query.allows(self._facts, values)
            self._rights[vhost] = LdapRights(self._facts, self._queries.resource, values) if opens else None
        return self._rights[vhost]

    def _values(self, vhost: str) -> dict[str, str]:
        return {"username": self._facts.user, "user_dn": self._facts.user_dn, "vhost": vhost}

    def may_topic(self, vhost: str, verb: str, exchange: str, key: str) -> bool:
        values = {**self._values(vhost), "permission": verb, "resource": "topic", "name": exchange, "routing_key": key}
        return self.rights(vhost) is not None and self._queries.topic.allows(self._facts, values)

    def may_every_key(self, vhost: str, verb: str, exchange: str) -> bool:
        return self.rights(vhost) is not None and self._queries.topic.constant is True
