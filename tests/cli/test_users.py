"""`flintmq user` and `flintmq vhost`: what they change counts from the broker's next start, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner, Result
from pika.exceptions import AMQPError

from flintmq.cli.main import cli
from flintmq.cli.store import store_locked
from flintmq.errors import OperatorError
from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.testing.broker import Broker as InProcess
from tests.support.broker import Broker


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that a broker has made, and left."""
    directory = tmp_path_factory.mktemp("made") / "data"
    with Broker("--data-dir", str(directory)):
        pass
    return directory


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Path]:
    """Its definitions alone."""
    (tmp_path / "definitions.db").write_bytes((made / "definitions.db").read_bytes())
    yield tmp_path


def run(directory: Path, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [*words, "--data-dir", str(directory)])
    if isinstance(result.exception, OperatorError):
        assert result.exception.exit_code == code, result.exception
        return result
    assert (result.exit_code, code) == (0, 0) or result.exit_code == code, result.output
    return result


def test_a_user_of_its_own(made: Path) -> None:
    """Added and granted, it works from the next start on, within its permissions and its virtual host; the password is not in the store."""
    run(made, "vhost", "add", "shop")
    run(made, "user", "add", "alice", "--password", "correct horse", "--tag", "monitoring")
    run(made, "user", "grant", "alice", "--vhost", "shop", "--configure", "^mine", "--write", "^(mine|amq.default)", "--read", "^mine")
    assert not [file for file in made.rglob("*") if file.is_file() and b"correct horse" in file.read_bytes()]
    with Broker("--data-dir", str(made)) as broker:

        def channel(password: str, vhost: str) -> pika.adapters.blocking_connection.BlockingChannel:
            credentials = pika.PlainCredentials("alice", password)
            return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, vhost, credentials)).channel()

        ours = channel("correct horse", "shop")
        ours.queue_declare("mine", durable=True)
        ours.basic_publish("", "mine", b"x")
        assert ours.basic_get("mine", auto_ack=True)[2] == b"x"
        with pytest.raises(AMQPError, match="ACCESS_REFUSED"):
            ours.queue_declare("yours")
        ours.connection.close()
        for password, vhost in (("wrong", "shop"), ("correct horse", "/")):
            with pytest.raises(AMQPError):
                channel(password, vhost)
        run(made, "user", "delete", "alice", code=69)  # a broker runs
    run(made, "user", "delete", "alice")
    assert "alice" not in run(made, "user", "list").stdout
    assert run(made, "vhost", "list").stdout.split() == ["/", "shop"]


def test_limits_of_users_and_virtual_hosts(tmp_path: Path) -> None:
    """Set, shown, replaced, taken away; a broker holds to them from its next start on."""
    store = tmp_path / "data"
    run(store, "vhost", "add", "shop")
    run(store, "user", "limit", "guest", "--max-connections", "1", "--max-channels", "-1")
    assert "guest  [administrator]  max-channels -1, max-connections 1" in run(store, "user", "list").output
    run(store, "user", "limit", "guest", "--max-consumers", "0")
    assert "guest  [administrator]  max-consumers 0\n" in run(store, "user", "list").output
    run(store, "user", "limit", "guest")
    assert "guest  [administrator]\n" in run(store, "user", "list").output
    run(store, "user", "limit", "nobody", "--max-channels", "1", code=69)
    run(store, "vhost", "limit", "nowhere", "--max-queues", "1", code=69)
    run(store, "vhost", "limit", "/", "--max-queues", "-2", code=2)
    run(store, "vhost", "limit", "shop", "--max-queues", "1", "--max-connections", "1", "--max-exchanges", "0", "--max-bindings", "1")
    shown = "shop  max-bindings 1, max-connections 1, max-exchanges 0, max-queues 1\n"
    assert run(store, "vhost", "list").output == "/\n" + shown
    run(store, "user", "grant", "guest", "--vhost", "shop")
    with InProcess(data_dir=str(store)) as broker:
        channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, "shop")).channel()
        channel.queue_declare("q")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"queue 'r': queue limit in vhost 'shop' \(1\) is reached"):
            channel.queue_declare("r")
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as refused:
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, "shop"))
        assert "access to vhost 'shop' refused for user 'guest': connection limit (1) is reached" in str(refused.value)
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)).channel().queue_declare("r")
        channel.connection.close()


def test_what_is_there_is_shown_and_changed(store: Path) -> None:
    """list shows tags and permissions; password, tags, grant and revoke change that and no more."""
    run(store, "user", "add", "bob", "--password", "one")
    run(store, "user", "grant", "bob", "--write", "^x$")
    run(store, "user", "tags", "bob", "--tag", "administrator", "--tag", "administrator")
    listed = run(store, "user", "list").stdout
    assert "bob  [administrator]\n    /: configure '.*', write '^x$', read '.*'\nguest  [administrator]\n" in listed
    run(store, "user", "password", "bob", "--password", "two")
    assert run(store, "user", "list").stdout == listed
    run(store, "user", "revoke", "bob")
    run(store, "user", "tags", "bob")
    assert "bob  []\nguest" in run(store, "user", "list").stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("user", "add", "guest", "--password", "x"), 69),
        (("user", "add", "", "--password", "x"), 64),
        (("user", "add", "b" * 256, "--password", "x"), 64),
        (("user", "add", "carol", "--password", ""), 64),
        (("user", "add", "carol", "--password", "x", "--tag", "root"), 2),
        (("user", "grant", "nobody"), 69),
        (("user", "grant", "guest", "--vhost", "nowhere"), 69),
        (("user", "grant", "guest", "--read", "("), 64),
        (("user", "delete", "nobody"), 69),
        (("user", "password", "nobody", "--password", "x"), 69),
        (("vhost", "add", "/"), 69),
    ],
)
def test_what_can_t_be_done_is_refused(store: Path, words: tuple[str, ...], code: int) -> None:
    """One line and an exit code; nothing has changed."""

    def everything() -> tuple[object, ...]:
        definitions = SqlDefinitions.open(store)
        try:
            return tuple(definitions.load_users()), tuple(definitions.load_permissions()), tuple(definitions.load_vhosts())
        finally:
            definitions.close()

    before = everything()
    run(store, *words, code=code)
    assert everything() == before


def test_without_a_store(tmp_path: Path) -> None:
    """No store is made by looking for one."""
    run(tmp_path / "nothing", "user", "list", code=69)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("first", ["user", "vhost"])
def test_before_the_first_start(tmp_path: Path, first: str) -> None:
    """A store can be made by `user add` (no guest then) or `vhost add` (with guest); the broker starts on it and adds nobody."""
    store = tmp_path / "deep" / "data"
    run(store, "user", "add", "", "--password", "x", code=64)
    assert not store.exists()
    if first == "vhost":
        run(store, "vhost", "add", "shop")
    run(store, "user", "add", "alice", "--password", "secret")
    if first == "user":
        run(store, "vhost", "add", "shop")
    run(store, "user", "grant", "alice", "--vhost", "shop")
    names = ["alice"] if first == "user" else ["alice", "guest"]
    assert store.stat().st_mode & 0o777 == 0o700
    with Broker("--data-dir", str(store)) as broker:
        credentials = pika.PlainCredentials("alice", "secret")
        channel = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, "shop", credentials)).channel()
        channel.queue_declare("q", durable=True)
        channel.connection.close()
    assert [line.split()[0] for line in run(store, "user", "list").stdout.splitlines() if line[0] != " "] == names
    for name in names:
        run(store, "user", "delete", name)
    with Broker("--data-dir", str(store)):
        pass
    assert run(store, "user", "list").stdout == ""


def test_a_store_that_never_had_a_broker_is_locked_too(store: Path) -> None:
    """Without the lock's file the command makes it, so that no broker starts meanwhile; what can't be locked is an error of its own."""
    with store_locked(store):
        run(store, "user", "list", code=69)
    assert run(store, "user", "list").exit_code == 0
    (store / "lock").unlink()
    (store / "lock").mkdir()
    run(store, "user", "list", code=74)
