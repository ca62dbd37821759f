"""What a client writes into the headers of each call (docs/DATAPLANE.md, "Control calls"). Light: callers fork."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import quote

VHOST_HEADER = "x-flintmq-vhost"
# Which of the user's queries calls, as a digest. A client that sends it knows turns: it waits for the word before it sends rows, and asks
# for the rest of its rows when the service ends a stream early.
QUERY_HEADER = "x-flintmq-query"
# what do_put says to such a client before it sends rows, and do_get behind the last rows of a turn
ADMITTED, TURN_ENDS = b"admitted", b"turn ends"


def basic_header(user: str, password: str) -> str:
    """The authorization header. Raises: ValueError for a user with a colon, which Basic can't carry."""
    if ":" in user:
        raise ValueError("a user name with a colon can't log in over Flight")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def vhost_header(vhost: str) -> str:
    """A vhost as a header carries it: percent-encoded UTF-8, `/` as it is."""
    return quote(vhost, safe="/")


def query_header(query: str) -> str:
    """The name of a query (a scope, a subscription) as a header carries it."""
    return hashlib.blake2b(query.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
