"""The thread that sends spans to a collector, and never makes anybody wait.

in: a buffer of spans, the collector's URL. out: requests of `spans_batch` spans at most; counters of what was sent and what was lost.

E1  One batch is under way at a time. A collector that is slow or away fills the buffer, which drops (broker.spans.P1).
E2  429, 502, 503, 504 and a connection that fails are tried again, with a pause that doubles; another answer loses the batch, as OTLP says.
E3  A redirection is not followed, and of an answer ANSWER_BYTES are read: the collector decides nothing here.
E4  The values of OTEL_EXPORTER_OTLP_HEADERS are secrets: no line of the log has them, nor what a URL has beside host, port and path.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.otel import otlp

log = logging.getLogger("flintmq.otel")

HEADERS, SERVICE = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"
PATH = "/v1/traces"
ANSWER_BYTES = 65_536
# seconds between two lines about what can't be sent
_TOLD_S = 60.0
_RETRIED = (429, 502, 503, 504)
# milliseconds before the first new try
_PAUSE_MS = 1_000


class _Lost(Exception):
    """A batch that will not be taken. `str`: why."""


def read_endpoint(url: str) -> SplitResult:
    """A collector's URL, with the path of traces. Raises: OperatorError 78."""
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise OperatorError("--otel-endpoint: an http or https URL of a collector is expected, like http://127.0.0.1:4318", 78)
    if parts.username is not None or parts.query or parts.fragment:
        raise OperatorError(f"--otel-endpoint: no login and no query in the URL; headers are given in the environment ({HEADERS})", 78)
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(PATH) else path + PATH)


def read_headers(text: str) -> dict[str, str]:
    """Headers as the environment has them: `name=value,name=value`, percent-encoded. Raises: OperatorError 78."""
    headers = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        token = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not equals or not token or not value.isprintable() or not value.isascii():
            raise OperatorError(f"{HEADERS}: name=value pairs with commas between are expected; one of them is none", 78)
        headers[name] = value
    return headers


class Exporter:
    """Args: spans: the buffer (take, lost, waiting); endpoint: see read_endpoint; node: name of this broker; limits; environment.
    Raises: OperatorError 78."""

    def __init__(
        self, spans: Any, endpoint: str, node: str, version: str, limits: Limits, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._spans = spans
        self._url = read_endpoint(endpoint)
        self._headers = read_headers(environment.get(HEADERS, "")) | {"content-type": "application/json"}
        self._resource = {"service.name": environment.get(SERVICE, "flintmq"), "service.instance.id": node, "service.version": version}
        self._version = version
        self._limits = limits
        self._context = ssl.create_default_context() if self._url.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._stopping = threading.Event()
        self._told_s = 0.0
        self._thread = threading.Thread(target=self._run, name="flintmq-otel", daemon=True)
        self.sent = 0
        self.failures = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What waits is sent, if the collector takes it within Limits.spans_stop_ms."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._limits.spans_stop_ms / 1000)

    # --- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        limits = self._limits
        while True:
            if self._spans.waiting() < limits.spans_batch:
                self._stopping.wait(limits.spans_pause_ms / 1000)
            batch = self._spans.take(limits.spans_batch)
            if batch:
                self._deliver(batch)
            elif self._stopping.is_set():
                self._hang_up()
                return

    def _deliver(self, batch: list[Any]) -> None:
        """E2."""
        try:
            body = otlp.request(batch, self._resource, self._version)
            pause_ms = _PAUSE_MS
            for left in reversed(range(1 if self._stopping.is_set() else self._limits.spans_tries)):
                reason = self._try(body)
                if reason is None:
                    self.sent += len(batch)
                    return
                self.failures += 1
                self._tell(reason)
                if left and self._stopping.wait(pause_ms / 1000):
                    break
                pause_ms = min(2 * pause_ms, self._limits.spans_retry_ms_max)
        except _Lost as error:
            self.failures += 1
            self._tell(str(error))
        except Exception:
            log.exception("internal error: spans are lost")
        self._spans.lost(len(batch))

    def _try(self, body: bytes) -> str | None:
        """None: the collector has the spans; else why it may be tried again. Raises: _Lost."""
        for fresh in (False, True):
            fresh = fresh or self._connection is None
            try:
                status = self._ask(body)
            except (OSError, http.client.HTTPException) as error:
                self._hang_up()
                if fresh:
                    return f"{type(error).__name__}: {error}"
                continue  # the collector closed a connection that was idle
            if 200 <= status < 300:
                return None
            if status in _RETRIED:
                return f"HTTP {status}"
            raise _Lost(f"HTTP {status}; spans are lost")
        return "the connection fails"

    def _ask(self, body: bytes) -> int:
        connection = self._connection
        if connection is None:
            host, wait_s = self._url.hostname or "", self._limits.spans_answer_ms / 1000
            if self._context is not None:
                connection = http.client.HTTPSConnection(host, self._url.port or 443, timeout=wait_s, context=self._context)
            else:
                connection = http.client.HTTPConnection(host, self._url.port or 80, timeout=wait_s)
            self._connection = connection
        connection.request("POST", self._url.path, body, self._headers)
        response = connection.getresponse()
        response.read(ANSWER_BYTES)
        if not response.isclosed():
            self._hang_up()  # E3
        return response.status

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _tell(self, reason: str) -> None:
        """One line in _TOLD_S seconds."""
        now_s = time.monotonic()
        if self._told_s == 0.0 or now_s - self._told_s >= _TOLD_S:
            self._told_s = now_s
            log.warning("spans: the collector at %s:%s does not take them: %s", self._url.hostname, self._url.port or "", reason[:200])
