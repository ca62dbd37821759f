"""URLs of a PostgreSQL server mean what libpq's and SQLAlchemy's do, and show no password."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.store.sql.driver import Location
from flintmq.store.sql.server_url import server_url


@pytest.mark.parametrize(
    ("url", "arguments", "shown"),
    [
        ("postgresql://h/d", {"host": "h", "dbname": "d"}, "postgresql://h/d"),
        ("postgresql+psycopg://h/d", {"host": "h", "dbname": "d"}, "postgresql://h/d"),
        (
            "postgresql://u%40x:p%2F:w@h:6/d",
            {"user": "u@x", "password": "p/:w", "host": "h", "port": 6, "dbname": "d"},
            "postgresql://u%40x:***@h:6/d",
        ),
        ("postgresql://u@[::1]:6/d", {"user": "u", "host": "::1", "port": 6, "dbname": "d"}, "postgresql://u@[::1]:6/d"),
        ("postgresql:///d?host=/run/pg", {"host": "/run/pg", "dbname": "d"}, "postgresql:///d?host=%2Frun%2Fpg"),
        (
            "postgresql://h/d?sslmode=verify-full&sslpassword=hunter2&password=hunter2",
            {"host": "h", "dbname": "d", "sslmode": "verify-full", "sslpassword": "hunter2", "password": "hunter2"},
            "postgresql://h/d?password=%2A%2A%2A&sslmode=verify-full&sslpassword=%2A%2A%2A",
        ),
        ("postgresql:///d?host=a:1&host=b:2", {"host": "a,b", "port": "1,2", "dbname": "d"}, "postgresql:///d?host=a%2Cb&port=1%2C2"),
        ("postgresql:///d?host=a,b&port=1,2", {"host": "a,b", "port": "1,2", "dbname": "d"}, "postgresql:///d?host=a%2Cb&port=1%2C2"),
    ],
)
def test_the_parts_of_a_url(url: str, arguments: dict[str, Any], shown: str) -> None:
    parsed = server_url(Location(url=url))
    assert parsed.arguments() == arguments
    assert str(parsed) == shown
    assert "hunter2" not in shown


def test_the_catalog_wins_over_the_urls_database() -> None:
    assert server_url(Location(url="postgresql://h/d", catalog="c")).arguments() == {"host": "h", "dbname": "c"}
    assert server_url(Location(url="postgresql://h", catalog="c")).arguments() == {"host": "h", "dbname": "c"}
