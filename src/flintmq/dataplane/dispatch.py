"""The calls of the data plane: for each name the permission that it needs, its work, its answer.

in: requests of the Flight service (head, payload), each on behalf of a user. out: answers, or errors that begin with a code.

V1  Every call goes through `dispatch`: the user's right to the virtual host is checked there, for all calls but `auth` and `token`; each
    method then asks Plane.authorize for what it touches.
V2  Nothing a peer sends ends in a trace at the peer: what is refused has its code; what is our own mistake is INTERNAL, and in the log.
V3  Reads of rows run on the node's actors, one per (subscription or browse, slice), with weights that give a subscription its share however
    many slices it has: they read messages, and many of them must not keep cold reads, streams and pulls waiting. The channel's thread
    waits for the answer, so a channel's calls keep their order. What decides (acquire, plan, commit, stages) runs on the channel's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq import __version__
from flintmq.access.hashes import hash_of
from flintmq.access.outside_user import OutsideUser
from flintmq.access.secret import Secret
from flintmq.access.token_user import TokenUser, is_token
from flintmq.broker.broker import Broker
from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.browse import Browses
from flintmq.dataplane.calls import CALLS
from flintmq.dataplane.logins import Logins
from flintmq.dataplane.shared import Caller, Plane, log, refusal_of
from flintmq.dataplane.snapshots import Pins, Snapshots
from flintmq.dataplane.stage_arguments import is_shared_stage
from flintmq.dataplane.stages import Stages
from flintmq.dataplane.streams import Streams
from flintmq.dataplane.subscriptions import Subscriptions
from flintmq.dataplane.tokens import Tokens
from flintmq.dataplane.wire import Channel, ChannelClosed, Payload, Refused, WireError
from flintmq.errors import PeerError, StoreError
from flintmq.guard import guarded
from flintmq.ports import Verb
from flintmq.scheduler.outcomes import Outcome, Space
from flintmq.scheduler.system import ActorSystem, Failed

if TYPE_CHECKING:
    from flintmq.dataplane.shared_sets import SharedSets
    from flintmq.dataplane.shared_stages import SharedStages

_Method = Callable[[Caller, Arguments], dict[str, Any]]
_Rows = tuple[dict[str, Any], Payload]
# weight of a whole subscription (the default of an actor), and slices that are told apart
_WEIGHT, _SLICES = 100, 65_536
# characters of a peer's address
_PEER_MAX = 255
# the first character of a token's subject: a user of the broker by its name, another one by the handle of its login
INSIDE, OUTSIDE = "u", "o"
# the one source of all logins over Flight
_SOURCE = "flight"
# an address that is not this machine's (RFC 5737)
_ELSEWHERE = "192.0.2.1"
_OVER = "the login is over: its token ended, or it was not used for long"


class Service:
    """See module. Args: broker: durable; store: its LogStore. `actors`: the node's ActorSystem once it runs; before, reads run on the
    caller's thread.

    Threading: `dispatch` and `serve` from any thread but I/O loops; `tick` from an I/O loop.
    """

    def __init__(self, broker: Broker, store: Any) -> None:
        self.plane = Plane(broker, store)
        self.actors: ActorSystem | None = None
        self.pins = Pins(self.plane)
        times = self.pins.times["messages"]
        self.subscriptions = Subscriptions(self.plane, times)
        self.stages = Stages(self.plane)
        self.browses = Browses(self.plane, self.pins, times)
        self.snapshots = Snapshots(self.plane, self.pins)
        self.streams = Streams(self.plane)
        self.logins = Logins(self.plane.limits, self.plane.clock)
        self.tokens = Tokens(self.plane.limits, self.plane.clock, self._hash_of)
        self.flight: Callable[[], dict[str, Any]] = dict
        self._making = threading.Lock()
        self._shared: SharedSets | None = None
        self.calls = 0
        self.refused = 0
        subscriptions, snapshots = self.subscriptions, self.snapshots
        self._stages_shared: SharedStages | None = None
        self._calls: dict[str, _Method] = {
            "sub.open": partial(self._reading, "open"),
            "sub.acquire": partial(self._reading, "acquire"),
            "sub.plan": partial(self._reading, "plan"),
            "sub.commit": partial(self._reading, "commit"),
            "sub.alive": partial(self._reading, "alive"),
            "sub.tail": partial(self._reading, "tail"),
            "sub.list": self.sub_list,
            "sub.status": partial(self._reading, "status"),
            "sub.reset": partial(self._reading, "reset"),
            "scope.open": partial(self._staging, "open"),
            "scope.status": partial(self._staging, "status"),
            "scope.list": partial(self._staging, "list_all"),
            "scope.forget": partial(self._staging, "forget"),
            "stage.begin": partial(self._staging, "begin"),
            "stage.prepare": partial(self._staging, "prepare"),
            "stage.commit": partial(self._staging, "commit"),
            "stage.abort": partial(self._staging, "abort"),
            "queue.match": subscriptions.match,
            "browse.open": self.browses.open,
            "browse.close": self.browses.close,
            "stream": self.streams.facts,
            "log.snapshot": snapshots.snapshot,
            "log.extend": snapshots.extend,
            "log.release": snapshots.release,
            "status": self.status,
        }

    # --- life -----------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """After a restart, when queues and transactions are back, before any listener opens: what was decided is completed.

        Raises: StoreError.
        """
        for outcome in (*self.subscriptions.restore(), *self.stages.restore()):
            self.plane.wait(outcome)

    def tick(self, now_ms: int) -> None:
        """A housekeeping pass. Never waits for the disk."""
        for part in (self.subscriptions.watch, self.browses.watch, self.stages.tick, self.pins.tick, self.streams.tick, self.logins.tick):
            guarded("housekeeping of the data plane", part, part)

    def stop(self) -> None:
        """The broker stops: every call that waits ends with UNAVAILABLE."""
        self.plane.stopping.set()

    # --- requests -------------------------------------------------------------------------------------------------------

    def serve(self, channel: Channel) -> None:
        """Answers the requests of a channel until it is closed, or something comes that is no frame."""
        try:
            while True:
                head, payload = channel.receive()
                answer, parts = self.dispatch(head, payload)
                try:
                    channel.send(answer, parts)
                except ValueError as error:  # larger than a frame may be
                    channel.send({"error": "LIMIT", "text": str(error)})
        except ChannelClosed:
            pass
        except WireError as error:
            log.error("the channel to the Flight service is closed: %s", error)
        finally:
            channel.close()

    def dispatch(self, head: dict[str, Any], payload: bytes | bytearray = b"") -> tuple[dict[str, Any], Payload]:
        """Answer head and payload of one request. Never raises."""
        self.calls += 1
        try:
            answer, parts = self._dispatch(head, payload)
            return {"ok": answer}, parts
        except Refused as error:
            return self._refused(head, error), b""
        except PeerError as error:
            return self._refused(head, refusal_of(error)), b""
        except StoreError as error:
            return {"error": "UNAVAILABLE", "text": str(error)}, b""
        except Exception:
            log.exception("internal error in the call %r of the data plane", head.get("call"))
            return {"error": "INTERNAL", "text": f"the broker failed in {head.get('call')!r}; its log says more"}, b""

    def _refused(self, head: dict[str, Any], refused: Refused) -> dict[str, Any]:
        self.refused += 1
        handle = head.get("outside")
        if refused.code == "FORBIDDEN" and handle is not None and self.logins.find(handle) is None:
            refused = Refused("UNAUTHENTICATED", _OVER)  # its token ended during the call, and with it what its user may
        return {"error": refused.code, "text": refused.text}

    def _dispatch(self, head: dict[str, Any], payload: bytes | bytearray) -> tuple[dict[str, Any], Payload]:
        name = head.get("call")
        if not isinstance(name, str):
            raise Refused("BAD_ARGUMENT", "a request has no call")
        arguments = Arguments(name, head)
        if name == "auth":
            return self.auth(head.get("user"), arguments), b""
        if name == "token":
            return self.token(arguments), b""
        caller = self._caller(head)
        if name == "block":
            stages = self.shared_stages() if is_shared_stage(arguments.peek("stage_id")) else self.stages
            return stages.block(caller, arguments, payload), b""
        if len(payload):
            raise Refused("BAD_ARGUMENT", f"{name} takes no payload")
        if name == "rows":
            if arguments.peek("kind") == "set" and self._is_shared(caller, arguments):
                arguments.ignore("kind")
                return self.shared_sets().rows(caller, arguments)  # it waits for the engine, which no actor does
            return self._on_actor(caller, head, lambda: self.rows(caller, arguments))
        method = self._calls.get(name)
        if method is None:
            raise Refused("UNKNOWN_CALL", f"there is no call {name[:80]!r}")
        if CALLS[name].administrators and not self.plane.is_administrator(caller):
            raise Refused("FORBIDDEN", f"{name} needs the tag administrator, which user '{caller.user}' has not")
        return method(caller, arguments), b""

    def _caller(self, head: dict[str, Any]) -> Caller:
        user, vhost = head.get("user"), head.get("vhost", "/")
        if not isinstance(user, str) or not isinstance(vhost, str):
            raise Refused("BAD_ARGUMENT", "user and vhost are names")
        if (handle := head.get("outside")) is not None:
            login = self.logins.find(handle)
            if login is None or login != user:
                raise Refused("UNAUTHENTICATED", _OVER)
            user = login
        caller = Caller(user, vhost)
        self.plane.vhost(caller)
        self.plane.check_grants(caller, *Verb)
        return caller

    def _on_actor(self, caller: Caller, head: dict[str, Any], work: Callable[[], _Rows]) -> _Rows:
        """Runs a read as a request of its actor (V3). The head is not checked yet: what is not as it must be shares an actor."""
        if self.actors is None:
            return work()
        subject = head.get("sub_id") or head.get("id")
        number, slices = head.get("slice"), head.get("slices")
        reader = hash((caller.vhost, subject)) % 2**64 if isinstance(subject, str) else 0
        number = number if isinstance(number, int) and 0 <= number < _SLICES else 0
        slices = slices if isinstance(slices, int) and 1 <= slices <= _SLICES else 1
        try:
            result: _Rows = self.actors.call(Space.FLIGHT, reader, number, work, weight=max(1, _WEIGHT // slices))
        except Failed as error:
            if error.outcome is Outcome.BUSY:
                raise Refused("BUSY", "too many reads at once") from None
            raise Refused("UNAVAILABLE", "the broker stops") from None
        return result

    def _is_shared(self, caller: Caller, arguments: Arguments) -> bool:
        """Whether a call about a subscription is about one on shared queues, or may be."""
        if self.plane.broker.shared is None:
            return False
        sub_id, name, queues = (arguments.peek(one) for one in ("sub_id", "name", "queues"))
        if sub_id is not None:
            return not self.subscriptions.knows(caller.vhost, sub_id=sub_id)
        if not isinstance(name, str) or self.subscriptions.knows(caller.vhost, name):
            return False
        if isinstance(queues, list):
            return any(self.plane.is_shared(caller.vhost, queue) for queue in queues)
        return arguments.peek("pattern") is None

    def shared_sets(self) -> SharedSets:
        """A node that has no shared queue does not load what they are made of."""
        with self._making:
            if self._shared is None:
                from flintmq.dataplane.shared_sets import SharedSets

                self._shared = SharedSets(self.plane)
            return self._shared

    def shared_stages(self) -> SharedStages:
        """As `shared_sets`."""
        with self._making:
            if self._stages_shared is None:
                from flintmq.dataplane.shared_stages import SharedStages

                self._stages_shared = SharedStages(self.plane)
            return self._stages_shared

    def _reading(self, call: str, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.*: of the subscriptions of this node, or of those on shared queues."""
        subscriptions = self.shared_sets() if self._is_shared(caller, arguments) else self.subscriptions
        answer: dict[str, Any] = getattr(subscriptions, call)(caller, arguments)
        return answer

    def _staging(self, call: str, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """scope.* and stage.*: of this node, or of shared queues."""
        ids = arguments.peek("stage_ids")
        shared = arguments.boolean("shared", False) or is_shared_stage(arguments.peek("stage_id"))
        shared = shared or (isinstance(ids, list) and any(map(is_shared_stage, ids)))
        answer: dict[str, Any] = getattr(self.shared_stages() if shared else self.stages, call)(caller, arguments)
        return answer

    def sub_list(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.list: those of this node, and those on shared queues, while their engine answers."""
        answer = self.subscriptions.list_all(caller, arguments)
        if self.plane.broker.shared is not None:
            try:
                answer["subscriptions"] += self.shared_sets().list_all(caller)
            except Refused as refused:
                log.info("subscriptions on shared queues are not listed: %s", refused)
        return answer

    def rows(self, caller: Caller, arguments: Arguments) -> tuple[dict[str, Any], Payload]:
        """rows: of a ticket, with first and count."""
        kind = arguments.choice("kind", ("set", "browse"))
        if kind == "set":
            return self.subscriptions.rows(caller, arguments)
        return self.browses.rows(caller, arguments)

    def auth(self, user: object, arguments: Arguments) -> dict[str, Any]:
        """auth: {user, password} -> user, tags, token; `loopback_only`: the service must not let this user in from elsewhere; `outside`:
        the handle of one whom a token or a directory named.

        `peer`: address of the client, when the service leaves that to us; `source`: where the password comes from, for the line of checks.
        """
        password = arguments.raw("password")
        peer = arguments.text("peer", _PEER_MAX, "")
        source = arguments.text("source", _PEER_MAX, "")
        arguments.done()
        limits = self.plane.limits
        secret = Secret(password) if isinstance(password, str) else Secret("")
        by_token = self.plane.broker.tokens is not None and is_token(secret)
        if not isinstance(user, str) or not (by_token or user) or len(user) > limits.login_name_max:
            raise Refused("BAD_ARGUMENT", f"auth: user must be a name of at most {limits.login_name_max} characters")
        if not isinstance(password, str) or (len(password) > limits.login_password_max and not by_token):
            raise Refused("BAD_ARGUMENT", f"auth: password must be a string of at most {limits.login_password_max} characters")
        try:
            login = self._logged_in("" if by_token else user, secret, (peer, source or _SOURCE), by_token)
        except Refused as error:
            if error.code == "UNAUTHENTICATED":
                self.plane.broker.audit.refused("" if by_token else user, f"login over Flight: {error.text}", peer or source)
                error = Refused("UNAUTHENTICATED", "wrong user or password")
            raise error from None
        record = self.plane.broker.users.get(login)
        answer = self._identity(login)
        subject = OUTSIDE + answer["outside"] if "outside" in answer else INSIDE + login
        return {**answer, "tags": [] if record is None else list(record.tags), "token": self.tokens.create(subject)}

    def _logged_in(self, user: str, secret: Secret, origin: tuple[str, str], by_token: bool) -> str:
        """The user whom a password, or a token, lets in: an OutsideUser is one whom the broker has no record of.

        Args: origin: the peer's address for the rule of this machine's users, and whom the line of checks takes it for.
        Raises: Refused UNAUTHENTICATED, whose text is for the audit alone; BUSY, UNAVAILABLE.
        """
        users, tokens = self.plane.broker.users, self.plane.broker.tokens
        peer, where = origin
        if by_token:
            known = tokens.cached(secret) or self._checked(lambda answer: tokens.submit(secret, where, answer))
            if not isinstance(known, TokenUser):
                raise Refused("UNAUTHENTICATED", str(known))
            return known
        if users.refused_from(user, peer):
            raise Refused("UNAUTHENTICATED", f"user '{user}' can only connect via localhost")
        login = users.login_cached(user, secret) or self._checked(lambda answer: users.submit_login(user, secret, answer, where))
        if not isinstance(login, str):
            raise Refused("UNAUTHENTICATED", "wrong user or password")
        if login != user and users.refused_from(login, peer):
            raise Refused("UNAUTHENTICATED", f"user '{login}' can only connect via localhost")
        return login

    def _identity(self, user: str) -> dict[str, Any]:
        """What the service is told of a user that was let in."""
        answer = {"user": str(user), "loopback_only": self.plane.broker.users.refused_from(user, _ELSEWHERE)}
        if isinstance(user, OutsideUser):
            answer["outside"] = self.logins.enter(user)
        return answer

    def token(self, arguments: Arguments) -> dict[str, Any]:
        """token: {token} -> user, loopback_only, outside: whose token it is. Raises: Refused UNAUTHENTICATED, also for one that is gone."""
        token = arguments.raw("token")
        arguments.done()
        subject = self.tokens.whose(token) if isinstance(token, str) else None
        user = None if subject is None else self.logins.find(subject[1:]) if subject[0] == OUTSIDE else subject[1:]
        if user is None:
            raise Refused("UNAUTHENTICATED", "the token is wrong or too old")
        return self._identity(user)

    def _hash_of(self, subject: str) -> str | None:
        """For Tokens: a subject is a mark and a name or a handle."""
        if subject[:1] == OUTSIDE:
            return None if self.logins.find(subject[1:]) is None else ""
        record = self.plane.broker.users.get(subject[1:]) if subject[:1] == INSIDE else None
        return None if record is None else hash_of(record.password_hash)

    def _checked(self, submit: Callable[[Callable[[Any], None]], Any]) -> Any:
        """Waits for a line of checks, where a peer's address stands for it as over AMQP and HTTP."""
        answered = threading.Event()
        result: list[Any] = [None]

        def answer(good: Any) -> None:
            result[0] = good
            answered.set()

        try:
            check = submit(answer)
        except RuntimeError:
            raise Refused("UNAVAILABLE", "the broker stops") from None
        if not answered.wait(self.plane.limits.password_check_s):
            check.cancel()
        good = result[0]
        if good is None:
            raise Refused("BUSY", "too many logins at once")
        return good

    def status(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """status: version, store, figures; of queues that sets hold messages of, those the caller may read."""
        arguments.done()
        store = self.plane.store
        return {
            "version": __version__,
            "cluster": "" if self.plane.broker.shared is None else self.plane.broker.shared.identity,
            "store": {"uuid": bytes(store.messages.store_uuid).hex(), "directory": store.directory},
            "flight": self.flight(),
            "calls": self.calls,
            "refused": self.refused,
            **self.subscriptions.counts(),
            **self.stages.counts(),
            **self.pins.counts(),
            **self.streams.counts(),
            "queues": self.queues(caller),
        }

    def figures(self) -> dict[str, Any]:
        """For metrics, whoever asks: nothing of it names what a user may not see but subscriptions, users and virtual hosts."""
        return {
            "subscriptions": self.subscriptions.figures(),
            **self.stages.figures(),
            **self.pins.counts(),
            "calls": self.calls,
            "refused": self.refused,
            "flight": self.flight(),
        }

    def queues(self, caller: Caller) -> dict[str, dict[str, int]]:
        """Queue -> ready, unacked, prepared_by_pipeline (a part of unacked): of queues that prepared sets hold messages of."""
        queues_by_name = {}
        for name, prepared in sorted(self.subscriptions.prepared_by_queue(caller.vhost).items()):
            if not self.plane.may_read(caller, [name]):
                continue
            try:
                core = self.plane.queue(caller.vhost, name).core
            except Refused:
                continue
            queues_by_name[name] = {"ready": core.ready_count(), "unacked": core.unacked_count(), "prepared_by_pipeline": prepared}
        return queues_by_name
