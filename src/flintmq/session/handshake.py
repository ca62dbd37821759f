"""The methods of class connection: handshake, close, secret update (specification 1.4).

in: methods on channel 0. out: an open connection in a virtual host, or its end.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from flintmq import __version__
from flintmq.access.checks import source_of
from flintmq.access.mechanisms import EXTERNAL, SCRAM, certificate_user, parse_response, unknown_mechanism
from flintmq.access.secret import Secret
from flintmq.access.token_user import TokenUser, is_token
from flintmq.broker import client_properties
from flintmq.broker.counters import AMQP
from flintmq.errors import PeerError, ReplyCode
from flintmq.loglines import line_logger
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import decode_table, encode_method

if TYPE_CHECKING:
    from flintmq.session.session_port import Session

log = line_logger("flintmq.connection")

# --- states of a connection -------------------------------------------------------------------------------------------------
START = "start"  # connection.start was sent
AUTHENTICATING = "authenticating"  # a password check is under way
SECURE = "secure"  # SCRAM: connection.secure with our first message was sent, the client's proof is due
GREETED = "greeted"  # FLINTMQ-NODE: connection.secure with our proof was sent, the node's is due
SECURED = "secured"  # SCRAM: the proof was right; connection.secure with ours was sent
TUNE = "tune"  # connection.tune was sent
OPEN = "open"  # tuned, connection.open is due
RUNNING = "running"
CLOSING = "closing"  # connection.close was sent
CLOSED = "closed"  # only output is left

LOCALES = b"en_US"

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def server_properties(cluster_name: str) -> dict[str, object]:
    """What connection.start tells about us."""
    return {
        "product": "FlintMQ",
        "version": __version__,
        "platform": f"Python {platform.python_version()}",
        "copyright": "FlintMQ contributors",
        "information": "Licensed under the Apache License 2.0",
        "cluster_name": cluster_name,
        "capabilities": dict(CAPABILITIES),
    }


def begin(handler: Session) -> None:
    """Sends connection.start. The engine checks the protocol header before any answer is looked at."""
    mechanisms = handler.broker.mechanisms
    if _certificate(handler):
        mechanisms = f"{mechanisms} {EXTERNAL}"
    if handler.broker.door is not None:
        mechanisms = f"{mechanisms} {handler.broker.door.mechanism}"
    handler.connection.write_method(0, _start_payload(handler.broker.cluster_name, mechanisms))


def _certificate(handler: Session) -> dict[str, Any]:
    """The certificate that the client showed, verified; {}: none."""
    tls = None if handler.socket is None else handler.socket.tls
    return {} if tls is None else tls.certificate()


@lru_cache(maxsize=8)
def _start_payload(cluster_name: str, mechanisms: str) -> bytes:
    """connection.start is the same for every connection of a node that may use the same mechanisms."""
    return encode_method(spec.ConnectionStart(0, 9, server_properties(cluster_name), mechanisms.encode(), LOCALES))


def not_due(handler: Session, method: Any) -> None:
    """Raises: PeerError(503), always."""
    raise PeerError(ReplyCode.COMMAND_INVALID, f"{method.NAME} is not expected in state '{handler.state}'")


def _start_ok(handler: Session, method: spec.ConnectionStartOk) -> None:
    properties = method.client_properties
    handler.client_properties = client_properties.kept(
        handler.client_properties, properties, handler.broker.limits.client_properties_bytes_max
    )
    handler.memory.add(len(handler.client_properties))
    capabilities = properties.get("capabilities")
    if isinstance(capabilities, dict):
        handler.wants_blocked = capabilities.get("connection.blocked") is True
        handler.wants_cancel = capabilities.get("consumer_cancel_notify") is True
        handler.wants_login_close = capabilities.get("authentication_failure_close") is True
    handler.wants_hints = properties.get("compat.hints") is not False
    handler.is_py_amqp = properties.get("product") == "py-amqp"
    mechanism = handler.mechanism = method.mechanism
    if mechanism == EXTERNAL:
        _external(handler)
        return
    broker = handler.broker
    if broker.door is not None and mechanism == broker.door.mechanism:
        _greet(handler, method.response)
        return
    if mechanism not in broker.config.auth_mechanisms:
        raise unknown_mechanism(mechanism)
    if mechanism == SCRAM:
        _scram_first(handler, method.response)
        return
    try:
        user, password = parse_response(mechanism, method.response, decode_table)
    except PeerError as error:
        if error.code != ReplyCode.ACCESS_REFUSED:
            raise
        _refused(handler, "", "the response could not be read")
        return
    if broker.tokens is not None and is_token(password):
        handler.state = AUTHENTICATING
        _ask_for_token(handler, password, partial(_token_answer, handler, user))
        return
    users = broker.users
    if users.refused_from(user, handler.peer_host):
        _refused(handler, user, f"user '{user}' can only connect via localhost")
        return
    handler.state = AUTHENTICATING
    known = users.login_cached(user, password)
    if known is not None:
        _logged_in(handler, user, known)
    else:
        loop = handler.loop
        handler.login = users.submit_login(
            user, password, lambda login: loop.call(partial(_logged_in, handler, user, login)), _source(handler)
        )


def _logged_in(handler: Session, claimed: str, user: str | bool | None) -> None:
    """The user of a name and a password, on the connection's loop; a directory may spell the name in another way."""
    if isinstance(user, str) and user != claimed and handler.broker.users.refused_from(user, handler.peer_host):
        user = False
    if isinstance(user, str):
        _authenticated(handler, user, True)
    else:
        _authenticated(handler, claimed, user)


def _source(handler: Session) -> str:
    """Whose guesses are counted together: those of an address, or those of all links of one owner, who names the links."""
    return handler.peer_host if handler.trusted is None else f"links of user {handler.trusted}"


def _ask_for_token(handler: Session, token: Secret, answer: Callable[[TokenUser | str | None], None]) -> None:
    """`answer` is called on the connection's loop, at once when the token was verified lately."""
    tokens, loop = handler.broker.tokens, handler.loop
    known = tokens.cached(token)
    if known is not None:
        answer(known)
    else:
        handler.login = tokens.submit(token, _source(handler), lambda login: loop.call(partial(answer, login)))


def _token_answer(handler: Session, claimed: str, answer: TokenUser | str | None) -> None:
    """Who a token says it is; the name that was given with it is not looked at, as by RabbitMQ."""
    if handler.ended or handler.state != AUTHENTICATING:
        return
    if isinstance(answer, TokenUser):
        handler.broker.tokens.follow(handler, answer)
        _authenticated(handler, answer, True)
    elif answer is None:
        _authenticated(handler, claimed, None)
    else:
        handler.login = None
        _refused(handler, claimed, answer)
        if handler.socket is not None:
            handler.loop.touch(handler.socket)


def _scram_first(handler: Session, message: bytes) -> None:
    from flintmq.access.scram import ScramError

    users = handler.broker.users
    conversation = users.conversation()
    try:
        challenge = conversation.first(message)
    except ScramError as error:
        _refused(handler, conversation.user, str(error))
        return
    if len(conversation.user) > handler.broker.limits.login_name_max:
        _refused(handler, "", "its user name is too long")
        return
    if users.refused_from(conversation.user, handler.peer_host):
        _refused(handler, conversation.user, f"user '{conversation.user}' can only connect via localhost")
        return
    handler.login = conversation
    handler.state = SECURE
    handler.send(0, spec.ConnectionSecure(challenge))


def _scram_final(handler: Session, method: spec.ConnectionSecureOk) -> None:
    from flintmq.access.scram import Conversation, ScramError

    conversation, users = handler.login, handler.broker.users
    assert isinstance(conversation, Conversation)  # the state says so
    try:
        good, answer = users.prove(conversation, method.response, _source(handler))
    except ScramError as error:
        _refused(handler, conversation.user, str(error))
        return
    if good:
        handler.state = SECURED
        handler.send(0, spec.ConnectionSecure(answer))
    else:
        handler.state = AUTHENTICATING
        _authenticated(handler, conversation.user, good)


def _scram_end(handler: Session, method: spec.ConnectionSecureOk) -> None:
    """The client has seen that the broker knows its keys. It is let in when it is the user still whose keys they were."""
    from flintmq.access.scram import Conversation

    conversation = handler.login
    assert isinstance(conversation, Conversation)  # the state says so
    handler.state = AUTHENTICATING
    _authenticated(handler, conversation.user, handler.broker.users.still(conversation))


def _greet(handler: Session, message: bytes) -> None:
    """Another node begins its login (cluster.node_door)."""
    try:
        greeting = handler.broker.door.greet(message)
    except ValueError as error:
        _refused(handler, "", str(error))
        return
    if handler.broker.users.throttle.refuses(greeting.user, source_of(_source(handler))):
        handler.state = AUTHENTICATING
        _authenticated(handler, greeting.user, None)
        return
    handler.login = greeting
    handler.state = GREETED
    handler.send(0, spec.ConnectionSecure(greeting.challenge))


def _node_proof(handler: Session, method: spec.ConnectionSecureOk) -> None:
    broker, greeting = handler.broker, handler.login
    assert greeting is not None  # the state says so
    good = greeting.is_proved(method.response)
    throttle = broker.users.throttle
    (throttle.passed if good else throttle.failed)(greeting.user, source_of(_source(handler)))
    if good:
        handler.door = broker.door
        handler.channel_max = broker.door.channels_max
    handler.state = AUTHENTICATING
    _authenticated(handler, greeting.user, good)


def _external(handler: Session) -> None:
    """The user is whom the broker made the connection for, or whom the certificate names; what the response says is not looked at, as by
    RabbitMQ."""
    if handler.trusted is not None:
        handler.state = AUTHENTICATING
        _authenticated(handler, handler.trusted, handler.broker.users.get(handler.trusted) is not None)
        return
    certificate, users = _certificate(handler), handler.broker.users
    login_from = handler.broker.config.tls_login_from
    user = certificate_user(certificate, login_from)
    if not certificate or user is None or len(user) > handler.broker.limits.login_name_max:
        reason = f"its certificate names no user ({login_from})" if certificate else "it showed no certificate"
        _refused(handler, "", reason)
    elif users.get(user) is None:
        _refused(handler, user, "there is no such user")
    elif users.refused_from(user, handler.peer_host):
        _refused(handler, user, f"user '{user}' can only connect via localhost")
    else:
        handler.state = AUTHENTICATING
        _authenticated(handler, user, True)


def _authenticated(handler: Session, user: str, ok: bool | None) -> None:
    """The answer of the password check, on the connection's loop. None: too many wait."""
    if handler.ended or handler.state != AUTHENTICATING:
        return
    handler.login = None
    if ok is None:
        handler.close(ReplyCode.RESOURCE_ERROR, "RESOURCE_ERROR - too many logins wait for their password check: try again later")
    elif not ok:
        _refused(handler, user, "wrong user or password")
    else:
        broker = handler.broker
        broker.counters.login(AMQP, True)
        broker.events.login(handler, user, True)
        handler.logged_in(user, broker.users.born(user))
        handler.state = TUNE
        limits = broker.limits
        handler.send(0, spec.ConnectionTune(handler.channel_max, limits.frame_size_max, limits.heartbeat_s))
    if handler.socket is not None:
        handler.loop.touch(handler.socket)


def _refused(handler: Session, user: str, reason: str) -> None:
    """Clients that say they can are told with 403; others see the socket close, as specification 1.4.2.3 has it."""
    handler.broker.counters.login(AMQP, False)
    handler.broker.events.login(handler, user, False)
    handler.complain(log.error, "connection %s: %s login refused for user %r: %s", handler.name, handler.mechanism, user, reason)
    handler.broker.audit.refused(user, f"login over AMQP: {reason}", handler.peer_host)
    if handler.wants_login_close:
        handler.close(
            ReplyCode.ACCESS_REFUSED,
            f"ACCESS_REFUSED - Login was refused using authentication mechanism {handler.mechanism}. For details see the broker logfile.",
        )
    else:
        handler.finish()


def _tune_ok(handler: Session, method: spec.ConnectionTuneOk) -> None:
    limits = handler.broker.limits
    frame_size = method.frame_max or limits.frame_size_max
    if frame_size < limits.frame_size_min:
        raise PeerError(
            ReplyCode.NOT_ALLOWED, f"negotiated frame_max = {frame_size} is lower than the minimum allowed value ({limits.frame_size_min})"
        )
    if frame_size > limits.frame_size_max:
        raise PeerError(
            ReplyCode.NOT_ALLOWED, f"negotiated frame_max = {frame_size} is higher than the maximum allowed value ({limits.frame_size_max})"
        )
    channel_max = method.channel_max or handler.channel_max
    if channel_max > handler.channel_max:
        raise PeerError(
            ReplyCode.NOT_ALLOWED,
            f"negotiated channel_max = {channel_max} is higher than the maximum allowed value ({handler.channel_max})",
        )
    handler.frame_size_max = frame_size
    handler.channel_max = channel_max
    handler.heartbeat_s = method.heartbeat
    handler.connection.tuned(frame_size)
    handler.state = OPEN


def _open(handler: Session, method: spec.ConnectionOpen) -> None:
    broker = handler.broker
    closings = broker.closings
    vhost = broker.vhosts.get(method.virtual_host) if handler.door is None else handler.door.vhost
    if vhost is None:
        raise PeerError(ReplyCode.NOT_ALLOWED, f"vhost {method.virtual_host} not found")
    name = vhost.name
    _check_user(handler, name)
    if broker.draining and handler.door is None:
        raise PeerError(ReplyCode.CONNECTION_FORCED, "node is drained: connect to another one", hard=True)
    broker.quotas.open_connection(handler.user, name)
    handler.vhost = vhost
    handler.connection.opened()
    handler.state = RUNNING
    broker.connection_opened(handler)
    if broker.closings is not closings:  # else whoever deletes the user or the vhost finds the connection
        _check_there(handler, vhost)
    cluster = broker.cluster
    if cluster is None:
        handler.send(0, spec.ConnectionOpenOk())
    else:
        handler.connection.write_method(0, _open_ok(cluster.known_hosts(handler.secure)))
    title = client_properties.connection_name(handler.client_properties)
    if title:
        text = "connection %s: user %r authenticated and granted access to vhost %r, client-provided name %r"
        log.info(text, handler.name, handler.user, name, title)
    else:
        log.info("connection %s: user %r authenticated and granted access to vhost %r", handler.name, handler.user, name)


def _open_ok(hosts: bytes) -> bytes:
    """connection.open-ok with its old known-hosts (AMQP 0-8; reserved-1 since): where a client can go that loses this node. Nobody learns
    of it before the login."""
    return spec.ConnectionOpenOk.ID.to_bytes(4, "big") + bytes([len(hosts)]) + hosts


def _check_there(handler: Session, vhost: Any) -> None:
    """Raises: PeerError 530: the vhost, the right to open it, or the user who logged in is gone; a new one of the name is another user."""
    name = vhost.name
    if handler.broker.vhosts.get(name) is not vhost and handler.door is None:
        raise PeerError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
    _check_user(handler, name)


def _check_user(handler: Session, vhost: str) -> None:
    broker, user = handler.broker, handler.user
    broker.permissions.authorize_vhost(user, vhost)
    if broker.users.born(user) != handler.user_born:
        raise PeerError(ReplyCode.NOT_ALLOWED, f"user '{user}' is deleted")


def _close(handler: Session, method: spec.ConnectionClose) -> None:
    log.debug("connection %s: closed by the client (%d %s)", handler.name, method.reply_code, method.reply_text)
    handler.agree()


def _close_ok(handler: Session, method: spec.ConnectionCloseOk) -> None:
    handler.finish()


def _update_secret(handler: Session, method: spec.ConnectionUpdateSecret) -> None:
    """RabbitMQ's extension, for secrets that expire (OAuth tokens). Passwords don't: the new one is not looked at, as by RabbitMQ.

    Nothing that follows is looked at before the new token is."""
    if not isinstance(handler.user, TokenUser):
        handler.send(0, spec.ConnectionUpdateSecretOk())
        return
    handler.connection.waiting = True
    _ask_for_token(handler, Secret(method.new_secret.decode("utf-8", "replace")), partial(_new_token, handler))


def _new_token(handler: Session, answer: TokenUser | str | None) -> None:
    if handler.ended:
        return
    handler.login = None
    handler.connection.waiting = False
    broker, before = handler.broker, handler.user
    if handler.state == RUNNING:
        if not isinstance(answer, TokenUser):
            reason = answer or "too many tokens wait to be checked"
        elif str(answer) != str(before):
            reason = f"it names another user, {str(answer)!r}"
        elif answer.rights(handler.vhost.name) is None:
            reason = f"it may not use vhost '{handler.vhost.name}'"
        else:
            reason = ""
            handler.logged_in(answer, answer.born)
            broker.tokens.follow(handler, answer)
            if not isinstance(before, TokenUser) or answer.texts != before.texts:
                broker.permissions.on_changed()  # what channels remember of the old one
            handler.send(0, spec.ConnectionUpdateSecretOk())
        if reason:
            handler.complain(log.error, "connection %s: the new token for user %r was refused: %s", handler.name, before, reason)
            broker.audit.refused(before, f"new token over AMQP: {reason}", handler.peer_host)
            handler.close(ReplyCode.NOT_ALLOWED, "NOT_ALLOWED - New secret was refused by one of the backends")
    if handler.socket is not None:
        handler.loop.resume(handler.socket)
        handler.loop.touch(handler.socket)


Step = Callable[[Any, Any], None]
STEPS: dict[tuple[str, int], Step] = {
    (START, spec.METHOD_IDS["connection.start-ok"]): _start_ok,
    (TUNE, spec.METHOD_IDS["connection.tune-ok"]): _tune_ok,
    (SECURE, spec.METHOD_IDS["connection.secure-ok"]): _scram_final,
    (SECURED, spec.METHOD_IDS["connection.secure-ok"]): _scram_end,
    (GREETED, spec.METHOD_IDS["connection.secure-ok"]): _node_proof,
    (OPEN, spec.METHOD_IDS["connection.open"]): _open,
    (RUNNING, spec.METHOD_IDS["connection.update-secret"]): _update_secret,
    (CLOSING, spec.METHOD_IDS["connection.close-ok"]): _close_ok,
    # Both sides may close at once (specification 1.4.2.9): each is answered, in any state.
    **{
        (state, spec.METHOD_IDS["connection.close"]): _close
        for state in (START, AUTHENTICATING, SECURE, SECURED, GREETED, TUNE, OPEN, RUNNING, CLOSING)
    },
}
