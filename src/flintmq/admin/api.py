"""RabbitMQ's HTTP API under `/api`: the rows of the table of operations. docs/HTTP.md lists what is there.

in: handlers of api_*. out: operations, with RabbitMQ 3.10's fields and status codes.
"""

from __future__ import annotations

from flintmq.admin import api_access, api_backup, api_clients, api_definitions, api_links, api_messages, api_names, api_node
from flintmq.admin.operations import Operation

_MODULES = (api_node, api_access, api_names, api_messages, api_clients, api_definitions, api_links, api_backup)


def operations() -> list[Operation]:
    """The rows of RabbitMQ's API."""
    return [one for module in _MODULES for one in module.operations()]
