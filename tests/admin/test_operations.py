"""The table of operations: it is the only way to serve a path, and each row says who may, what may be sent, and how much."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flintmq.access.permissions import NEEDS
from flintmq.access.tags import RULES
from flintmq.access.users import hash_password
from flintmq.admin import operations as table
from flintmq.admin.app import Application
from flintmq.admin.operations import Access, Operation
from flintmq.admin.router import Router
from flintmq.config import Limits
from flintmq.ports import UserRecord
from tests.admin.conftest import Client, basic

ADMIN = Path(table.__file__).parent
PUBLIC = {"/", "/console", "/console/{path:path}", "/health", "/healthz", "/readyz"}
# who lost its tags still ends its session
LOGOUT = ("DELETE", "/api/v1/session")
# rows of RabbitMQ's API that change something and take no body
NO_BODY = {
    "queues/{vhost}/{queue}/pause",
    "queues/{vhost}/{queue}/resume",
    "rebalance/queues",
    "backups",
    "backups/{backup}",
}


@pytest.fixture(scope="module")
def rows(shared: Client) -> list[Operation]:
    return Application(shared.node.http._parts).operations  # type: ignore[union-attr]


def test_nothing_is_served_past_the_table(rows: list[Operation]) -> None:
    """Routes are made in the router alone, from the rows; what is below an API and in no row is 404."""
    makers = [
        path.name
        for path in ADMIN.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Route", "Mount", "WebSocketRoute")
    ]
    assert makers == ["router.py"]
    assert len({(one.method, one.path) for one in rows}) == len(rows) > 150


def test_each_row_is_found_by_its_path(rows: list[Operation]) -> None:
    """Names are taken as they were sent, and a word comes before a name in the same place."""
    router = Router(None, rows)
    for row in rows:
        names = {name.removesuffix(":path"): f"%{number}x" for number, name in enumerate(re.findall(r"\{([\w:]+)\}", row.path))}
        path = re.sub(r"\{(\w+)(?::path)?\}", lambda match, its=names: its[match[1]], row.path)
        assert router.find(path) == ({one.method: one for one in rows if one.path == row.path}, names), row
        for other in (f"{path}/", f"{path}/more", path.replace("%", "/%", 1) if "%" in path else f"{path}/x"):
            if ":path" not in row.path and other.strip("/") != "console":
                found = router.find(other)[0]
                assert row not in found.values(), (other, row)
    assert router.find("/api/users/without-permissions")[0]["GET"].path == "/api/users/without-permissions"
    assert router.find("/console/pages/overview.js")[1] == {"path": "pages/overview.js"}


def test_two_names_of_one_place_are_refused(rows: list[Operation]) -> None:
    with pytest.raises(ValueError, match="in another path"):
        Router(None, [*rows, replace(rows[0], path="/api/v1/queues/{name}/x")])


def test_each_row_says_who_may(rows: list[Operation]) -> None:
    for row in rows:
        assert row.access in RULES or isinstance(row.access, Access), row
        assert (row.access is Access.ANYBODY) == (row.path in PUBLIC), row
        assert (row.access is Access.SCRAPER) == row.path.startswith("/metrics"), row
        assert row.access is not Access.PERMISSIONS or row.needs, row
        assert (row.access is Access.LOGGED_IN) == ((row.method, row.path) == LOGOUT), row
        if row.needs:
            assert row.needs in NEEDS and "{vhost}/{queue}" in row.path, row


def test_each_row_has_its_schemas_and_its_limit(rows: list[Operation]) -> None:
    for row in rows:
        assert isinstance(getattr(Limits, row.bytes_max), int), row
        if row.method != "GET" and ".json()" in inspect.getsource(row.handler):
            assert row.body is not None, row
        if row.is_own:
            assert row.query is not None and row.summary, row
            assert all(schema.get("type") in ("string", "integer", "number", "boolean") for schema in row.query.values()), row
        elif row.method in ("PUT", "POST"):
            assert (row.body is None) == (row.path.removeprefix("/api/") in NO_BODY), row


def test_a_row_without_a_login_is_refused(shared: Client, rows: list[Operation]) -> None:
    """Each row that is not for anybody asks who is there, and does nothing for a stranger or a user without a tag or permission."""
    shared.node.broker.users.put(UserRecord("nobody", hash_password("secret"), ()))  # type: ignore[union-attr]
    for row in rows:
        if row.access in (Access.ANYBODY, Access.SCRAPER):
            continue
        path = row.path.replace("{vhost}", "%2F").replace("{", "").replace("}", "")
        headers = {row.header: "1"} if row.header else {}
        body = b"{}" if row.body is not None else None
        stranger: Any = shared.request(row.method, path, body, headers)
        assert stranger.status == 401, (row, stranger)
        nobody: Any = shared.request(row.method, path, body, basic("nobody", "secret") | headers)
        assert nobody.status == 200 if (row.method, row.path) == LOGOUT else nobody.status in (401, 403), (row, nobody)
