"""What a client writes into the headers of each call (docs/DATAPLANE.md, "Authentication"). Light: callers fork."""

from __future__ import annotations

import base64
from urllib.parse import quote

VHOST_HEADER = "x-flintmq-vhost"


def basic_header(user: str, password: str) -> str:
    """The authorization header. Raises: ValueError for a user with a colon, which Basic can't carry."""
    if ":" in user:
        raise ValueError("a user name with a colon can't log in over Flight")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def vhost_header(vhost: str) -> str:
    """A vhost as a header carries it: percent-encoded UTF-8, `/` as it is."""
    return quote(vhost, safe="/")
