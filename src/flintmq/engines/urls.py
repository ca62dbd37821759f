"""URLs of engines in texts for people."""

from __future__ import annotations


def shown(url: str) -> str:
    """The URL without login and parameters, whichever characters a password has that should have been percent-encoded."""
    scheme, _, rest = url.partition(":")
    login, sign, place = rest.rpartition("@")
    return f"{scheme}:{'//...@' if sign and login else ''}{place.partition('?')[0]}"
