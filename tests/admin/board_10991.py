"""The queries of Grafana's board 10991 "RabbitMQ-Overview", as facts: panel -> what it asks Prometheus for.

Read in the board's public description (2026-11). `JOIN` is the same in each of them: it brings in the labels of the node. Grafana's own
variables have values here: $__rate_interval and $__range are 60 s.
"""

from __future__ import annotations

JOIN = (
    " * on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node)"
    ' rabbitmq_identity_info{rabbitmq_cluster="$rabbitmq_cluster", namespace="$namespace", rabbitmq_endpoint="aggregated"}'
)


def _total(name: str) -> str:
    return f"sum(rabbitmq_{name}{JOIN})"


def _rate(name: str) -> str:
    return f"sum(rate(rabbitmq_{name}[60s]){JOIN}) by(rabbitmq_node)"


def _up_to(size: str) -> str:
    return f'sum(increase(rabbitmq_message_size_bytes_bucket{{le="{size}"}}[60s]){JOIN})'


BOARD = {
    "Ready messages": _total("queue_messages_ready"),
    "Publishers": _total("global_publishers"),
    "Connections": _total("connections"),
    "Queues": _total("queues"),
    "Unacknowledged messages": _total("queue_messages_unacked"),
    "Incoming messages / s": f"sum(irate(rabbitmq_global_messages_received_total[60s]){JOIN})",
    "Outgoing messages / s": " + ".join(
        f"sum(irate(rabbitmq_global_messages_{name}_total[60s]){JOIN})"
        for name in (
            "redelivered",
            "delivered_consume_auto_ack",
            "delivered_consume_manual_ack",
            "delivered_get_auto_ack",
            "delivered_get_manual_ack",
        )
    ),
    "Consumers": _total("global_consumers"),
    "Channels": _total("channels"),
    "Nodes": 'count(rabbitmq_identity_info{namespace="$namespace", rabbitmq_cluster="$rabbitmq_cluster", rabbitmq_endpoint="aggregated"})',
    "Node table": (
        "rabbitmq_erlang_uptime_seconds * on(instance, job) group_left(rabbitmq_version, erlang_version) rabbitmq_build_info" + JOIN
    ),
    "Memory available before publishers blocked": (
        f"(rabbitmq_resident_memory_limit_bytes{JOIN}) - (rabbitmq_process_resident_memory_bytes{JOIN})"
    ),
    "Disk space available before publishers blocked": f"rabbitmq_disk_space_available_bytes{JOIN}",
    "File descriptors available": f"(rabbitmq_process_max_fds{JOIN}) - (rabbitmq_process_open_fds{JOIN})",
    "Messages ready to be delivered to consumers": f"sum(rabbitmq_queue_messages_ready{JOIN}) by(rabbitmq_node)",
    "Messages pending consumer acknowledgement": f"sum(rabbitmq_queue_messages_unacked{JOIN}) by(rabbitmq_node)",
    "Messages published / s": _rate("global_messages_received_total"),
    "Avg Size": (
        f"sum(increase(rabbitmq_message_size_bytes_sum[60s]){JOIN}) / sum(increase(rabbitmq_message_size_bytes_count[60s]){JOIN})"
    ),
    "Message Size Distribution: 0-100B": f"{_up_to('100')} / {_up_to('+Inf')}",
    "Message Size Distribution: 100B-1KB": f"({_up_to('1000')} - {_up_to('100')}) / {_up_to('+Inf')}",
    "Message Size Distribution: 100MB+": f"({_up_to('+Inf')} - {_up_to('100000000')}) / {_up_to('+Inf')}",
    "Messages routed to queues / s": _rate("global_messages_routed_total"),
    "Messages confirmed to publishers / s": _rate("global_messages_confirmed_total"),
    "Unroutable messages dropped / s": _rate("global_messages_unroutable_dropped_total"),
    "Unroutable messages returned / s": _rate("global_messages_unroutable_returned_total"),
    "Messages unconfirmed to publishers / s": (
        f"sum(rate(rabbitmq_global_messages_received_confirm_total[60s]){JOIN}"
        f" - rate(rabbitmq_global_messages_confirmed_total[60s]){JOIN}) by(rabbitmq_node)"
    ),
    "Messages delivered / s": (
        f"sum((rate(rabbitmq_global_messages_delivered_consume_auto_ack_total[60s]){JOIN})"
        f" + (rate(rabbitmq_global_messages_delivered_consume_manual_ack_total[60s]){JOIN})) by(rabbitmq_node)"
    ),
    "Messages redelivered / s": _rate("global_messages_redelivered_total"),
    "Messages delivered with manual ack / s": _rate("global_messages_delivered_consume_manual_ack_total"),
    "Messages delivered auto ack / s": _rate("global_messages_delivered_consume_auto_ack_total"),
    "Messages acknowledged / s": _rate("global_messages_acknowledged_total"),
    "Polling operations with auto ack / s": _rate("global_messages_delivered_get_auto_ack_total"),
    "Polling operations that yield no result / s": _rate("global_messages_get_empty_total"),
    "Polling operations with manual ack / s": _rate("global_messages_delivered_get_manual_ack_total"),
    "Total queues": f"rabbitmq_queues{JOIN}",
    "Queues declared / s": _rate("queues_declared_total"),
    "Queues created / s": _rate("queues_created_total"),
    "Queues deleted / s": _rate("queues_deleted_total"),
    "Total channels": f"rabbitmq_channels{JOIN}",
    "Channels opened / s": _rate("channels_opened_total"),
    "Channels closed / s": _rate("channels_closed_total"),
    "Total connections": f"rabbitmq_connections{JOIN}",
    "Connections opened / s": _rate("connections_opened_total"),
    "Connections closed / s": _rate("connections_closed_total"),
}
