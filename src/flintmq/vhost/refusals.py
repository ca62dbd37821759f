"""What a virtual host refuses whatever the verb: names that are the broker's, another connection's queues, more than its limits allow.

in: names, kinds, counts and sizes. out: PeerErrors with RabbitMQ's texts.
"""

from __future__ import annotations

from collections.abc import Mapping

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.binding import QUEUE
from flintmq.routing.exchange import DEFAULT_EXCHANGE, Binding
from flintmq.vhost.names import RESERVED_PREFIX, describe, exclusive_lock_text
from flintmq.vhost.queue import Queue
from flintmq.vhost.weights import Holding, binding_bytes

BINDING = "binding"


class Refusals:
    """The part of VirtualHost. Under its lock."""

    name: str
    deleted: bool
    binding_count: int
    binding_bytes: int
    holding: Holding
    _limits: Limits
    _quotas: Mapping[str, int]

    def describe(self, kind: str, name: str) -> str:
        """`queue 'q' in vhost '/'`: how texts speak of a thing."""
        return describe(kind, name, self.name)

    def _check_not_deleted(self) -> None:
        if self.deleted:
            raise PeerError(ReplyCode.NOT_ALLOWED, f"vhost {self.name} not found")

    def _refuse_default(self, exchange_name: str) -> None:
        if exchange_name == DEFAULT_EXCHANGE:
            raise PeerError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")

    def _check_new_name(self, kind: str, name: str) -> None:
        if name.startswith(RESERVED_PREFIX):
            raise PeerError(ReplyCode.ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'")
        if len(name.encode("utf-8", "surrogateescape")) > self._limits.name_bytes_max:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{kind} name is longer than {self._limits.name_bytes_max} bytes")

    def _locked(self, queue: Queue) -> PeerError:
        return PeerError(ReplyCode.RESOURCE_LOCKED, exclusive_lock_text(self.describe(QUEUE, queue.name)))

    def _most(self, kind: str, default: int) -> int:
        """How many of a kind the vhost may have: what the operator set (below 0: any number), and never more than `default`."""
        most = self._quotas.get(f"max-{kind}s", default)
        return default if most < 0 else min(most, default)

    def _check_limit(self, kind: str, name: str, count: int, default: int, size: int) -> None:
        """Raises: PeerError 406: there are as many, or they take as much memory, as may be."""
        most = self._most(kind, default) if self._quotas else default
        if count >= most:
            text = f"cannot declare {kind} '{name}': {kind} limit in vhost '{self.name}' ({most}) is reached"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        reason = self.holding.refusal(size)
        if reason:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"cannot declare {kind} '{name}' in vhost '{self.name}': {reason}")

    def _check_room(self, binding: Binding) -> int:
        """Bytes of the binding. Raises: PeerError 406: the vhost has as many bindings, or bytes of their arguments, as it may."""
        limits = self._limits
        own, everybody = limits.binding_arguments_bytes_max, limits.bindings_arguments_bytes_max
        size = binding_bytes(binding)
        reason = ""
        most = self._most(BINDING, limits.bindings_max) if self._quotas else limits.bindings_max
        if self.binding_count >= most:
            reason = f"binding limit ({most}) is reached"
        elif binding.arguments_bytes > own:
            reason = f"its arguments take {binding.arguments_bytes} bytes of memory, the limit is {own}: match on fewer or shorter headers"
        elif self.binding_bytes + binding.arguments_bytes > everybody:
            reason = f"the limit of {everybody} bytes for arguments of bindings in vhost '{self.name}' is reached"
        else:
            reason = self.holding.refusal(size)
        if reason:
            described = self.describe(binding.destination.destination_kind, binding.destination.name)
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"cannot bind {described}: {reason}")
        return size
