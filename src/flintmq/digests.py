"""BLAKE2b and random texts without OpenSSL, whose 3 MiB a broker needs with its first login, and not before.

`hashlib` and `secrets` load the library when they are imported; what they give here comes from elsewhere.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode

try:
    from _blake2 import blake2b  # what hashlib.blake2b is
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b", "token"]


def token(count: int) -> str:
    """A random text of letters, digits, `-` and `_` that nobody can guess, from so many bytes of the system's source."""
    return urlsafe_b64encode(os.urandom(count)).rstrip(b"=").decode()
