"""/api/v1 for operators: settings without secrets, levels of the log, a stop that a process alone can do."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from flintmq.admin.v1_operator import settings_of, shown_setting
from flintmq.config import Config, Limits
from tests.admin.conftest import Client


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://me:secret@db/x", "postgresql://***@db/x"),
        ("etcd://a:secret@h1:2379,h2:2379", "etcd://***@h1:2379,h2:2379"),
        (("ldaps://u:secret@h", "plain"), ["ldaps://***@h", "plain"]),
        ("postgresql://me:a@b:c@db/x", "postgresql://***@db/x"),
        ("postgresql://db/x?sslmode=require&password=a%26b&user=me", "postgresql://db/x?sslmode=require&password=***&user=me"),
        ("postgresql://me:a/b ?c@db/x?SSLPassword=c", "postgresql://***@db/x?SSLPassword=***"),
        ("https://otel.example/v1?api-key=k1&x=1", "https://otel.example/v1?api-key=***&x=1"),
        ("me@home", "me@home"),
        (None, None),
        (True, True),
    ],
)
def test_no_password_of_a_url_is_shown(value: object, shown: object) -> None:
    assert shown_setting(value) == shown


def test_settings_are_all_options_and_all_limits() -> None:
    settings = settings_of(Config(connect="postgresql://me:secret@db/x").with_limits(channels_max=7))
    assert settings["options"].keys() >= {"host", "memory-limit", "oauth-jwks"} and "limits" not in settings["options"]
    assert settings["limits"].keys() == set(Limits.names()) and settings["limits"]["channels_max"] == 7
    assert "secret" not in json.dumps(settings)


def test_the_level_of_the_log_is_checked_and_set(start: Callable[..., Client]) -> None:
    client, before = start(), logging.getLogger().level
    try:
        assert client.request("PUT", "/api/v1/log-level", b'{"level": "error"}').status == 200
        assert logging.getLogger().level == logging.ERROR
        assert client.request("PUT", "/api/v1/log-level", b'{"level": "loud"}').status == 400
        assert logging.getLogger().level == logging.ERROR
    finally:
        logging.getLogger().setLevel(before)
    answer = client.request("POST", "/api/v1/stop")
    assert (answer.status, answer.json["error"]) == (409, "not_a_process")


def test_a_stop_begins_once(start: Callable[..., Client]) -> None:
    client = start()
    begun: list[int] = []
    client.node.stop_process = lambda: begun.append(1)
    assert {client.request("POST", "/api/v1/stop").status for _ in range(3)} == {202}
    assert begun == [1]
