"""The methods of an open connection, except the hot ones: channel, exchange, queue, basic, confirm, tx.

in: decoded methods. out: changes in the virtual host and replies. Session.method cleans a method's names and looks its
function up in VERBS; each function calls `authorize` once for what it touches, does the work, replies.

V1  A name is cleaned (VERBS) before the verb sees it and never after: the name that is authorized is the name that is used.

Source: AMQP 0-9-1 specification 1.5 to 1.9; RabbitMQ's extensions and reply texts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq import ports
from flintmq.broker import sweeps
from flintmq.broker.records import ChannelState, Consumer
from flintmq.broker.routes import REPLY_TO
from flintmq.channel.selecting import Choice, parse_choice
from flintmq.channel.weights import CHANNEL_BYTES
from flintmq.digests import token
from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import encode_method
from flintmq.routing.binding import EXCHANGE, QUEUE
from flintmq.routing.exchange import erlang_term
from flintmq.session import late_answer, long_work, shared_queues, stream_consume
from flintmq.session.authorization import authorize, authorize_topic
from flintmq.session.late_answer import LateAnswer
from flintmq.vhost.arguments import check_consumer_timeout
from flintmq.vhost.names import generate_queue_name
from flintmq.vhost.policy import DEFAULT_POLICY

if TYPE_CHECKING:
    from flintmq.session.session_port import Session
    from flintmq.vhost.changes import Verb

BIND_OK = spec.QueueBindOk()
# how the reserved argument of channel.open begins that aims a channel of another node
AIMED = "q:"


def _channel(handler: Session, number: int) -> ChannelState:
    return handler.channels[number]


def _queue_name(handler: Session, number: int, name: str) -> str:
    """An empty name means the queue last declared on the channel (specification 1.7.2.1)."""
    if name:
        return name
    last = _channel(handler, number).last_queue
    if not last:
        raise PeerError(ReplyCode.NOT_FOUND, "no previously declared queue")
    return last


# --- channel ----------------------------------------------------------------------------------------------------------------


def channel_open(handler: Session, number: int, method: spec.ChannelOpen) -> None:
    _open_channel(handler, number, False)


def open_node_channel(handler: Session, number: int, reserved: bytes) -> None:
    """channel.open of another node. Args: reserved: the argument that clients leave empty, a shortstr: `q:` and the id of the shared queue
    that all messages of the channel go to. Raises: PeerError 404: this node does not own it; the channel is open then."""
    name = reserved[1:].decode("utf-8", "replace")
    _open_channel(handler, number, name.startswith(AIMED))
    if name.startswith(AIMED):
        handler.channels[number].aim = handler.vhost.aim(name.removeprefix(AIMED))


def _open_channel(handler: Session, number: int, aimed: bool) -> None:
    if number in handler.channels:
        raise PeerError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen", hard=True)
    # Channels are counted, whatever their numbers, as by RabbitMQ: aiormq gives channels that overlap ever higher ones, up to 65,535.
    if len(handler.channels) >= handler.channel_max:
        text = f"number of channels opened ({len(handler.channels)}) has reached the negotiated channel_max ({handler.channel_max})"
        raise PeerError(ReplyCode.NOT_ALLOWED, text)
    handler.broker.quotas.open_channel(handler.user)
    try:
        handler.connection.open_channel(number, aimed)
    except MemoryError:
        handler.broker.quotas.close_channels(handler.user, 1)
        raise
    handler.channels[number] = ChannelState(number)
    handler.memory.add(CHANNEL_BYTES)
    handler.broker.counters.channels_opened += 1
    handler.send(number, spec.ChannelOpenOk())


def channel_close(handler: Session, number: int, method: spec.ChannelClose) -> None:
    if number in handler.channels:
        handler.drop_channel(number, partial(handler.send, number, spec.ChannelCloseOk()), wait_for_ok=False)
    else:
        handler.connection.channel_closed(number)
        handler.send(number, spec.ChannelCloseOk())


def channel_close_ok(handler: Session, number: int, method: spec.ChannelCloseOk) -> None:
    if number not in handler.channels:
        handler.connection.channel_closed(number)


def channel_flow(handler: Session, number: int, method: spec.ChannelFlow) -> None:
    handler.connection.set_flow(number, method.active)
    handler.send(number, spec.ChannelFlowOk(method.active))


def ignore(handler: Session, number: int, method: Any) -> None:
    """A reply that needs nothing done (channel.flow-ok, basic.cancel-ok)."""


# --- exchange ---------------------------------------------------------------------------------------------------------------


def exchange_declare(handler: Session, number: int, method: spec.ExchangeDeclare) -> None:
    alternate, allow = None, None
    if not method.passive:
        # A user without write permission on the alternate must not reach it through an exchange of its own.
        named = method.arguments.get("alternate-exchange")
        alternate = named if isinstance(named, str) else None
    if alternate is not None and method.exchange in handler.vhost.exchanges:
        allow = partial(authorize, handler, "exchange.declare", exchange=method.exchange, alternate_exchange=alternate)
        alternate = None  # asked for when the verb has its turn, unless the exchange is there then, too
    authorize(
        handler,
        "exchange.declare-passive" if method.passive else "exchange.declare",
        exchange=method.exchange,
        alternate_exchange=alternate,
    )
    verb = handler.vhost.declare_exchange(
        method.exchange,
        method.type,
        passive=method.passive,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
        allow=allow,
    )
    handler.change(number, method, verb, _answer(handler, number, method.no_wait, spec.ExchangeDeclareOk))


def exchange_delete(handler: Session, number: int, method: spec.ExchangeDelete) -> None:
    authorize(handler, "exchange.delete", exchange=method.exchange)
    verb = handler.vhost.delete_exchange(method.exchange, if_unused=method.if_unused)
    handler.change(number, method, verb, _answer(handler, number, method.no_wait, spec.ExchangeDeleteOk))


def exchange_bind(handler: Session, number: int, method: spec.ExchangeBind) -> None:
    authorize(handler, "exchange.bind", destination=method.destination, source=method.source)
    authorize_topic(handler, ports.Verb.READ, method.source, [_key(method.routing_key)])
    verb = handler.vhost.bind_exchange(method.destination, method.source, _key(method.routing_key), method.arguments)
    answer = _answer(handler, number, method.no_wait, spec.ExchangeBindOk)
    answer = partial(late_answer.bound, handler, number, method.source, EXCHANGE, method.destination, answer)
    handler.change(number, method, verb, answer)


def exchange_unbind(handler: Session, number: int, method: spec.ExchangeUnbind) -> None:
    authorize(handler, "exchange.unbind", destination=method.destination, source=method.source)
    verb = handler.vhost.unbind_exchange(method.destination, method.source, _key(method.routing_key), method.arguments)
    handler.change(number, method, verb, _answer(handler, number, method.no_wait, spec.ExchangeUnbindOk))


def _answer(handler: Session, number: int, no_wait: bool, answer: Callable[[], spec.Method]) -> Callable[[Any], None]:
    """The answer to the method when the verb is over, unless the client does not wait for it."""

    def send(result: Any) -> None:
        if not no_wait:
            handler.send(number, answer())

    return send


def _key(routing_key: str) -> bytes:
    return routing_key.encode("utf-8", "surrogateescape")


# --- queue ------------------------------------------------------------------------------------------------------------------


def queue_declare(handler: Session, number: int, method: spec.QueueDeclare) -> None:
    name = method.queue or (_channel(handler, number).last_queue if method.passive else "")
    if name == REPLY_TO or (method.passive and name.startswith(REPLY_TO)):
        _declare_reply_queue(handler, number, name, method.no_wait)
        return
    dead_letter, allow = None, None
    if method.arguments and not method.passive:
        named = method.arguments.get("x-dead-letter-exchange")
        dead_letter = named if isinstance(named, str) else None
    if dead_letter is not None and name in handler.vhost.queues:
        allow = partial(authorize, handler, "queue.declare", queue=name, dead_letter_exchange=dead_letter)
        dead_letter = None  # asked for when the verb has its turn, unless the queue is there then, too
    # The broker makes the name before it asks: whoever may not configure amq.gen-... may not have a server-named queue either.
    server_name = "" if name or method.passive else generate_queue_name()
    authorize(
        handler,
        "queue.declare-passive" if method.passive else "queue.declare",
        queue=name or server_name,
        dead_letter_exchange=dead_letter,
    )
    if name and not handler.verbs:
        known = handler.vhost.declare_again(
            name,
            passive=method.passive,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=method.arguments,
            connection_id=handler.connection_id,
        )
        if known is not None:
            _declared(handler, number, method.no_wait, known)
            return
    verb = handler.vhost.declare_queue(
        name,
        passive=method.passive,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=method.arguments,
        connection_id=handler.connection_id,
        server_name=server_name,
        allow=allow,
    )
    answer = partial(_declared, handler, number, method.no_wait)
    if method.arguments and shared_queues.is_new(handler, name, method):
        served = shared_queues.served(handler, number, method.ID, answer)
        shared_queues.declare(handler, number, method, name or server_name, partial(handler.change, number, method, verb, served))
    else:
        handler.change(number, method, verb, answer)


def _declared(handler: Session, number: int, no_wait: bool, queue: Any) -> None:
    handler.broker.counters.queues_declared += 1
    _channel(handler, number).last_queue = queue.name
    if not no_wait and queue.policy.is_shared:
        answer = lambda ready, consumers: handler.send(number, spec.QueueDeclareOk(queue.name, ready, consumers))  # noqa: E731
        shared_queues.counted(handler, number, spec.QueueDeclare.ID, queue, answer)
    elif not no_wait:
        handler.send(number, spec.QueueDeclareOk(queue.name, queue.core.ready_count(), queue.core.consumer_count()))


def _declare_reply_queue(handler: Session, number: int, name: str, no_wait: bool) -> None:
    """Direct reply-to: a passive declare asks whether a requester is still there; the pseudo-queue itself always is, as on RabbitMQ."""
    is_there = (handler.vhost.name, name) in handler.broker.reply_queues
    if name != REPLY_TO and not is_there:
        raise PeerError(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{handler.vhost.name}'")
    if not no_wait:
        handler.send(number, spec.QueueDeclareOk(name, 0, 1))


def queue_bind(handler: Session, number: int, method: spec.QueueBind) -> None:
    name = method.queue or _queue_name(handler, number, "")
    # specification 1.7.2.3: both empty means the queue's own name
    key = _key(method.routing_key if method.queue or method.routing_key else name)
    authorize(handler, "queue.bind", queue=name, exchange=method.exchange)
    authorize_topic(handler, ports.Verb.READ, method.exchange, [key])
    simple = not handler.verbs and not late_answer.remembers(handler, method.exchange)
    if simple and handler.vhost.bind_at_once(name, method.exchange, key, method.arguments, handler.connection_id) is not None:
        if not method.no_wait:
            handler.connection.send(number, BIND_OK)
        return
    answer = _answer(handler, number, method.no_wait, spec.QueueBindOk)
    answer = partial(late_answer.bound, handler, number, method.exchange, QUEUE, name, answer)
    verb = handler.vhost.bind_queue(name, method.exchange, key, method.arguments, connection_id=handler.connection_id)
    handler.change(number, method, verb, answer)


def queue_unbind(handler: Session, number: int, method: spec.QueueUnbind) -> None:
    name = _queue_name(handler, number, method.queue)
    key = method.routing_key
    if not method.queue and not key:
        key = name
    authorize(handler, "queue.unbind", queue=name, exchange=method.exchange)
    verb = handler.vhost.unbind_queue(name, method.exchange, _key(key), method.arguments, connection_id=handler.connection_id)
    handler.change(number, method, verb, _answer(handler, number, False, spec.QueueUnbindOk))


def queue_purge(handler: Session, number: int, method: spec.QueuePurge) -> None:
    name = _queue_name(handler, number, method.queue)
    authorize(handler, "queue.purge", queue=name)
    queue = handler.vhost.queue_to_purge(name, connection_id=handler.connection_id)
    if handler.broker.is_window(queue):
        shared_queues.purge(handler, number, method, queue)
        return
    core = queue.core
    count = 0

    def answer() -> None:
        if not method.no_wait and number in handler.channels:
            handler.send(number, spec.QueuePurgeOk(count))

    def swept(sweep: Any) -> None:
        nonlocal count
        count = sweep.removed
        pending.finish_durable(sweep.lsn)

    pending = LateAnswer(handler, answer)
    sweeps.run(handler.broker, core, False, swept)
    pending.wait()


def queue_delete(handler: Session, number: int, method: spec.QueueDelete) -> None:
    name = _queue_name(handler, number, method.queue)
    authorize(handler, "queue.delete", queue=name)
    # Whoever deletes a queue that he consumes from is answered before his consumers are cancelled, as by RabbitMQ: py-amqp raises
    # ConsumerCancelled out of its wait for delete-ok otherwise.
    cancels: list[tuple[int, spec.Method]] = []
    answer = partial(_deleted, handler, number, method.no_wait, cancels)
    shared = None
    if handler.broker.shared is not None:
        known = handler.vhost.queues.get(name)
        if known is not None and known.policy.is_shared:
            shared = known
    # Whether a shared queue is empty is the engine's to say.
    if_empty = method.if_empty and shared is None
    verb = handler.vhost.delete_queue(name, if_unused=method.if_unused, if_empty=if_empty, connection_id=handler.connection_id)
    verb = _told_later(handler, cancels, verb)
    if shared is None:
        handler.change(number, method, verb, answer)
    else:
        shared_queues.delete(handler, number, method, shared, partial(handler.change, number, method, verb, answer))


def _told_later(handler: Session, cancels: list[tuple[int, spec.Method]], verb: Verb[int]) -> Verb[int]:
    """The verb; what it tells this connection's consumers waits in `cancels`."""
    failure: Exception | None = None
    while True:
        handler.after_answer = cancels
        try:
            step = verb.send(None) if failure is None else verb.throw(failure)
        except StopIteration as end:
            count: int = end.value
            return count
        finally:
            handler.after_answer = None
        failure = None
        try:
            yield step
        except Exception as error:
            failure = error


def _deleted(handler: Session, number: int, no_wait: bool, cancels: list[tuple[int, spec.Method]], count: int) -> None:
    if not no_wait:
        handler.send(number, spec.QueueDeleteOk(count))
    for channel, cancel in cancels:
        handler.send(channel, cancel)


# --- basic ------------------------------------------------------------------------------------------------------------------


def basic_qos(handler: Session, number: int, method: spec.BasicQos) -> None:
    if method.prefetch_size:
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    # Celery (py-amqp) changes the prefetch of running consumers with global=false; others follow RabbitMQ, where it counts for
    # consumers that come later. global=true is always one limit for the channel.
    live = handler.is_py_amqp
    handler.connection.set_prefetch(number, method.prefetch_count, method.global_, live)
    handler.send(number, spec.BasicQosOk())


def basic_consume(handler: Session, number: int, method: spec.BasicConsume) -> None:
    state = _channel(handler, number)
    tag = method.consumer_tag or f"amq.ctag-{token(16)}"
    if tag in state.consumers:
        raise PeerError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if len(state.consumers) >= handler.broker.limits.channel_consumers_max:
        raise PeerError(ReplyCode.NOT_ALLOWED, f"consumer limit of {handler.broker.limits.channel_consumers_max} on the channel is reached")
    priority = method.arguments.get("x-priority", 0)
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        where = handler.vhost.describe("queue", method.queue or state.last_queue)
        reason = f"{{value_out_of_range,{priority}}}" if type(priority) is int else f'"expected integer, got {erlang_term(priority)[0]}"'
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"invalid arg 'x-priority' for {where}: {reason}")
    timeout_ms = check_consumer_timeout(method.arguments, partial(handler.vhost.describe, "queue", method.queue or state.last_queue))
    if method.queue == REPLY_TO:
        queue = _open_reply_queue(handler, state, method)
    else:
        name = _queue_name(handler, number, method.queue)
        authorize(handler, "basic.consume", queue=name)
        if handler.vhost.is_held(name):  # being declared or deleted: which of them, this consumer learns when it is over
            handler.change(number, method, handler.vhost.settled(name), lambda _: _serve_anew(handler, number, method))
            return
        queue = handler.vhost.queue(name, handler.connection_id)
    if method.exclusive and method.queue != REPLY_TO and queue.policy.single_active_consumer:  # the two contradict each other (RabbitMQ)
        raise _in_exclusive_use(handler, queue)
    plain = method.queue != REPLY_TO and not queue.policy.is_stream
    if method.queue != REPLY_TO and queue.policy.is_shared:
        shared_queues.check_channel(handler, number, state, queue, method.no_ack)
        if shared_queues.waits_for_owner(handler, number, method.ID, queue, lambda: _serve_anew(handler, number, method)):
            return
    where = handler.vhost.describe("queue", queue.name)
    browse_only = method.queue != REPLY_TO and queue.policy.browse_only
    grouped = plain and queue.policy.grouping is not None
    choice = parse_choice(method.arguments, method.no_ack, plain, where, handler.broker.limits, browse_only, grouped)
    if choice.browse:
        shared_queues.check_browser(handler, queue)
    consumer = Consumer(handler, number, tag, queue, method.no_ack, method.exclusive, priority, method.arguments)
    consumer.weight += choice.size
    single = method.queue != REPLY_TO and queue.policy.single_active_consumer
    # A consumer of a single-active queue starts waiting; consumer_came makes the first one the active one.
    group = method.arguments.get("x-group", "")
    if not isinstance(group, str):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"invalid arg 'x-group': {group!r} is no string")
    seat = None
    if method.queue != REPLY_TO and queue.policy.is_stream:
        seat = stream_consume.open_seat(handler, number, queue, method, partial(_on_durable, handler, number, method))
        if seat is None:
            return  # its group's place has to be on disk first: the whole request is made again then

    def begun() -> None:
        if timeout_ms and seat is None:  # a stream's group has its own
            handler.connection.set_timeout(number, _key(tag), timeout_ms)
            handler.broker.timeouts.consumer_came(handler, timeout_ms)
        if not method.no_wait:
            handler.send(number, spec.BasicConsumeOk(tag))

    if method.queue != REPLY_TO and handler.broker.is_window(queue):
        shared_queues.consume(handler, number, method, consumer, begun)
        return
    handler.consumer_came(consumer)
    try:
        _attach(handler, consumer, single, _key(group), seat, choice)
    except BaseException:
        handler.consumer_left(consumer)
        raise
    state.consumers[tag] = consumer
    begun()


def _in_exclusive_use(handler: Session, queue: Any) -> PeerError:
    return PeerError(ReplyCode.ACCESS_REFUSED, f"queue '{queue.name}' in vhost '{handler.vhost.name}' in exclusive use")


def _attach(handler: Session, consumer: Consumer, single: bool, group: bytes, seat: Any, choice: Choice) -> None:
    """Puts the consumer on its queue. Raises: PeerError 403 exclusivity forbids it, 404 the queue is gone; MemoryError, StoreError."""
    queue, core, number, tag = consumer.queue, consumer.queue.core, consumer.channel, _key(consumer.tag)
    own = (consumer.no_ack, consumer.exclusive, consumer.priority, single)
    chosen = {"group": group, "seat": seat, "selector": choice.selector, "browse": choice.browse}
    if not handler.connection.consume(number, core, tag, *own, **chosen):
        if core.is_deleted():
            raise _gone(handler, queue)
        raise _in_exclusive_use(handler, queue)
    if not handler.broker.attachments.add(consumer):
        handler.connection.cancel(number, tag)
        raise _gone(handler, queue)
    if core is not queue.core:  # a shared queue moved after its consumers had been looked through
        handler.connection.cancel(number, tag)
        handler.broker.attachments.remove(consumer)
        raise shared_queues.moved(queue)


def _gone(handler: Session, queue: Any) -> PeerError:
    """Another loop deleted the queue between looking it up and using it."""
    return PeerError(ReplyCode.NOT_FOUND, f"no queue '{queue.name}' in vhost '{handler.vhost.name}'")


def _open_reply_queue(handler: Session, state: ChannelState, method: spec.BasicConsume) -> Any:
    """Direct reply-to: a hidden queue of this channel, routed to by its unguessable name."""
    if not method.no_ack:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if state.reply_queue is not None:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
    state.reply_queue = handler.broker.open_reply_queue(handler.vhost)
    handler.connection.set_reply_to(state.number, state.reply_queue.name.encode())
    return state.reply_queue


def basic_cancel(handler: Session, number: int, method: spec.BasicCancel) -> None:
    state = _channel(handler, number)
    consumer = state.consumers.pop(method.consumer_tag, None)
    if consumer is not None:
        handler.connection.cancel(number, _key(method.consumer_tag))
    if not method.no_wait:
        handler.send(number, spec.BasicCancelOk(method.consumer_tag))
    if consumer is not None:
        handler.consumer_left(consumer)
        if consumer.queue is state.reply_queue:
            handler.broker.drop_reply_queue(state.reply_queue)
            state.reply_queue = None
            handler.connection.set_reply_to(number, b"")
        handler.broker.attachments.remove(consumer)


def basic_get(handler: Session, number: int, method: spec.BasicGet) -> None:
    name = _queue_name(handler, number, method.queue)
    authorize(handler, "basic.get", queue=name)
    queue = handler.vhost.queue(name, handler.connection_id)
    if queue.policy.is_shared and shared_queues.waits_for_opening(
        handler, number, method.ID, queue, lambda: _serve_anew(handler, number, method)
    ):
        return
    rests = handler.broker.pauses.rests(queue)
    if queue.policy is not DEFAULT_POLICY:
        _check_get(handler, queue)
        handler.vhost.touch(queue)
        if queue.policy.is_shared:
            shared_queues.check_channel(handler, number, _channel(handler, number), queue, method.no_ack)
            if handler.broker.is_window(queue) and not rests:
                shared_queues.get(handler, number, method, queue)
                return
    got = False if rests else handler.connection.get(number, queue.core, method.no_ack)
    if got is None:
        # Its message is being read from disk. The whole request is made again then: the queue may be gone, the message, too.
        handler.deferred = partial(_on_durable, handler, number, method)
        handler.connection.waiting = True
    elif not got:
        handler.broker.counters.gets_empty += 1
        handler.send(number, spec.BasicGetEmpty())


def _check_get(handler: Session, queue: Any) -> None:
    """Raises: PeerError 540, 406: a queue of this kind has no basic.get."""
    if queue.policy.is_stream:
        text = f"basic.get not supported by stream queues {handler.vhost.describe('queue', queue.name)}"
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, text)
    if queue.policy.browse_only:
        text = f"basic.get takes messages, and {handler.vhost.describe('queue', queue.name)} is for browsers"
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text)


def _on_durable(handler: Session, number: int, method: spec.BasicGet | spec.BasicConsume) -> None:
    """A method that waited for the disk is served anew, if its channel is still there."""
    if number in handler.channels:
        _serve_anew(handler, number, method)


def _serve_anew(handler: Session, number: int, method: spec.Method) -> None:
    handler.method(number, encode_method(method), method.ID)


def basic_recover(handler: Session, number: int, method: spec.BasicRecover) -> None:
    if not method.requeue:
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    answers = method.ID == spec.BasicRecover.ID
    long_work.recover(handler, number, partial(handler.send, number, spec.BasicRecoverOk()) if answers else lambda: None)


# --- confirm and tx -----------------------------------------------------------------------------------------------------------


def confirm_select(handler: Session, number: int, method: spec.ConfirmSelect) -> None:
    if handler.connection.is_tx(number):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    handler.connection.confirm_select(number)
    if not method.no_wait:
        handler.send(number, spec.ConfirmSelectOk())


def tx_select(handler: Session, number: int, method: spec.TxSelect) -> None:
    if handler.connection.is_confirm(number):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if _channel(handler, number).shared:
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, f"{shared_queues.ELSEWHERE}: this channel consumed by another one")
    handler.connection.tx_select(number)
    handler.send(number, spec.TxSelectOk())


def _need_tx(handler: Session, number: int) -> None:
    if not handler.connection.is_tx(number):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")


def tx_commit(handler: Session, number: int, method: spec.TxCommit) -> None:
    _need_tx(handler, number)
    handler.commit(number)


def tx_rollback(handler: Session, number: int, method: spec.TxRollback) -> None:
    _need_tx(handler, number)
    handler.connection.tx_rollback(number)
    handler.send(number, spec.TxRollbackOk())


MethodFunction = Callable[[Any, int, Any], None]
_BY_NAME: dict[str, MethodFunction] = {
    "channel.open": channel_open,
    "channel.close": channel_close,
    "channel.close-ok": channel_close_ok,
    "channel.flow": channel_flow,
    "channel.flow-ok": ignore,
    "exchange.declare": exchange_declare,
    "exchange.delete": exchange_delete,
    "exchange.bind": exchange_bind,
    "exchange.unbind": exchange_unbind,
    "queue.declare": queue_declare,
    "queue.bind": queue_bind,
    "queue.unbind": queue_unbind,
    "queue.purge": queue_purge,
    "queue.delete": queue_delete,
    "basic.qos": basic_qos,
    "basic.consume": basic_consume,
    "basic.cancel": basic_cancel,
    "basic.cancel-ok": ignore,
    "basic.get": basic_get,
    "basic.recover": basic_recover,
    "basic.recover-async": basic_recover,
    "confirm.select": confirm_select,
    "tx.select": tx_select,
    "tx.commit": tx_commit,
    "tx.rollback": tx_rollback,
}
# Fields whose CR and LF are dropped, as RabbitMQ drops them. All other names count as they are sent: they are asked for and looked up
# with their line breaks, and nothing has such a name.
_CLEANED: dict[str, tuple[str, ...]] = {
    "exchange.declare": ("exchange",),
    "exchange.delete": ("exchange",),
    "exchange.bind": ("destination", "source"),
    "exchange.unbind": ("destination", "source"),
    "queue.declare": ("queue",),
    "queue.bind": ("queue", "exchange"),
    "queue.unbind": ("queue", "exchange"),
    "queue.delete": ("queue",),
}
# method id -> its function, and the fields that are cleaned before the function gets them (V1)
VERBS: dict[int, tuple[MethodFunction, tuple[str, ...]]] = {
    spec.METHOD_IDS[name]: (verb, _CLEANED.get(name, ())) for name, verb in _BY_NAME.items()
}
