"""Requests to an etcd v3 server by its JSON gateway: no dependency beside the standard library.

in: a path and a table. out: the server's answer, or an error that says whether the request may have had an effect.

With a login each request carries a token of etcd's, which is asked for when there is none, or when etcd does not know it any more.

C1  NotSent: no byte of the request reached a server. Refused: the server answered that it did nothing. Everything else is Doubtful.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from flintmq.kv.engine import EngineError

Table = dict[str, Any]
# codes of gRPC in an error's answer: the server says that it did nothing
_INVALID, _OUT_OF_RANGE, _EXHAUSTED, _UNAUTHENTICATED = 3, 11, 8, 16
_REFUSED = (_INVALID, 5, 6, 7, _EXHAUSTED, 9, _OUT_OF_RANGE, 12, _UNAUTHENTICATED)
# bytes of an answer; etcd takes requests of 1.5 MiB, and we ask for a few megabytes of rows at once
ANSWER_BYTES_MAX = 64 * 1024 * 1024
# idle connections that are kept
_IDLE_MAX = 16


class NotSent(EngineError):
    """No server could be reached."""


class Refused(EngineError):
    """The server did nothing. `code`: gRPC's."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Doubtful(EngineError):
    """The request was sent, and there is no answer that says what it did."""


def encode(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def decode(value: str | None) -> bytes:
    return base64.b64decode(value) if value else b""


def _headers(token: str) -> dict[str, str]:
    return {"Content-Type": "application/json", **({"Authorization": token} if token else {})}


def _is_of_login(error: Refused) -> bool:
    """Whether etcd refused a request for its token: it is unknown, too old, or missing."""
    return error.code == _UNAUTHENTICATED or (error.code == _INVALID and ("auth" in str(error) or "token" in str(error)))


class EtcdClient:
    """Args: endpoints: URLs of members (http or https), tried in turn; timeout_s: of one request; login: user and password. Any thread."""

    def __init__(self, endpoints: tuple[str, ...], timeout_s: float, login: tuple[str, str] | None = None) -> None:
        self._endpoints = [urlsplit(endpoint) for endpoint in endpoints]
        self._timeout_s = timeout_s
        self._first = 0  # the endpoint that answered last
        self._lock = threading.Lock()
        self._idle: list[tuple[int, http.client.HTTPConnection]] = []
        self._closed = False
        self._login = login
        self._token = ""

    def call(self, path: str, body: Table) -> Table:
        """Posts a request. Raises: NotSent, Refused, Doubtful."""
        token = self._authorized()
        try:
            return self._post(path, body, token)
        except Refused as error:
            if self._login is None or not _is_of_login(error):
                raise
        return self._post(path, body, self._authorized(token))

    def _authorized(self, stale: str = "") -> str:
        """The token of this client, another one than `stale`; empty without a login. Raises: NotSent: there is none."""
        with self._lock:
            token = self._token
        if self._login is None or (token and token != stale):
            return token
        user, password = self._login
        try:
            token = str(self._post("/v3/auth/authenticate", {"name": user, "password": password}, "").get("token", ""))
        except (Refused, Doubtful) as error:  # of what the caller wants nothing was sent
            raise NotSent(f"login of user {user!r}: {error}") from error
        with self._lock:
            self._token = token
        return token

    def _post(self, path: str, body: Table, token: str) -> Table:
        data = json.dumps(body).encode()
        number, connection = self._connection()
        try:
            connection.request("POST", path, data, _headers(token))
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._first = (number + 1) % len(self._endpoints)
            raise Doubtful(f"etcd did not answer: {error!r}") from error
        self._give_back(number, connection)
        return self._parse(answer, response.status)

    def _parse(self, answer: bytes, status: int) -> Table:
        try:
            table = json.loads(answer)
        except ValueError as error:
            raise Doubtful(f"etcd's answer can't be read: status {status}") from error
        if status == 200 and isinstance(table, dict):
            return table
        code = table.get("code", 0) if isinstance(table, dict) else 0
        text = str(table.get("message", table) if isinstance(table, dict) else table)[:300]
        if code in _REFUSED:
            raise Refused(f"etcd: {text}", code)
        raise Doubtful(f"etcd: {text}")

    def stream(self, path: str, body: Table, timeout_s: float) -> Iterator[Table]:
        """Posts a request whose answers come as they happen, one a line. Ends when the server ends it.

        Raises: NotSent, Doubtful (also when nothing comes for `timeout_s`).
        """
        token = self._authorized()
        number, connection = self._open(timeout_s)
        try:
            connection.request("POST", path, json.dumps(body).encode(), _headers(token))
            response = connection.getresponse()
            while line := response.readline(ANSWER_BYTES_MAX):
                table = json.loads(line)
                if "error" in table or table.get("result", {}).get("canceled"):
                    self._forget(token)  # perhaps for its token: the next stream has another one
                yield table
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._first = (number + 1) % len(self._endpoints)
            raise Doubtful(f"etcd's stream ended: {error!r}") from error
        finally:
            connection.close()

    def _forget(self, token: str) -> None:
        with self._lock:
            if self._token == token:
                self._token = ""

    def _connection(self) -> tuple[int, http.client.HTTPConnection]:
        with self._lock:
            if self._closed:
                raise NotSent("the engine is closed")
            if self._idle:
                return self._idle.pop()
        return self._open(self._timeout_s)

    def _open(self, timeout_s: float) -> tuple[int, http.client.HTTPConnection]:
        """A connection to the first member that takes one."""
        failure: OSError | None = None
        for step in range(len(self._endpoints)):
            number = (self._first + step) % len(self._endpoints)
            endpoint = self._endpoints[number]
            host, port = endpoint.hostname or "127.0.0.1", endpoint.port or 2379
            connection: http.client.HTTPConnection
            if endpoint.scheme == "https":
                connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
            else:
                connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
            try:
                connection.connect()
            except OSError as error:
                failure = error
                continue
            self._first = number
            return number, connection
        raise NotSent(f"no etcd member can be reached: {failure}") from failure

    def _give_back(self, number: int, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_MAX and connection.sock is not None:
                self._idle.append((number, connection))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()
