"""The API of one broker, as its operator's commands ask it.

in: the address of an HTTP port, a user, a request. out: JSON, or an OperatorError with the exit code that rabbitmqctl would have.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from flintmq.errors import OperatorError

# seconds that an answer may take unless --timeout says otherwise
TIMEOUT_S = 60.0
# status of HTTP -> exit code, as sysexits and rabbitmqctl have them; others: 70
_EXIT_CODES = {400: 65, 401: 77, 403: 77, 404: 65, 409: 65, 413: 65}
TIMED_OUT = 75


class Remote:
    """Args: uri: of the HTTP port; user, password; timeout_s: seconds for an answer; node: name of a node that is to answer, "": any."""

    def __init__(self, uri: str, user: str, password: str, timeout_s: float = TIMEOUT_S, node: str = "") -> None:
        self._uri = uri
        self._credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._timeout_s = timeout_s
        self._node = node

    def of(self, user: str, password: str) -> Remote:
        """The same broker, asked by somebody else."""
        return Remote(self._uri, user, password, self._timeout_s, self._node)

    def ask(self, method: str, path: str, value: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer's JSON, or None. Raises: OperatorError: 69 not reachable, 75 no answer in time, 65 refused or not there, 77 not
        allowed, 70 otherwise."""
        if self._node:
            self._find_node()
        return self._ask(method, path, value, headers)

    def _ask(self, method: str, path: str, value: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        status, reason, raw, is_json = self._request(method, path, value, headers)
        answer = json.loads(raw) if raw and is_json else None
        if status >= 400:
            text = answer.get("reason", "") if isinstance(answer, dict) else ""
            raise OperatorError(f"{text or reason} ({status})", _EXIT_CODES.get(status, 70))
        return answer

    def check(self, path: str) -> dict[str, Any]:
        """A health check: its answer, also when it failed (503). Raises: as `ask`."""
        if self._node:
            self._find_node()
        status, reason, raw, is_json = self._request("GET", f"health/checks/{path}", None, None)
        value = json.loads(raw) if raw and is_json else {}
        if status >= 400 and not (status == 503 and value.get("status") == "failed"):
            raise OperatorError(f"{value.get('reason') or reason} ({status})", _EXIT_CODES.get(status, 70))
        return value if isinstance(value, dict) else {}

    def _request(self, method: str, path: str, value: Any, headers: Mapping[str, str] | None) -> tuple[int, str, bytes, bool]:
        body = None if value is None else json.dumps(value).encode()
        # the last one: no page of a browser asks; operations under /api/v1 want it
        own = {"Authorization": f"Basic {self._credentials}", "Content-Type": "application/json", "X-FlintMQ-Request": "1"}
        connection = self._connection()
        try:
            connection.request(method, f"/api/{path}", body, {**own, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.reason, response.read(), "json" in response.headers.get("content-type", "")
        except TimeoutError:
            raise OperatorError(f"no answer from {self._uri} within {self._timeout_s:g} s (--timeout)", TIMED_OUT) from None
        except (OSError, http.client.HTTPException) as error:
            text = f"no broker answers at {self._uri}: {error}. Is it running, and is this its --http-port (--uri)?"
            raise OperatorError(text, 69) from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._uri)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host:
            raise OperatorError(f"--uri is {self._uri!r}: it must be like http://127.0.0.1:15672", 64)
        if parts.scheme == "https":
            import ssl

            return http.client.HTTPSConnection(host, port or 15671, timeout=self._timeout_s, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port or 15672, timeout=self._timeout_s)

    def _find_node(self) -> None:
        """Goes to the node of that name. Scripts of RabbitMQ say `-n rabbit@host`: that is the node of --uri, unless it is one of several,
        where a command for the wrong one does harm. Raises: OperatorError 65: there is no such node."""
        wanted, self._node = self._node, ""
        own = self._ask("GET", "overview")["node"]
        if wanted in (own, own.partition("@")[0]):
            return
        # every user of the management may ask for these; a node that is alone has none
        if not any(self._ask("GET", "v1/cluster/addresses").values()):
            if wanted.partition("@")[0] == "rabbit":
                return
            raise OperatorError(f"no node '{wanted}': the broker at {self._uri} is '{own}', and in no cluster", 65)
        named = {one["name"]: one for one in self._ask("GET", "v1/cluster")["nodes"]}
        if wanted not in named:
            raise OperatorError(f"no node '{wanted}' in the cluster: its nodes are {', '.join(sorted(named))}", 65)
        address = named[wanted].get("addresses", {}).get("http", "")
        if not address:
            raise OperatorError(f"node '{wanted}' has no HTTP port: ask it by --uri", 65)
        self._uri = f"{urlsplit(self._uri).scheme}://{address}"
