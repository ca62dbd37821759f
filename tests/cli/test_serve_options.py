"""`flintmq serve` takes the store's options as seed 003 has them, and refuses what can't be with one clear line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import self_signed_certificate

COMMAND = [sys.executable, "-m", "flintmq.cli.main", "serve", "--port", "0", "--http-port", "off", "--flight-port", "off"]


@contextmanager
def serving(*options: str, home: Path) -> Iterator[tuple[dict[str, object], Path]]:
    """A broker process; its ready line and the file with its log. It is stopped by SIGTERM and must exit 0."""
    log = home / "log"
    environment = {**os.environ, "XDG_DATA_HOME": str(home / "xdg")}
    with log.open("w") as stderr, subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=stderr, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line), log
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.kill()


def refused(*options: str, home: Path) -> tuple[int, str]:
    """Exit code and standard error of a broker that must not come up."""
    environment = {**os.environ, "XDG_DATA_HOME": str(home / "xdg")}
    result = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert result.stdout == ""
    return result.returncode, result.stderr


def containers(store: Path, log: str = "messages") -> list[int]:
    return [path.stat().st_size for path in sorted((store / log).glob("*.flog"))]


def test_container_sizes_are_rounded_up(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "small"), "--container-size", "1", home=tmp_path):
        assert set(containers(tmp_path / "small")) == {512 * 1024}
    with serving("--data-dir", str(tmp_path / "odd"), "--container-size", "700000", "--initial-containers", "5", home=tmp_path) as (_, log):
        assert set(containers(tmp_path / "odd")) == {700416}
        assert len(containers(tmp_path / "odd")) >= 5
    assert "--container-size of 700000 bytes is rounded up to 700416" in log.read_text()


def test_another_size_or_number_on_an_existing_log_is_ignored_with_a_warning(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving("--data-dir", str(store), "--container-size", "524288", home=tmp_path):
        before = containers(store)
    with serving("--data-dir", str(store), "--container-size", "2000000", home=tmp_path) as (_, log):
        assert "keeps its container size of 524288 bytes: --container-size is ignored" in log.read_text()
        assert set(containers(store)) == set(before) == {524288}


def test_store_dir_defaults_to_data_dir_and_wins_over_it(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data"), home=tmp_path) as (ready, _):
        assert ready["store_dir"] == str(tmp_path / "data")
    with serving("--data-dir", str(tmp_path / "data"), "--store-dir", str(tmp_path / "store"), home=tmp_path) as (ready, _):
        assert ready["store_dir"] == str(tmp_path / "store")
    with serving("--no-data-dir", "--store-dir", str(tmp_path / "other"), home=tmp_path) as (ready, _):
        assert ready["store_dir"] == str(tmp_path / "other")
    with serving(home=tmp_path) as (ready, _):
        assert ready["store_dir"] == str(tmp_path / "xdg" / "flintmq")


def test_memory_leaves_nothing_on_disk(tmp_path: Path) -> None:
    with serving("--memory", home=tmp_path) as (ready, _):
        assert ready["store_dir"] is None
    assert not (tmp_path / "xdg").exists()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--no-data-dir"], 64, "--no-data-dir needs --store-dir"),
        (["--memory", "--store-dir", "x"], 64, "--memory keeps nothing"),
        (["--container-size", "0"], 64, "--container-size"),
        (["--container-size", "1099511627776"], 64, "above the limit"),
        (["--initial-containers", "-1"], 64, "--initial-containers"),
        (["--max-write-buffers", "0"], 64, "--max-write-buffers"),
        (["--log-retain-bytes", "-1"], 64, "--log-retain-bytes"),
        (["--data-dir", "/proc/flintmq"], 69, "cannot make the store directory"),
        (["--connect", "nonsense"], 78, "--connect"),
    ],
)
def test_what_can_not_be_is_refused_with_its_name(tmp_path: Path, options: list[str], code: int, text: str) -> None:
    found, error = refused(*options, home=tmp_path)
    assert (found, text in error, "Traceback" in error) == (code, True, False), error


def test_a_store_belongs_to_one_broker(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data"), home=tmp_path):
        code, error = refused("--data-dir", str(tmp_path / "data"), home=tmp_path)
    assert code == 69
    assert "is open in another broker" in error


def test_logs_of_another_store_are_refused(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data"), home=tmp_path):
        pass
    (tmp_path / "data" / "definitions.db").unlink()
    code, error = refused("--data-dir", str(tmp_path / "data"), home=tmp_path)
    assert code == 74
    assert "belong" in error
    assert "Traceback" not in error


def test_ways_in_of_a_file_and_of_the_command_line(tmp_path: Path) -> None:
    """Repeatable options, tokens, sockets: what the file says, and what is refused with one line."""
    import pika

    (tmp_path / "jwks.json").write_text('{"keys": []}')
    (tmp_path / "broker.toml").write_text(
        f"""
auth-mechanism = ["SCRAM-SHA-256", "PLAIN"]
proxy-from = ["192.0.2.0/24", "2001:db8::/32"]
unix-socket = "{tmp_path / "amqp.sock"}"
unix-socket-mode = "660"
websocket-port = 0
websocket-origin = "https://console.example"
oauth-resource-server-id = "rabbitmq"
oauth-jwks = "{tmp_path / "jwks.json"}"
oauth-scopes-claim = ["roles"]
"""
    )
    pytest.importorskip("jwt", reason="PyJWT is not installed (requirements-test.lock)")
    with serving("--memory", "--config", str(tmp_path / "broker.toml"), home=tmp_path) as (ready, _):
        assert int(str(ready["websocket_port"])) > 0
        assert (tmp_path / "amqp.sock").stat().st_mode & 0o777 == 0o660
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(str(ready["amqp_port"])))).close()
    assert not (tmp_path / "amqp.sock").exists()
    for options, words in (
        (("--auth-mechanism", "SCRAM"), "--auth-mechanism SCRAM: it is one of PLAIN, AMQPLAIN, SCRAM-SHA-256"),
        (("--proxy-from", "10.0.0.1/8"), "--proxy-from: 10.0.0.1/8 has host bits set"),
        (("--unix-socket-mode", "999"), "is no octal number"),
        (("--oauth-resource-server-id", "x"), "needs --oauth-jwks"),
        (("--oauth-resource-server-id", "x", "--oauth-jwks", "http://id.example/"), "keys come over https"),
    ):
        code, said = refused("--memory", *options, home=tmp_path)
        assert code and words in said


def test_each_port_can_be_off(tmp_path: Path) -> None:
    """With a certificate too: AMQPS is off while AMQP is on. A port of a service that is off is no port that is silently not there."""
    with self_signed_certificate() as (cert, key):
        tls = ("--memory", "--tls-cert", cert, "--tls-key", key)
        with serving(*tls, "--tls-port", "off", home=tmp_path) as (ready, _):
            assert (ready["amqps_port"], ready["http_port"], ready["flight_port"]) == (None, None, None)
            assert ready["amqp_port"]
            assert not {"websocket_port", "metrics_port"} & ready.keys()
        with serving(*tls, "--tls-port", "0", "--port", "off", home=tmp_path) as (ready, _):
            assert ready["amqp_port"] is None
            assert ready["amqps_port"]
        (tmp_path / "broker.toml").write_text('tls-port = "off"\n')
        with serving(*tls, "--config", str(tmp_path / "broker.toml"), home=tmp_path) as (ready, _):
            assert ready["amqps_port"] is None
    code, said = refused("--memory", "--metrics-port", "0", home=tmp_path)
    assert code == 64
    assert "--metrics-port is served by the HTTP service" in said
