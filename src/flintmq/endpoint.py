"""An address and a port as people write them."""

from __future__ import annotations


def endpoint(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
