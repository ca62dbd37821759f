"""Limits as options of `flintmq serve`: each reaches the broker, from the command line, a file, and an imported rabbitmq.conf."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from flintmq.cli.convert import _MAPPED, read, toml
from flintmq.cli.limit_options import LIMIT_OPTIONS, default_of, limits_of
from flintmq.cli.serve import serve
from flintmq.cli.serve_options import config_of, from_file
from flintmq.config import KIB, MIB, Config, Limits
from flintmq.node import memory_available
from tests.cli.test_ctl import Operator
from tests.support.broker import wait_until


def options_of(*words: str) -> dict[str, Any]:
    """What the command line says."""
    context = serve.make_context("serve", list(words))
    return {name: value for name, value in context.params.items() if name != "config"}


def test_limits_without_an_option_are_the_defaults_and_each_option_sets_its_own() -> None:
    assert limits_of(options_of())[1] == {}
    assert config_of(options_of(), ()).limits.__dict__ == {}, "no copy of the limits is made for a start without options"
    given = {
        "heartbeat": 7, "frame-max": "16KiB", "channel-max": 5, "connection-max": 50, "handshakes-max": 9, "user-connections-share": 0.5,
        "consumer-max-per-channel": 3, "consumer-timeout": 60_000, "max-message-size": "1kB", "handshake-timeout": 2_000,
        "tls-handshake-timeout": 1_000,
        "login-failures-max": 4, "login-source-failures-max": 40, "vhost-max": 8, "queue-max": 80, "http-connection-max": 100,
        "http-body-max": "64KiB", "definitions-file-max": "1MB", "checkpoint-bytes": "128KiB", "stop-timeout": 5_000,
    }  # fmt: skip
    assert given.keys() == {one.name for one in LIMIT_OPTIONS}, "a new option is tested here"
    limits = config_of(options_of(*(word for name, value in given.items() for word in (f"--{name}", str(value)))), ()).limits
    for one in LIMIT_OPTIONS:
        value = given[one.name]
        wanted = (
            value
            if not isinstance(value, str)
            else {"16KiB": 16 * KIB, "1kB": 1_000, "64KiB": 64 * KIB, "1MB": 10**6, "128KiB": 128 * KIB}[value]
        )
        assert (getattr(limits, one.field), default_of(one)) == (wanted, getattr(Limits(), one.field)), one.name
    assert len({one.field for one in LIMIT_OPTIONS}) == len(LIMIT_OPTIONS)


def test_the_same_keys_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'heartbeat = 30\nmax-message-size = "2MB"\nmemory-limit = "1GB"\ndisk-free-limit = "150%"\nuser-connections-share = 0.5\n'
    )
    loaded = from_file(str(file), click.Context(serve))
    assert loaded == {
        "heartbeat": 30, "max_message_size": 2_000_000, "memory_limit": 10**9, "disk_free_limit": int(memory_available() * 1.5),
        "user_connections_share": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--memory-limit", "0.6"), int(memory_available() * 0.6)),
        (("--memory-limit", "60%"), int(memory_available() * 0.6)),
        (("--memory-limit", "2GiB"), 2 << 30),
        (("--memory-limit", "1000"), 1000),
        (("--memory-limit", "lots"), "is no size: a number of bytes, or one with a unit such as 512MB, 2GB, 1GiB; or a share"),
        (("--memory-limit", "101%"), "is no share above 0 and at most 100%"),
        (("--memory-limit", "0"), "is less than one byte"),
        (("--frame-max", "1MiB"), "1MiB is not between 8192 and 131072 bytes"),
        (("--max-message-size", "1GB"), "1GB is not between 1 and 134217728 bytes"),
        (("--heartbeat", "-1"), "-1 is not in the range 0<=x<=65535"),
        (("--container-size", "0"), "0 is below 1 bytes"),
    ],
)
def test_sizes_and_shares(words: tuple[str, str], text: int | str) -> None:
    if isinstance(text, int):
        assert options_of(*words)["memory_limit"] == text
        return
    with pytest.raises(click.BadParameter) as refused:
        options_of(*words)
    assert text in refused.value.format_message() and words[0] in refused.value.format_message()


def test_rabbitmqs_names_become_options(tmp_path: Path) -> None:
    text = (
        "heartbeat = 30\nframe_max = 131072\nchannel_max = 100\nconnection_max = 5000\nmax_message_size = 16777216\n"
        "consumer_max_per_channel = 10\nconsumer_timeout = 1800000\n"
        "handshake_timeout = 20000\nssl_handshake_timeout = 6000\nvhost_max = 9\n"
        "disk_free_limit.absolute = 2GB\nvm_memory_high_watermark.relative = 0.4\nmanagement.http.max_body_size = 8388608\n"
    )
    result = read(text)
    assert (result.notes, result.unknown) == ([], [])
    file = tmp_path / "broker.toml"
    file.write_text(toml(result, "x"))
    options = from_file(str(file), click.Context(serve))
    assert options["disk_free_limit"] == 2 * 10**9 and options["memory_limit"] == int(memory_available() * 0.4)
    assert limits_of(options)[1] == {
        "heartbeat_s": 30, "frame_size_max": 128 * KIB, "channels_max": 100, "connections_max": 5000, "message_size_max": 16 * MIB,
        "channel_consumers_max": 10, "consumer_timeout_ms": 1_800_000,
        "handshake_ms_max": 20_000, "tls_handshake_ms_max": 6_000, "vhosts_max": 9,
        "http_definitions_bytes_max": 8 * MIB,
    }  # fmt: skip
    assert read("disk_free_limit.relative = 1.5").options == {"disk-free-limit": "150%"}
    assert read("disk_free_limit.relative = 2").options == {"disk-free-limit": "200%"}
    for line in ("frame_max = 1048576", "heartbeat = soon", "disk_free_limit.absolute = some", "disk_free_limit.relative = 11"):
        (wrong,) = read(line).unknown
        assert wrong.startswith(f"line 1: {line.partition(' ')[0]}: ")
    assert {one.rabbitmq for one in LIMIT_OPTIONS if one.rabbitmq} <= _MAPPED.keys()


@contextmanager
def serving(*options: str) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--port", "0", "--http-port", "0", "--flight-port", "off", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_clients_meet_the_limits() -> None:
    limits = ["--heartbeat", "7", "--frame-max", "16KiB", "--channel-max", "5", "--max-message-size", "1kB", "--handshake-timeout", "300"]
    with serving("--memory", *limits) as ready, socket.create_connection(("127.0.0.1", ready["amqp_port"])) as silent:
        began_s = time.monotonic()
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ready["amqp_port"])) as connection:
            link = connection._impl
            assert (link.params.channel_max, link.params.frame_max, link.params.heartbeat) == (5, 16 * KIB, 7)
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q")
            channel.basic_publish("", "q", bytes(1_000))
            with pytest.raises(ChannelClosedByBroker, match="PRECONDITION_FAILED"):
                channel.basic_publish("", "q", bytes(1_001))
        silent.settimeout(10)
        while silent.recv(4_096):
            pass
        assert time.monotonic() - began_s < 5
        operator = Operator(None, f"http://127.0.0.1:{ready['http_port']}")
        settings = json.loads(operator.run("environment", "--formatter", "json"))
        assert settings["limits"]["heartbeat_s"] == 7


def test_publishers_wait_below_the_free_space_that_is_asked_for(tmp_path: Path) -> None:
    """More than the disk has: blocked from the start; less: not, and the API tells the limit."""
    space = os.statvfs(tmp_path)
    free = space.f_bavail * space.f_frsize
    for limit, blocked in ((free + (1 << 40), True), (free // 4, False)):
        with serving("--data-dir", str(tmp_path / "data"), "--disk-free-limit", str(limit)) as ready:
            operator = Operator(None, f"http://127.0.0.1:{ready['http_port']}")

            def is_told(operator: Operator = operator, text: str = f"disk_free_alarm: {'true' if blocked else 'false'}\n") -> bool:
                return text in operator.run("status")

            wait_until(is_told)
            assert f"disk_free_limit: {limit} B" in operator.run("status")
            operator.run("check_alarms", code=70 if blocked else 0)
            if blocked:
                assert operator.run("alarms") == "disk\n"
    assert Config().disk_free_limit is None
