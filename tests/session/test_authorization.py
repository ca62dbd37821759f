"""A channel publishes where its user may write: asked at the first publish, and again when permissions change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flintmq.ports import PermissionRecord


def test_revoked_permission_counts_from_the_next_publish(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A route that the channel has used before does not outlive the permission."""
    broker = start()
    channel = connect(broker).channel(1)
    channel.queue("q")
    channel.publish(b"allowed", routing_key="q")
    channel.wait_ready("q", 1)
    broker.node.permissions.set_permissions(PermissionRecord("guest", "/", ".*", "^elsewhere$", ".*"))
    channel.publish(b"refused", routing_key="q")
    channel.expect_close(403, "ACCESS_REFUSED")


def test_a_reply_address_opens_nothing_else(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Who may not write to the default exchange may not by way of a reply address either."""
    broker = start()
    broker.node.permissions.set_permissions(PermissionRecord("guest", "/", ".*", "^elsewhere$", ".*"))
    channel = connect(broker).channel(1)
    channel.publish(b"x", routing_key="amq.rabbitmq.reply-to.anything")
    channel.expect_close(403, "ACCESS_REFUSED")
