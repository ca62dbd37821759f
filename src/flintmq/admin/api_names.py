"""RabbitMQ's API: queues, exchanges, bindings: what is there, and declare, delete, bind, purge.

in: calls. out: what the virtual hosts have, with counters that exist anyway; verbs of the virtual hosts, with AMQP's permissions.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_to_bytes

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call, check_table, flags_of, nothing, waited
from flintmq.admin.api_lists import KEYS_PIECE, Listing, in_order, listed, one
from flintmq.admin.api_schemas import BODY_ACTION, BODY_BINDING, BODY_EXCHANGE, BODY_QUEUE
from flintmq.admin.arguments import path_name
from flintmq.admin.counts import FLOWS, MESSAGES, add_samples, counted, head_timestamp, queue_stats, sums_of
from flintmq.admin.forwarding import at_owner
from flintmq.admin.http_refusals import HttpError, bad, missing, not_found
from flintmq.admin.json_out import Rows
from flintmq.admin.operations import Access, Operation, rabbit
from flintmq.broker import sweeps
from flintmq.broker.replay import replay
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import Verb, freeze
from flintmq.routing.binding import EXCHANGE, QUEUE
from flintmq.routing.exchange import Binding
from flintmq.vhost.arguments import SHARED, effective

# how RabbitMQ writes an empty routing key in a path
_EMPTY = "~"
# what clients take for steps in a path (admin.arguments.path_name)
_STEPS = (".", "..")
# bindings that are matched in one piece: a hash of arguments takes up to 60 us
_MATCHED = 50
# characters of a hash of arguments
_DIGEST = 22


def shown(name: str) -> str:
    """A name that AMQP let in with bytes that are no UTF-8, as UTF-8 can have it."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# --- queues -----------------------------------------------------------------------------------------------------------------


async def sorted_names(call: Call, kind: str) -> list[Any]:
    """Queues, or exchanges, of the virtual hosts of the call by name. The order is kept until a definition changes: a list of 10,000 queues
    that is polled costs its page."""
    ordered: list[Any] = []
    for vhost in call.vhosts():
        known = call.app.orders.get((vhost, kind))
        version = call.broker.routes.version
        if known is None or known[0] is not version:
            things = vhost.queues if kind == QUEUE else vhost.exchanges
            known = version, await in_order(things.values(), attrgetter("name"))
            call.app.orders[vhost, kind] = known
            for gone in [key for key in call.app.orders if key[0].deleted]:
                del call.app.orders[gone]
        ordered += known[1]
    return ordered


def show_queue(call: Call, queue: Any, full: bool = True) -> dict[str, Any]:
    """Args: full: with counters and rates."""
    policy, operator, definition = None, None, {}
    vhost = call.broker.vhosts.get(queue.vhost)
    if vhost is not None and vhost.policies:
        policies = vhost.policies.of(QUEUE, queue.name, queue.policy.queue_type)
        policy, operator = (None if one is None else one.name for one in policies)
        definition = vhost.policies.definition(QUEUE, queue.name, queue.policy.queue_type)
    working, ignored = effective(queue.arguments, queue.policy) if queue.arguments else ([], [])
    value = {
        "name": shown(queue.name),
        "vhost": queue.vhost,
        "type": queue.policy.queue_type,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "arguments": queue.arguments,
        "effective_arguments": [shown(name) for name in working],
        "ignored_arguments": [shown(name) for name in ignored],
        "node": call.app.node_name,
        "state": "paused" if queue.queue_id in call.broker.paused else "running",
        "policy": policy,
        "operator_policy": operator,
        "effective_policy_definition": definition,
    }
    if full:
        _count(call, queue, value)
    if call.broker.is_window(queue):
        _count_elsewhere(call, queue, value)
    return value


def _count_elsewhere(call: Call, queue: Any, value: dict[str, Any]) -> None:
    """What the queue's owner said last."""
    ready, consumers, owner = call.broker.shared.last_counts(queue.queue_id)
    value["node"] = owner
    if "messages" in value:
        value |= {"messages": ready, "messages_ready": ready, "consumers": consumers}


def _count(call: Call, queue: Any, value: dict[str, Any]) -> None:
    core, rates = queue.core, call.app.rates
    sums = {"ready": core.ready_count(), "unacked": core.unacked_count()}
    value |= counted(rates, ("lengths", queue.queue_id), sums_of(MESSAGES, sums))
    if queue.policy.keeps_letters:
        value["messages_dlx"], value["message_bytes_dlx"] = call.broker.letters.waiting(queue)
    value["consumers"] = core.consumer_count()
    ready, unacked = core.ready_bytes(), core.unacked_bytes()
    value |= {"message_bytes": ready + unacked, "message_bytes_ready": ready, "message_bytes_unacknowledged": unacked}
    value["message_bytes_ram"] = value["memory"] = core.resident_bytes
    value["message_stats"] = counted(rates, ("stats", queue.queue_id), queue_stats(core))
    value["head_message_timestamp"] = head_timestamp(core)
    idle_s = call.app.sampler.idle_since_s(queue)
    if idle_s is not None:
        value["idle_since"] = datetime.fromtimestamp(idle_s, UTC).isoformat(timespec="milliseconds")
    if queue.exclusive_owner is not None:
        handler = call.broker.connections.get(queue.exclusive_owner)
        if handler is not None:
            owner = {"name": handler.name, "peer_host": handler.peer_host, "peer_port": handler.peer_port}
            value["owner_pid_details"] = owner
    if queue.policy.single_active_consumer:
        with call.broker.lock:
            active = call.broker.active.get(queue.queue_id)
        value["single_active_consumer_tag"] = None if active is None else active.tag


def _flow(name: str, queue: Any) -> int:
    return int(queue.core.flows()[name])


_KEYS: dict[str, Callable[[Any], Any]] = {
    "name": lambda queue: queue.name,
    "vhost": lambda queue: queue.vhost,
    "type": lambda queue: queue.policy.queue_type,
    "durable": lambda queue: queue.durable,
    "messages": lambda queue: queue.core.ready_count() + queue.core.unacked_count(),
    "messages_ready": lambda queue: queue.core.ready_count(),
    "messages_unacknowledged": lambda queue: queue.core.unacked_count(),
    "message_bytes_ready": lambda queue: queue.core.ready_bytes(),
    "message_bytes": lambda queue: queue.core.ready_bytes() + queue.core.unacked_bytes(),
    "message_bytes_unacknowledged": lambda queue: queue.core.unacked_bytes(),
    "consumers": lambda queue: queue.core.consumer_count(),
    "memory": lambda queue: queue.core.resident_bytes,
    "message_stats.publish": lambda queue: queue.core.enqueued_total(),
    "message_stats.deliver_get": lambda queue: queue.core.delivered_total(),
    **{f"message_stats.{name}": partial(_flow, name) for name in FLOWS},
}


async def queues(call: Call) -> Response:
    full = call.query.get("disable_stats") != "true"
    totals = call.query.get("enable_queue_totals") == "true"

    def show(queue: Any) -> dict[str, Any]:
        value = show_queue(call, queue, full)
        if not full and totals:
            ready, unacked = queue.core.ready_count(), queue.core.unacked_count()
            value |= {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
        return value

    def rate(name: str, queue: Any) -> float | None:
        stats = counted(call.app.rates, ("stats", queue.queue_id), queue_stats(queue.core))
        return stats[f"{name}_details"]["rate"]  # type: ignore[no-any-return]

    by_rate = {f"message_stats.{name}_details.rate": partial(rate, name) for name in ("publish", "deliver_get")}
    return await listed(Listing(await sorted_names(call, QUEUE), show, attrgetter("name"), _KEYS | by_rate), call.query)


def queue_of(call: Call) -> Any:
    """The queue of the path. Raises: HttpError 404."""
    queue = call.vhost().queues.get(call.name("queue"))
    if queue is None:
        raise missing("queue", call.name("queue"), call.name("vhost"))
    return queue


async def queue(call: Call) -> Response:
    shown_queue = queue_of(call)
    value = show_queue(call, shown_queue)
    with call.broker.lock:
        consumers = list(call.broker.consumers.get(shown_queue.queue_id, ()))
    add_samples(call.query, call.app.sampler.queues.get(shown_queue.queue_id), value, value["message_stats"])
    value["consumer_details"] = Rows(consumers, call.app.show_consumer)
    return one(value | {"incoming": [], "deliveries": []}, call.query)


async def put_queue(call: Call) -> Response:
    vhost, name, value = _vhost_to_change(call), call.name("queue"), await call.json()
    limits = call.app.limits
    arguments = check_table(value.get("arguments") or {}, limits.table_depth_max, limits.table_fields_max)
    named = arguments.get("x-dead-letter-exchange")
    asked = named if isinstance(named, str) else None
    new = name not in vhost.queues
    call.authorize(vhost, "queue.declare", queue=name, dead_letter_exchange=asked if new else None)
    flags = flags_of(value, "durable", "auto_delete")
    verb = vhost.declare_queue(
        name,
        **flags,
        arguments=arguments,
        allow=partial(call.authorize, vhost, "queue.declare", queue=name, dead_letter_exchange=asked),
    )
    await declare_shared(call, vhost, name, arguments, flags)
    queue = await call.perform(vhost, verb)
    if queue.policy.is_shared and call.broker.shared is not None:
        await waited(lambda done: call.broker.shared.when_served(queue.queue_id, partial(done, None)))
    return nothing(new)


async def declare_shared(call: Call, vhost: Any, name: str, arguments: dict[str, Any], flags: dict[str, bool]) -> None:
    """A shared queue is made in the engine before it is declared here."""
    if arguments.get("x-queue-type") != SHARED or name in vhost.queues:
        return
    shared = call.broker.shared_service()
    if shared is not None:
        properties = {"exclusive": False, **flags}
        await waited(partial(shared.declare, vhost, name, arguments, properties))


def _vhost_to_change(call: Call) -> Any:
    vhost = call.broker.vhosts.get(call.name("vhost"))
    if vhost is None:
        raise missing("vhost", call.name("vhost"))
    return vhost


async def delete_queue(call: Call) -> Response:
    vhost, queue = call.vhost(), queue_of(call)
    call.authorize(vhost, "queue.delete", queue=queue.name)
    only = {name.replace("-", "_"): call.query.get(name) == "true" for name in ("if-unused", "if-empty")}
    shared = call.broker.shared
    if queue.policy.is_shared and shared is not None:
        if only["if_unused"] and queue.core.consumer_count():
            raise bad(f"{vhost.describe('queue', queue.name)} in use")
        ask = partial(shared.delete_in_engine, vhost.name, queue.name, only.pop("if_empty"), if_unused=only["if_unused"])
        await waited(lambda done: ask(done=done))
    await call.perform(vhost, vhost.delete_queue(queue.name, connection_id=0, **only))
    return nothing()


async def purge_queue(call: Call) -> Response:
    vhost, queue = call.vhost(), queue_of(call)
    call.authorize(vhost, "queue.purge", queue=queue.name)
    core = vhost.queue_to_purge(queue.name, connection_id=0).core
    shared = call.broker.shared
    if call.broker.is_window(queue) and shared is not None:
        await waited(partial(shared.purge, queue.queue_id))
        return nothing()
    await purge(call, core)
    return nothing()


async def pause_queue(call: Call) -> Response:
    return await _pause(call, True)


async def resume_queue(call: Call) -> Response:
    return await _pause(call, False)


def _next_call(loop: Any, done: Any) -> None:
    """`done` behind what other threads have asked of the loop."""
    loop.call(partial(done, None, None))


async def _pause(call: Call, paused: bool) -> Response:
    """Deliveries rest, or go on. It takes the right to delete the queue."""
    vhost, queue = call.vhost(), queue_of(call)
    call.authorize(vhost, "queue.delete", queue=queue.name)
    vhost.queue(queue.name, 0)
    elsewhere = await at_owner(call, queue)
    if elsewhere is not None:
        return elsewhere
    await call.change("pause_queue", vhost.name, queue.name, paused)
    for loop in call.broker.loops:  # where consumers were told: what is published after the answer finds them at rest
        await waited(partial(_next_call, loop))
    return nothing()


async def purge(call: Call, core: Any) -> None:
    """Ends all ready messages of a queue, in slices of a loop; it is on disk when this returns."""

    def begin(done: Any) -> None:
        def swept(sweep: Any) -> None:
            log = call.broker.log
            if sweep.lsn and log is not None:
                log.when_durable(sweep.lsn, partial(done, None, None))
            else:
                done(None, None)

        call.broker.loops.in_slices(lambda: _sweep(call, core, swept))

    await waited(begin)


async def settled(call: Call) -> None:
    """Returns when all that the caller's thread, or one that it waited for, has ended is ended on disk, too."""
    log = call.broker.log
    if log is not None:
        await waited(lambda done: log.when_durable(log.tail_lsn(), partial(done, None, None)))


def _sweep(call: Call, core: Any, swept: Any) -> bool:
    """On a loop: the sweep's own slices follow."""
    sweeps.run(call.broker, core, False, swept)
    return True


async def queue_actions(call: Call) -> Response:
    """sync and cancel_sync are for mirrors, which are not there: nothing is to be done."""
    queue_of(call)
    action = (await call.json()).get("action")
    if action not in ("sync", "cancel_sync"):
        raise bad(f"unknown action: {str(action)[:80]}")
    return nothing()


# --- exchanges --------------------------------------------------------------------------------------------------------------


def _show_exchange(call: Call, vhost: Any, exchange: Any) -> dict[str, Any]:
    policy = vhost.policies.of(EXCHANGE, exchange.name)[0] if vhost.policies else None
    return {
        "name": shown(exchange.name),
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
        "policy": None if policy is None else policy.name,
        "user_who_performed_action": "rmq-internal" if exchange.name.startswith("amq.") or not exchange.name else "",
    }


async def exchanges(call: Call) -> Response:
    items = [(vhost, one) for vhost in call.vhosts() for one in await in_order(vhost.exchanges.values(), attrgetter("name"))]
    keys = {"name": lambda item: item[1].name, "vhost": lambda item: item[0].name, "type": lambda item: item[1].kind}
    return await listed(Listing(items, lambda item: _show_exchange(call, *item), lambda item: item[1].name, keys), call.query)


def _exchange_of(call: Call) -> tuple[Any, Any]:
    vhost = call.vhost()
    exchange = vhost.exchanges.get(call.exchange_name())
    if exchange is None:
        raise missing("exchange", call.exchange_name(), vhost.name)
    return vhost, exchange


async def exchange(call: Call) -> Response:
    vhost, shown_exchange = _exchange_of(call)
    return one(_show_exchange(call, vhost, shown_exchange) | {"incoming": [], "outgoing": []}, call.query)


async def put_exchange(call: Call) -> Response:
    vhost, name, value = _vhost_to_change(call), call.exchange_name(), await call.json()
    limits = call.app.limits
    arguments = check_table(value.get("arguments") or {}, limits.table_depth_max, limits.table_fields_max)
    named = arguments.get("alternate-exchange")
    asked = named if isinstance(named, str) else None
    new = name not in vhost.exchanges
    call.authorize(vhost, "exchange.declare", exchange=name, alternate_exchange=asked if new else None)
    allow = partial(call.authorize, vhost, "exchange.declare", exchange=name, alternate_exchange=asked)
    flags = flags_of(value, "durable", "auto_delete", "internal")
    kind = "direct" if value.get("type") is None else value["type"]
    await call.perform(vhost, vhost.declare_exchange(name, kind, arguments=arguments, allow=allow, **flags))
    return nothing(new)


async def delete_exchange(call: Call) -> Response:
    vhost, exchange = _exchange_of(call)
    call.authorize(vhost, "exchange.delete", exchange=exchange.name)
    await call.perform(vhost, vhost.delete_exchange(exchange.name, if_unused=call.query.get("if-unused") == "true"))
    return nothing()


# --- bindings ---------------------------------------------------------------------------------------------------------------


def _quoted(key: bytes) -> str:
    """A routing key in a properties_key: as RabbitMQ quotes it, so that "~" ends it."""
    return quote_plus(key).replace("~", "%7E")


def properties_key(key: bytes, frozen: Any) -> str:
    """What names a binding among those of its two ends: the key, and a hash of the arguments where there are some. Different bindings have
    different ones. Args: frozen: the arguments as Binding.identity has them, None: there are none."""
    if frozen is None:
        return _quoted(key) or _EMPTY
    digest = hashlib.blake2b(repr(frozen).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return f"{_quoted(key)}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _key_of(segment: str) -> str:
    """The properties_key that a segment of the path says: percent-encoded, as every name in a path; one that was not encoded is taken where
    it can't be meant as an encoded one, as RabbitMQ takes it. One segment says one key, whatever bindings there are."""
    try:
        decoded = path_name(segment, "binding") if len(segment) <= len("%ff..") else unquote(segment, errors="strict")
    except (HttpError, UnicodeDecodeError):
        return segment
    key, _, digest = decoded.partition("~")
    is_one = decoded == _EMPTY or (
        key.isascii() and _quoted(unquote_to_bytes(key.replace("+", " "))) == key and (not digest or len(digest) == _DIGEST)
    )
    return decoded if is_one else segment


def _binding(vhost: str, source: str, kind: str, destination: str, key: bytes, arguments: Any, properties: str) -> dict[str, Any]:
    return {
        "source": shown(source),
        "vhost": vhost,
        "destination": shown(destination),
        "destination_type": kind,
        "routing_key": shown(key.decode("utf-8", "surrogateescape")),
        "arguments": arguments,
        "properties_key": properties,
    }


def _show_binding(vhost: Any, binding: Binding | Any) -> dict[str, Any]:
    if not isinstance(binding, Binding):  # a queue: its place in the default exchange
        key = binding.name.encode("utf-8", "surrogateescape")
        return _binding(vhost.name, "", QUEUE, binding.name, key, {}, properties_key(key, None))
    end = binding.destination
    args = binding.routing_key, binding.arguments, properties_key(binding.routing_key, binding.identity[4])
    return _binding(vhost.name, binding.source.name, end.destination_kind, end.name, *args)


async def _bindings_of(vhost: Any) -> list[Any]:
    """All of a virtual host, the implicit ones first: in pieces, each of which is a copy of a table."""
    rows = list(vhost.queues.values())
    for exchange_ in list(vhost.exchanges.values()):
        if exchange_.bindings:
            rows += exchange_.bindings.values()
            await asyncio.sleep(0)
    return rows


async def bindings(call: Call) -> Response:
    items: list[tuple[Any, Any]] = []
    for vhost in call.vhosts():
        rows = await _bindings_of(vhost)
        for start in range(0, len(rows), KEYS_PIECE):
            items += [(vhost, one) for one in rows[start : start + KEYS_PIECE]]
            await asyncio.sleep(0)
    return await listed(Listing(items, lambda item: _show_binding(*item), lambda item: ""), call.query, paged=False)


async def queue_bindings(call: Call) -> Response:
    vhost, queue = call.vhost(), queue_of(call)
    own = [queue, *(queue.bindings or {}).values()]
    return await listed(Listing(own, partial(_show_binding, vhost), lambda item: ""), call.query, paged=False)


async def exchange_bindings(call: Call) -> Response:
    vhost, exchange = _exchange_of(call)
    end = call.name("end")
    if end == "source":
        own = list(vhost.queues.values()) if not exchange.name else list(exchange.bindings.values())
    elif end == "destination":
        own = list(exchange.incoming.values())
    else:
        raise not_found(f"'{end[:80]}' is no end of bindings: source or destination")
    return await listed(Listing(own, partial(_show_binding, vhost), lambda item: ""), call.query, paged=False)


def _between(call: Call) -> tuple[Any, str, str, str, list[Any]]:
    """(virtual host, source, kind of the destination, its name, bindings between the two)."""
    vhost, source = call.vhost(), call.exchange_name()
    kind = {"q": QUEUE, "e": EXCHANGE}.get(call.name("kind"))
    if kind is None:
        raise not_found(f"'{call.name('kind')[:80]}' is no kind of destination: q (queue) or e (exchange)")
    name = call.name("destination")
    exchange = vhost.exchanges.get(source)
    implicit = [vhost.queues[name]] if not source and kind == QUEUE and name in vhost.queues else []
    end = (vhost.queues if kind == QUEUE else vhost.exchanges).get(name)
    if exchange is None or end is None or (kind == EXCHANGE and exchange not in end.upstream):
        return vhost, source, kind, name, implicit
    # a queue knows its own bindings, which are fewer than those of an exchange
    known = (end.bindings or {}).values() if kind == QUEUE else exchange.bindings.values()
    own = [one for one in list(known) if one.source is exchange and one.destination is end]
    return vhost, source, kind, name, [*implicit, *own]


async def bindings_between(call: Call) -> Response:
    vhost, _, _, _, matching = _between(call)
    return await listed(Listing(matching, partial(_show_binding, vhost), lambda item: ""), call.query, paged=False)


async def put_binding(call: Call) -> Response:
    vhost, source, kind, name, _ = _between(call)
    value = await call.json()
    key = (value.get("routing_key") or "").encode("utf-8", "surrogateescape")
    if len(key) > 255:
        raise bad("'routing_key' has more than 255 bytes")
    limits = call.app.limits
    arguments = check_table(value.get("arguments") or {}, limits.table_depth_max, limits.table_fields_max)
    _authorize_binding(call, vhost, source, kind, name, key, unbind=False)
    if kind == QUEUE:
        new = await call.perform(vhost, vhost.bind_queue(name, source, key, arguments, connection_id=0))
    else:
        new = await call.perform(vhost, vhost.bind_exchange(name, source, key, arguments))
    if new:
        await waited(lambda done: replay(call.broker, call.broker.queue_limits.put, vhost, source, kind, name, lambda: done(None, None)))
    place = quote_plus(properties_key(key, freeze(arguments) if arguments else None))
    return Response(b"", 201, {"location": f"{quote(name, safe='')}/{'%FF' if place in _STEPS else ''}{place}"})


def _authorize_binding(call: Call, vhost: Any, source: str, kind: str, name: str, key: bytes, *, unbind: bool) -> None:
    word = "unbind" if unbind else "bind"
    if kind == QUEUE:
        call.authorize(vhost, f"queue.{word}", queue=name, exchange=source)
    else:
        call.authorize(vhost, f"exchange.{word}", destination=name, source=source)
    if not unbind:
        authorize_topic(call, vhost, Verb.READ, source, [key])


def authorize_topic(call: Call, vhost: Any, verb: Verb, exchange_name: str, keys: Iterable[bytes]) -> None:
    """As session.authorization.authorize_topic. Raises: PeerError 403."""
    call.broker.permissions.authorize_keys(call.caller.user, vhost, verb, exchange_name, keys)


async def _one_between(call: Call) -> tuple[Any, str, str, str, Any]:
    """In pieces: two ends may have very many bindings."""
    vhost, source, kind, name, matching = _between(call)
    wanted = _key_of(call.request.path_params["properties"])
    key = unquote_to_bytes(wanted.partition("~")[0].replace("+", " "))
    for start in range(0, len(matching), _MATCHED):
        for one_ in matching[start : start + _MATCHED]:
            frozen = one_.identity[4] if isinstance(one_, Binding) else None
            own = one_.routing_key if isinstance(one_, Binding) else one_.name.encode("utf-8", "surrogateescape")
            if own == key and properties_key(own, frozen) == wanted:
                return vhost, source, kind, name, one_
        await asyncio.sleep(0)
    raise not_found(f"no binding '{wanted[:255]}' from exchange '{source}' to {kind} '{name}' in vhost '{vhost.name}'")


async def binding(call: Call) -> Response:
    vhost, _, _, _, one_binding = await _one_between(call)
    return answer(_show_binding(vhost, one_binding))


async def delete_binding(call: Call) -> Response:
    vhost, source, kind, name, one_binding = await _one_between(call)
    if not isinstance(one_binding, Binding):
        raise PeerError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    _authorize_binding(call, vhost, source, kind, name, one_binding.routing_key, unbind=True)
    if kind == QUEUE:
        verb = vhost.unbind_queue(name, source, one_binding.routing_key, one_binding.arguments, connection_id=0)
    else:
        verb = vhost.unbind_exchange(name, source, one_binding.routing_key, one_binding.arguments)
    await call.perform(vhost, verb)
    return nothing()


def operations() -> list[Operation]:
    """The rows of this module."""
    ends = "bindings/{vhost}/e/{exchange}/{kind}/{destination}"
    return [
        rabbit("GET", "queues", "look", queues),
        rabbit("GET", "queues/{vhost}", "vhost.use", queues),
        rabbit("GET", "queues/{vhost}/{queue}", "vhost.use", queue),
        rabbit("PUT", "queues/{vhost}/{queue}", "vhost.use", put_queue, BODY_QUEUE),
        rabbit("DELETE", "queues/{vhost}/{queue}", "vhost.use", delete_queue),
        rabbit("DELETE", "queues/{vhost}/{queue}/contents", "vhost.use", purge_queue),
        rabbit("PUT", "queues/{vhost}/{queue}/pause", Access.SERVICE, pause_queue),
        rabbit("PUT", "queues/{vhost}/{queue}/resume", Access.SERVICE, resume_queue),
        rabbit("POST", "queues/{vhost}/{queue}/actions", "vhost.use", queue_actions, BODY_ACTION),
        rabbit("GET", "queues/{vhost}/{queue}/bindings", "vhost.use", queue_bindings),
        rabbit("GET", "exchanges", "look", exchanges),
        rabbit("GET", "exchanges/{vhost}", "vhost.use", exchanges),
        rabbit("GET", "exchanges/{vhost}/{exchange}", "vhost.use", exchange),
        rabbit("PUT", "exchanges/{vhost}/{exchange}", "vhost.use", put_exchange, BODY_EXCHANGE),
        rabbit("DELETE", "exchanges/{vhost}/{exchange}", "vhost.use", delete_exchange),
        rabbit("GET", "exchanges/{vhost}/{exchange}/bindings/{end}", "vhost.use", exchange_bindings),
        rabbit("GET", "bindings", "look", bindings),
        rabbit("GET", "bindings/{vhost}", "vhost.use", bindings),
        rabbit("GET", ends, "vhost.use", bindings_between),
        rabbit("POST", ends, "vhost.use", put_binding, BODY_BINDING),
        rabbit("GET", f"{ends}/{{properties}}", "vhost.use", binding),
        rabbit("DELETE", f"{ends}/{{properties}}", "vhost.use", delete_binding),
    ]
