"""Public keys of the issuers that sign tokens: a JSON Web Key Set of a file or of a URL, read by a thread of its own and kept.

in: the place of the set. out: keys by their id, each with the algorithms that it may be used with.

K1  Nobody waits for a fetch: a key that is not known is refused, and asked for. One begins when the last is at least
    Limits.jwks_pause_ms ago, whatever tokens say; a set that can't be read leaves the last one as it is.
K2  A key says what it may be used with: its type, and its `alg` where it has one. A token's header chooses among these only, so that no
    public key is ever taken for a secret. Secrets (`oct`) are taken from a file alone.
K3  An answer has at most Limits.jwks_bytes_max bytes and Limits.jwks_ms to come, and no redirection is followed.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jwt

from flintmq.access.users import is_loopback
from flintmq.clock import Clock
from flintmq.config import Limits
from flintmq.errors import OperatorError

log = logging.getLogger("flintmq.access")

# type of key, of a curve too where it has one -> algorithms
_ALGORITHMS = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
    ("oct", ""): ("HS256", "HS384", "HS512"),
}
ALGORITHMS = tuple(dict.fromkeys(name for names in _ALGORITHMS.values() for name in names))
# bits of an RSA key: fewer can be broken, more take milliseconds
_RSA_BITS = range(2048, 8193)
# bytes of a secret: RFC 7518, 3.2 for SHA-256
_SECRET_BYTES = 32


class Key(NamedTuple):
    """A key and what it may be used with."""

    key: Any
    algorithms: tuple[str, ...]


def read_keys(raw: bytes, secrets: bool, keys_max: int) -> dict[str, list[Key]]:
    """Keys of a set by their id ("": without one). Keys that can't be used for signatures are left out. Raises: ValueError."""
    try:
        document = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ValueError("it is no JSON Web Key Set: an object with a list 'keys' of objects")
    if len(entries) > keys_max:
        raise ValueError(f"it has more than {keys_max} keys")
    keys: dict[str, list[Key]] = {}
    for entry in entries:
        key_id = entry.get("kid", "")
        try:
            key = _key(entry, secrets)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            log.warning("key %.80r of the tokens' issuer is left out: %s", key_id, error)
            continue
        if isinstance(key_id, str):
            keys.setdefault(key_id, []).append(key)
    return keys


def _key(entry: Mapping[str, Any], secrets: bool) -> Key:
    kind, curve = entry.get("kty"), entry.get("crv", "")
    algorithms = _ALGORITHMS.get((str(kind), str(curve) if kind in ("EC", "OKP") else ""), ())
    if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ("verify",)):
        raise ValueError("it is not for signatures")
    if kind == "oct" and not secrets:
        raise ValueError("a secret is taken from a file only")
    if "alg" in entry:
        algorithms = tuple(name for name in algorithms if name == entry["alg"])
    if not algorithms:
        raise ValueError(
            f"its type {str(kind)[:20]!r} {str(curve)[:20]!r} and alg {str(entry.get('alg', ''))[:20]!r} mean no known algorithm"
        )
    key = jwt.PyJWK(dict(entry), algorithms[0]).key
    if kind == "RSA" and key.key_size not in _RSA_BITS:
        raise ValueError(f"it has {key.key_size} bits; {_RSA_BITS.start} to {_RSA_BITS.stop - 1} are taken")
    if kind == "oct" and len(key) < _SECRET_BYTES:
        raise ValueError(f"its secret has {len(key)} bytes; {_SECRET_BYTES} are needed")
    return Key(key, algorithms)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


class KeySet:
    """The keys there are now.

    Args: place: a path, or a URL: https, or http to this machine; ca_file: who signs that server's certificate, None: whom the system
    trusts.
    Raises: OperatorError for a file that can't be read, and for another kind of URL.
    """

    def __init__(self, place: str, ca_file: str | None, clock: Clock, limits: Limits) -> None:
        self._place = place
        self._clock = clock
        self._limits = limits
        self._keys: dict[str, list[Key]] = {}
        self._wanted = threading.Event()
        self._stopping = False
        self._tried_ns: int | None = None
        self._first = threading.Event()
        self._opener: urllib.request.OpenerDirector | None = None
        url = urllib.parse.urlsplit(place)
        if url.scheme in ("http", "https") and url.hostname:
            host = url.hostname
            if url.scheme == "http" and not (host == "localhost" or is_loopback(host)):
                raise OperatorError(f"--oauth-jwks {place}: keys come over https, or from this machine")
            try:
                context = ssl.create_default_context(cafile=ca_file)
            except (ssl.SSLError, OSError) as error:
                raise OperatorError(f"--oauth-ca {ca_file}: no certificates in PEM form ({error})") from error
            self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        elif "://" in place:
            raise OperatorError(f"--oauth-jwks {place}: a path or an https URL is expected")
        else:
            try:
                self._keys = self._read()
            except (OSError, ValueError) as error:
                raise OperatorError(f"--oauth-jwks {place}: {error}") from error
        self._thread = threading.Thread(target=self._run, name="flintmq-jwks", daemon=True)

    def start(self) -> None:
        """Reads the set, and again and again. Waits for the first answer for Limits.jwks_ms at most."""
        self._thread.start()
        self._first.wait(self._limits.jwks_ms / 1000)

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def find(self, key_id: str | None) -> Sequence[Key]:
        """The keys of this id; without one, all there are. None there: they are asked for (K1)."""
        keys = self._keys
        if key_id is None:
            return [key for named in keys.values() for key in named]
        candidates = keys.get(key_id, ())
        if not candidates:
            self.refresh()
        return candidates

    def refresh(self) -> bool:
        """Asks for a new look at the place, unless the last one was just now. Any thread; does not wait."""
        tried = self._tried_ns
        if tried is not None and self._clock.monotonic_ns() - tried < self._limits.jwks_pause_ms * 1_000_000:
            return False
        self._tried_ns = self._clock.monotonic_ns()
        self._wanted.set()
        return True

    def _run(self) -> None:
        while not self._stopping:
            self._tried_ns = self._clock.monotonic_ns()
            try:
                self._keys = self._read()
                log.info("%d keys for tokens from %s", len(self), self._place)
            except Exception as error:  # whatever a server sends: the next look may see something else
                log.error("the keys for tokens can't be read from %s: %s; %d keys stay", self._place, error, len(self))
            self._first.set()
            self._wanted.wait(self._limits.jwks_refresh_s)
            self._wanted.clear()

    def _read(self) -> dict[str, list[Key]]:
        most = self._limits.jwks_bytes_max
        if self._opener is None:
            with Path(self._place).open("rb") as file:
                raw = file.read(most + 1)
        else:
            raw = self._fetch(most)
        if len(raw) > most:
            raise ValueError(f"it has more than {most} bytes")
        return read_keys(raw, self._opener is None, self._limits.jwks_keys_max)

    def _fetch(self, most: int) -> bytes:
        assert self._opener is not None
        end_ns = self._clock.monotonic_ns() + self._limits.jwks_ms * 1_000_000
        request = urllib.request.Request(self._place, headers={"accept": "application/jwk-set+json, application/json"})
        pieces, size = [], 0
        with self._opener.open(request, timeout=self._limits.jwks_ms / 1000) as answer:
            while size <= most:
                piece = answer.read1(65536)
                if not piece:
                    break
                pieces.append(piece)
                size += len(piece)
                if self._clock.monotonic_ns() > end_ns:
                    raise ValueError(f"its answer took more than {self._limits.jwks_ms} ms")
        return b"".join(pieces)
