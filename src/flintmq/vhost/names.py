"""Names: the broker's own, generated ones, and how texts speak of a thing.

in: names as clients send them. out: clean names and RabbitMQ's wording.
"""

from __future__ import annotations

import base64
import os

RESERVED_PREFIX = "amq."
# of the queue of scheduled messages in each virtual host: no client can name it (virtual_host.py, I7)
SCHEDULE = "amq.schedule"
# (name, kind, internal): there from the start, never deleted
PREDECLARED = (
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)
_NO_LINE_BREAKS = str.maketrans("", "", "\r\n")


def describe(kind: str, name: str, vhost: str) -> str:
    """`queue 'q' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def exclusive_lock_text(description: str) -> str:
    """The 405 of a queue that belongs to another connection."""
    return (
        f"cannot obtain exclusive access to locked {description}. It could be originally declared on another connection or the"
        " exclusive property value does not match that of the original declaration."
    )


def clean_name(name: str) -> str:
    """The name without CR and LF, which RabbitMQ drops where it declares, deletes and binds.

    Clean a name where it comes in, before permission is asked for it: cleaned later, another name is used than was allowed.
    """
    return name.translate(_NO_LINE_BREAKS) if "\n" in name or "\r" in name else name


def generate_queue_name() -> str:
    """`amq.gen-` and 22 characters of base64url: 128 random bits, so nobody can guess another's queue."""
    return "amq.gen-" + base64.urlsafe_b64encode(os.urandom(16))[:22].decode("ascii")
