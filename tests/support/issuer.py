"""Whoever signs tokens: keys, their set as a file or over HTTP, tokens with any claim or header."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

jwt = pytest.importorskip("jwt", reason="PyJWT is not installed (requirements-test.lock)")

AUDIENCE = "rabbitmq"
ALL = ("configure:*/*", "write:*/*/*", "read:*/*/*")


def public(algorithm: str, key: Any) -> dict[str, Any]:
    shown = jwt.get_algorithm_by_name(algorithm).to_jwk(key if algorithm.startswith("HS") else key.public_key(), as_dict=True)
    return dict(shown)


class Issuer:
    """Signs with one key of each kind: "rsa", "ec", "ed"."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {
            "rsa": ("RS256", rsa.generate_private_key(65537, 2048)),
            "ec": ("ES256", ec.generate_private_key(ec.SECP256R1())),
            "ed": ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
        }

    def key_set(self, *names: str) -> dict[str, Any]:
        chosen = names or tuple(self.keys)
        return {"keys": [{**public(*self.keys[name]), "kid": name, "use": "sig"} for name in chosen]}

    def write(self, path: Path, *names: str) -> str:
        path.write_text(json.dumps(self.key_set(*names)))
        return str(path)

    def token(self, *scopes: str, key: str = "ec", seconds: float = 600, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Args: scopes: without prefix; claims: instead of the usual ones; None leaves one out."""
        algorithm, private = self.keys[key]
        values: dict[str, Any] = {
            "sub": "ann",
            "aud": AUDIENCE,
            "exp": time.time() + seconds,
            "scope": " ".join(f"{AUDIENCE}.{one}" for one in scopes),
            **claims,
        }
        values = {name: value for name, value in values.items() if value is not None}
        return jwt.encode(values, private, algorithm, {"kid": key, **(headers or {})})


class KeyServer:
    """Answers every GET with `body`, or what `answer` does with the request."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked = 0
        self.seen = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with outer.seen:
                    outer.asked += 1
                    outer.seen.notify_all()
                self.send_response(outer.status)
                for name, value in {"content-length": str(len(outer.body)), **outer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/jwks"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def wait(self, asked: int) -> None:
        with self.seen:
            assert self.seen.wait_for(lambda: self.asked >= asked, 60)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
