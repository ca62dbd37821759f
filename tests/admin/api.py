"""A client of RabbitMQ's API for tests: `api.put("queues/%2F/q", {...}, 201)` asks and compares the status."""

from __future__ import annotations

import json
from typing import Any

from tests.admin.conftest import Answer, Client, basic

PERMISSION = {"configure": ".*", "write": ".*", "read": ".*"}


class Api:
    """Args: client; user: whose password is its name."""

    def __init__(self, client: Client, user: str = "guest") -> None:
        self.client = client
        self.headers = {name: value for name, value in basic(user, user).items() if name == "Authorization"}

    def ask(self, method: str, path: str, value: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """As RabbitMQ's tools ask: no header of ours, a content type only with a body."""
        body = None if value is None else json.dumps(value).encode()
        connection = self.client.connection()
        kind = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, f"/api/{path}", body, {**self.headers, **kind, **(headers or {})})
            response = connection.getresponse()
            found = {name.lower(): text for name, text in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, status: int = 200) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == status, answer
        return answer.json

    def put(self, path: str, value: Any = None, status: int = 201) -> Any:
        answer = self.ask("PUT", path, value)
        assert answer.status == status, answer
        return answer.json if answer.raw else None

    def post(self, path: str, value: Any, status: int = 200) -> Any:
        answer = self.ask("POST", path, value)
        assert answer.status == status, answer
        return answer.json if answer.raw else None

    def delete(self, path: str, status: int = 204) -> Any:
        answer = self.ask("DELETE", path)
        assert answer.status == status, answer
        return answer.json if answer.raw else None

    def user(self, name: str, tags: str = "", *vhosts: str) -> Api:
        """A new user with all permissions in these virtual hosts (percent-encoded)."""
        self.put(f"users/{name}", {"password": name, "tags": tags})
        for vhost in vhosts:
            self.put(f"permissions/{vhost}/{name}", PERMISSION)
        return Api(self.client, name)
