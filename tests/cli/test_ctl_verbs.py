"""`flintmq ctl` with the habits of rabbitmqctl: its verbs, options before and behind them, its refusals and its exit codes."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from flintmq import __version__
from flintmq.cli.ctl import ctl, node
from flintmq.cli.ctl.session import Session
from flintmq.cli.ctl.unsupported import ANSWERS
from flintmq.errors import OperatorError
from flintmq.testing.broker import Broker
from tests.cli.test_ctl import Operator
from tests.support.broker import wait_until

# deps/rabbitmq_cli of RabbitMQ 3.13 and 4.x: commands of ctl, diagnostics, queues, streams, upgrade and plugins; and those of its plugins
RABBITMQ = """
activate_free_disk_space_monitoring add_user add_vhost authenticate_user autocomplete await_online_nodes await_startup change_password
clear_global_parameter clear_operator_policy clear_parameter clear_password clear_permissions clear_policy clear_topic_permissions
clear_user_limits clear_vhost_limits close_all_connections close_all_user_connections close_connection cluster_status
deactivate_free_disk_space_monitoring decode decrypt_conf_value delete_queue delete_user delete_vhost disable_vhost_deletion_protection
enable_feature_flag enable_vhost_deletion_protection encode encrypt_conf_value environment eval eval_file exec export_definitions force_boot
force_gc force_reset force_standalone_khepri_boot forget_cluster_node hash_password help import_definitions join_cluster list_bindings
list_channel_interceptors list_channels list_ciphers list_connections list_consumers list_deprecated_features list_exchanges
list_feature_flags list_global_parameters list_hashes list_operator_policies list_parameters list_permissions list_policies list_queues
list_topic_permissions list_unresponsive_queues list_user_limits list_user_permissions list_user_topic_permissions list_users
list_vhost_limits list_vhosts node_health_check ping purge_queue reconcile_vhosts remove_classic_queue_mirroring_from_policies
rename_cluster_node report reset restart_vhost resume_listeners rotate_logs set_channel_interceptor_priorities set_cluster_name
set_disk_free_limit set_global_parameter set_log_level set_operator_policy set_parameter set_permissions set_permissions_globally set_policy
set_topic_permissions set_user_limits set_user_tags set_vhost_limits set_vhost_tags set_vm_memory_high_watermark shutdown start_app status
stop_app stop suspend_listeners trace_off trace_on update_cluster_nodes update_vhost_metadata version wait change_cluster_node_type
hipe_compile cancel_sync_queue sync_queue
alarms certificates check_alarms check_certificate_expiration check_for_quorum_queues_without_an_elected_leader
check_if_any_deprecated_features_are_used check_if_cluster_has_classic_queue_mirroring_policy check_if_metadata_store_is_initialized
check_if_metadata_store_is_initialized_with_data check_local_alarms check_port_connectivity check_port_listener check_protocol_listener
check_running check_virtual_hosts cipher_suites command_line_arguments consume_event_stream disable_auth_attempt_source_tracking
discover_peers enable_auth_attempt_source_tracking erlang_cookie_hash erlang_cookie_sources erlang_version is_booting is_running
list_network_interfaces list_node_auth_attempt_stats list_policies_that_match listeners log_location log_tail log_tail_stream maybe_stuck
memory_breakdown message_size_stats metadata_store_status observer os_env remote_shell reset_node_auth_attempt_metrics resolve_hostname
resolver_info runtime_thread_stats schema_info server_version tls_versions
add_member check_if_new_quorum_queue_replicas_have_finished_initial_sync check_if_node_is_mirror_sync_critical
check_if_node_is_quorum_critical delete_member force_checkpoint grow grow_to_count list_operator_policies_with_classic_queue_mirroring
list_policies_with_classic_queue_mirroring peek quorum_status rebalance reclaim_quorum_memory shrink transfer_leadership
add_replica coordinator_status delete_replica restart_stream stream_status
await_online_quorum_plus_one drain has_reached_target_cluster_size post_upgrade revive
directories disable enable is_enabled list set
clear_auth_backend_cache add_signing_key add_uaa_key consistent_hash_exchange_ring_state federation_status restart_federation_link
reset_stats_db list_mqtt_connections delete_shovel restart_shovel shovel_status list_stomp_connections activate_stream_consumer
add_super_stream delete_super_stream list_stream_connections list_stream_consumer_groups list_stream_consumers list_stream_group_consumers
list_stream_publishers list_stream_tracking reset_offset list_trust_store_certificates refresh_trust_store list_web_mqtt_connections
"""


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with Broker(http_port=0) as broker:
        yield Operator(broker)


def usage(*words: str) -> str:
    """The text of a wrong use, exit code 64."""
    with pytest.raises(click.UsageError) as refused:
        ctl.main(list(words), standalone_mode=False)
    return refused.value.format_message()


def test_each_verb_of_rabbitmq_is_a_command_or_has_an_answer() -> None:
    verbs = set(RABBITMQ.split())
    assert verbs - ctl.commands.keys() - ANSWERS.keys() == set()
    assert ANSWERS.keys() & ctl.commands.keys() == set(), "an answer that nobody hears"
    for verb in verbs - ctl.commands.keys():
        assert usage(verb) == f"{verb}: {ANSWERS[verb]}"
    assert usage("list_queue").startswith("there is no verb 'list_queue', did you mean 'list_queues'?")


def test_commands_that_answers_name_exist() -> None:
    from flintmq.cli.main import cli

    context = click.Context(cli)
    for answer in ANSWERS.values():
        for words in re.findall(r"flintmq ([a-z]+(?: [a-z_]+)?)", answer):
            first, _, second = words.partition(" ")
            command = cli.get_command(context, first)
            assert command is not None, words
            if second and isinstance(command, click.Group):
                assert second in command.commands, words
        options = set(re.findall(r"--[a-z][a-z-]+", answer))
        serve, doctor = cli.get_command(context, "serve"), cli.get_command(context, "doctor")
        assert serve is not None and doctor is not None
        assert options <= {name for command in (serve, doctor) for one in command.params for name in one.opts}, answer


def test_a_user_that_is_there_keeps_password_and_tags(operator: Operator) -> None:
    """A provisioning script that runs twice, and two at once."""
    run = operator.run
    run("add_user", "boss", "first")
    run("set_user_tags", "boss", "administrator")
    assert run("add_user", "boss", "second", code=70) == "user 'boss' already exists (412)"
    assert run("ping", "-q") == "" and run("authenticate_user", "boss", "first").endswith("Success\n")
    assert "boss\t[administrator]" in run("list_users")
    run("change_password", "boss", "third")
    assert "boss\t[administrator]" in run("list_users") and run("authenticate_user", "boss", "third")
    run("set_user_tags", "boss", "management")
    assert run("authenticate_user", "boss", "third")
    run("clear_password", "boss")
    assert "failed to authenticate" in run("authenticate_user", "boss", "third", code=65)
    assert "no user 'nobody'" in run("set_user_tags", "nobody", "management", code=65)
    run("add_vhost", "twice", "--description", "first", "--tags", "a,b")
    assert run("add_vhost", "twice", "--description", "other") == "vhost 'twice' already exists: nothing is changed\nadd_vhost: done\n"
    run("update_vhost_metadata", "twice", "--default-queue-type", "quorum")
    run("set_vhost_tags", "twice", "c")
    (facts,) = [one for one in json.loads(run("list_vhosts", "--formatter", "json", "name,description", "tags")) if one["name"] == "twice"]
    assert facts == {"name": "twice", "description": "first", "tags": ["c"]}
    assert "no vhost 'nope'" in run("update_vhost_metadata", "nope", "--description", "x", code=65)
    for words in (("delete_user", "boss"), ("delete_vhost", "twice")):
        run(*words)


def test_a_password_may_come_from_stdin_and_as_a_hash(operator: Operator) -> None:
    from click.testing import CliRunner

    text = operator.run("hash_password", "secret").strip()
    assert len(base64.b64decode(text)) == 36
    operator.run("add_user", "hashed", text, "--pre-hashed-password")
    operator.run("authenticate_user", "hashed", "secret")
    done = CliRunner().invoke(ctl, ["--uri", operator.uri, "add_user", "typed"], input="line\n")
    assert done.exit_code == 0, done.output
    operator.run("authenticate_user", "typed", "line")
    assert "the password is empty" in operator.run("add_user", "nothing", "", code=65)
    for name in ("hashed", "typed"):
        operator.run("delete_user", name)


def test_options_count_before_and_behind_the_verb(operator: Operator) -> None:
    run = operator.run
    run("add_vhost", "o")
    vhost = operator.broker.node.broker.vhosts["o"]
    for name in ("one", "two"):
        vhost.run(vhost.declare_queue(name))
    headline, names, rows = "Listing queues for vhost o ...\n", "name\tmessages\n", "one\t0\ntwo\t0\n"
    for options, shown in (
        ((), headline + names + rows),
        (("-q",), names + rows),
        (("--quiet",), names + rows),
        (("-s",), rows),
        (("--silent",), rows),
        (("--no-table-headers",), headline + rows),
        (("-t", "30", "-q"), names + rows),
        (("--timeout", "infinity", "-q", "--no-table-headers"), rows),
        (("--formatter", "csv"), "name,messages\none,0\ntwo,0\n"),
    ):
        assert run("list_queues", "-p", "o", *options) == run("-p", "o", *options, "list_queues") == shown, options
    pretty = run("list_queues", "-p", "o", "--formatter", "pretty_table", "-q").splitlines()
    assert pretty[0] == "┌──────┬──────────┐" and pretty[3].startswith("│ one  │ 0 ") and len({len(line) for line in pretty}) == 1
    assert run("list_queues", "-p", "/", "-q") == "", "no names of columns above nothing"
    assert run("set_vhost_limit", "-p", "o", "max-queues", "-1", "-q") == ""
    assert json.loads(run("purge_queue", "one", "-p", "o", "--formatter", "json")) == {"status": "ok"}
    wrong = usage("list_queues", "--formater", "csv")
    assert wrong.startswith("No such option") and "--formater" in wrong and "--formatter" in wrong
    assert "is no number of seconds" in usage("list_queues", "-t", "0")
    run("delete_vhost", "o")


@pytest.mark.parametrize("secret", ["-secret", "-p", "--password", "-9x"])
def test_a_value_that_begins_with_a_dash_is_never_taken_for_options(operator: Operator, secret: str) -> None:
    """click alone would make of `add_user ann -secret` the password `-ecret`."""
    if secret != "-p":
        assert "No such option" in usage("--uri", operator.uri, "add_user", "dash", secret)
        assert "dash" not in operator.run("list_users")
    operator.run("add_user", "dash", "--", secret)
    operator.run("authenticate_user", "dash", "--", secret)
    operator.run("delete_user", "dash")


def test_a_column_that_nobody_knows_is_an_error_that_names_those_there_are(operator: Operator) -> None:
    text = operator.run("list_queues", "nocolumn", code=64)
    assert text.startswith("list_queues has no column 'nocolumn'. Its columns: arguments, auto_delete, ") and " messages_ready, " in text
    assert "did you mean 'messages_ready'?" in operator.run("list_queues", "name", "message_ready", code=64)
    assert operator.run("list_queues", "name,pid", "consumer_utilisation", "messages_ram", "-q") == ""
    for verb in ("list_exchanges", "list_bindings", "list_connections", "list_channels", "list_consumers", "list_users", "list_vhosts"):
        assert f"{verb} has no column 'x-y'" in operator.run(verb, "x-y", code=64)
    assert operator.run("-s", "list_bindings").splitlines() == []
    assert operator.run("-q", "list_exchanges").splitlines()[0] == "name\ttype"


def test_a_node_is_the_broker_asked_or_refused(operator: Operator) -> None:
    """Scripts of RabbitMQ name rabbit@host; a name of another node is not this one."""
    own = operator.broker.node.broker.node_name
    for name in (own, "rabbit@db1", "rabbit"):
        assert operator.run("-n", name, "ping") == operator.run("ping", "--node", name) == "Ping succeeded\n"
    operator.run("add_user", "plain", "plain")
    operator.run("set_user_tags", "plain", "management")
    assert operator.run("-u", "plain", "--password", "plain", "-n", "rabbit@db1", "ping"), "without the tag monitoring"
    operator.run("delete_user", "plain")
    text = operator.run("-n", "flintmq@elsewhere", "stop", code=65)
    assert text.startswith("no node 'flintmq@elsewhere': the broker at ") and f"is '{own}', and in no cluster" in text


def test_a_node_of_a_cluster_is_asked_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, or has no HTTP, is refused; rabbit@host is none of several."""
    from flintmq.cli.ctl.remote import Remote

    nodes = [
        {"name": "a", "addresses": {"http": "10.0.0.1:15672"}},
        {"name": "b", "addresses": {"http": "10.0.0.2:15672"}},
        {"name": "c", "addresses": {}},
    ]
    asked: list[str] = []

    def answer(self: Remote, method: str, path: str, value: object, headers: object) -> tuple[int, str, bytes, bool]:
        asked.append(f"{self._uri} {path}")
        cluster = {"v1/cluster": {"cluster": True, "nodes": nodes}, "v1/cluster/addresses": {"amqp": ["10.0.0.1:5672"], "amqps": []}}
        value = {"overview": {"node": "a"}, **cluster}.get(path, {})
        return 200, "", json.dumps(value).encode(), True

    monkeypatch.setattr(Remote, "_request", answer)
    for name, uri in (("a", "http://lb"), ("b", "http://10.0.0.2:15672")):
        remote = Remote("http://lb", "u", "p", node=name)
        remote.ask("GET", "whoami")
        remote.check("alarms")
        assert asked[-2:] == [f"{uri} whoami", f"{uri} health/checks/alarms"]
    for name, text in (("rabbit@a", "no node 'rabbit@a' in the cluster: its nodes are a, b, c"), ("c", "node 'c' has no HTTP port")):
        with pytest.raises(OperatorError, match=text):
            Remote("http://lb", "u", "p", node=name).ask("POST", "v1/stop")
        assert not asked[-1].endswith("v1/stop")


def test_names_that_are_no_text_are_refused_in_words(operator: Operator) -> None:
    assert "(400)" in operator.run("delete_user", "\udcff", code=65)
    assert "(400)" in operator.run("add_user", "\udcff", "x", code=65)


def test_connections_are_closed_by_vhost_and_by_user(operator: Operator) -> None:
    def closed(*words: str) -> None:
        connections = [pika.BlockingConnection(pika.URLParameters(operator.broker.url)) for _ in range(3)]
        operator.run(*words)
        for connection in connections:
            with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - night"):
                while True:
                    connection.process_data_events(1)

    closed("close_all_connections", "night", "-p", "/")
    closed("close_all_connections", "--global", "--per-connection-delay", "1", "night")
    closed("close_all_user_connections", "guest", "night")
    with pika.BlockingConnection(pika.URLParameters(operator.broker.url)) as connection:
        operator.run("close_all_user_connections", "guest", "Wartung, später\n→ Ω")
        with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - Wartung, später → Ω"):
            connection.process_data_events(5)
    with pika.BlockingConnection(pika.URLParameters(operator.broker.url)) as connection:
        operator.run("add_vhost", "quiet")
        operator.run("close_all_connections", "night", "-p", "quiet")
        assert operator.run("close_all_connections", "night", "--limit", "1").startswith("Closed 1 connections\n")
        with pytest.raises(ConnectionClosedByBroker):
            connection.process_data_events(5)
    operator.run("delete_vhost", "quiet")


def test_health_checks_pass_and_fail_with_exit_codes(operator: Operator) -> None:
    run, port = operator.run, str(operator.broker.port)
    for verb in (
        "check_running", "check_alarms", "check_local_alarms", "check_virtual_hosts", "check_port_connectivity", "node_health_check",
        "check_if_node_is_quorum_critical", "check_if_node_is_mirror_sync_critical", "check_if_metadata_store_is_initialized",
        "check_certificate_expiration",
    ):  # fmt: skip
        assert run(verb).count("\n") == 1 and run("-q", verb) == "", verb
    assert run("check_port_listener", port) == f"A listener for port {port} is running\n"
    assert run("check_protocol_listener", "amqp") == "A listener for protocol amqp is running\n"
    assert "No active listener: missing 1, ports" in run("check_port_listener", "1", code=70)
    assert "No active listener: missing mqtt" in run("check_protocol_listener", "mqtt", code=70)
    assert json.loads(run("check_running", "--formatter", "json"))["status"] == "ok"
    assert run("alarms") == "No alarms\n"
    assert f"127.0.0.1\t{port}\tamqp\t" in run("listeners")
    assert "total rss\t" in run("memory_breakdown") and "total rss" in run("memory_breakdown", "--unit", "mib")
    assert run("is_running") == "The broker is running\n" and run("is_booting") == "The broker is not booting\n"
    assert run("is_running", uri="http://127.0.0.1:1") == "The broker is not running\n"
    run("check_running", uri="http://127.0.0.1:1", code=69)
    assert "connections failed: " in run("check_port_connectivity", "-a", "127.9.9.9", code=70)


def test_the_node_shows_itself(operator: Operator) -> None:
    run = operator.run
    assert run("version") == run("server_version") == f"{__version__}\n"
    assert "pid: " in run("status") and "disk_free_limit: " in run("status", "--unit", "MiB")
    assert "in no cluster: one node" in run("cluster_status") and "alarms: none" in run("cluster_status")
    assert json.loads(run("cluster_status", "--formatter", "json"))["running_nodes"] == [operator.broker.node.broker.node_name]
    settings = json.loads(run("environment", "--formatter", "json"))
    assert settings["options"]["host"] == "127.0.0.1" and settings["limits"]["channels_max"] == 2_047
    assert "host\t127.0.0.1" in run("environment")
    run("add_vhost", "r")
    report = run("report")
    assert "--- list_queues of r" in report and "--- environment" in report and "--- list_users of /" in report
    assert "argon2" not in report and "password" not in report.replace("password_", "").replace("-password-", "")
    run("delete_vhost", "r")
    run("set_cluster_name", "prod")
    assert "cluster name: prod" in run("cluster_status")
    assert "Commands:" in run("help") and "Add a user" in run("help", "add_user")
    run("await_startup", "-t", "60")
    run("await_online_nodes", "1")
    assert "2 nodes did not come online within 0.2 s" in run("await_online_nodes", "2", "-t", "0.2", code=75)
    assert "the broker did not start within 0.2 s" in run("await_startup", "-t", "0.2", uri="http://127.0.0.1:1", code=75)
    assert "a part of another program" in run("stop", code=65)
    run("stop", "--idempotent", uri="http://127.0.0.1:1")


def test_who_is_no_administrator_neither_stops_nor_sees_settings(operator: Operator) -> None:
    operator.run("add_user", "viewer", "viewer")
    operator.run("set_user_tags", "viewer", "monitoring")
    for words in (("stop",), ("environment",), ("set_log_level", "debug"), ("change_password", "guest", "x"), ("add_user", "y", "y")):
        assert "Not administrator user" in operator.run("-u", "viewer", "--password", "viewer", *words, code=77)
    operator.run("delete_user", "viewer")


def test_a_process_gets_another_log_level_and_stops(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--port", "0", "--http-port", "0", "--flight-port", "off", "--memory"]
    with log.open("w") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=os.environ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            uri = f"http://127.0.0.1:{ready['http_port']}"
            run = partial(Operator.run, Operator(None, uri))
            run("set_log_level", "critical")
            run("add_user", "quiet", "quiet")
            run("set_log_level", "debug")
            run("add_user", "loud", "loud")
            run("stop")
            run("stop", "--idempotent")
            assert process.wait(30) == 0
        finally:
            if process.poll() is None:
                process.kill()
    text = log.read_text()
    assert "user 'loud'" in text and "user 'quiet'" not in text and "stopping on SIGTERM" in text


def test_messages_of_a_queue_stay_when_it_is_deleted_if_empty(operator: Operator) -> None:
    broker = operator.broker.node.broker
    broker.vhosts["/"].run(broker.vhosts["/"].declare_queue("full"))
    with pika.BlockingConnection(pika.URLParameters(operator.broker.url)) as connection:
        connection.channel().basic_publish("", "full", b"x")
    wait_until(lambda: operator.run("-s", "list_queues", "messages") == "1\n")
    operator.run("delete_queue", "full", "--if-empty", code=65)
    operator.run("delete_queue", "full", "--if-unused")


def test_a_verb_imports_what_it_needs_and_no_more() -> None:
    """Scripts call a verb a hundred times: 100 ms of cpu each, most of which are imports."""
    code = "import sys; from flintmq.cli.ctl import ctl; ctl.main(['version'], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    modules = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stderr.split())
    heavy = "asyncio dataclasses sqlite3 starlette argon2 csv logging flintmq.node flintmq.config flintmq.access flintmq.cli.convert"
    assert "flintmq.cli.ctl.remote" in modules and modules & set(heavy.split()) == set()


def test_a_wait_ends_after_the_seconds_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 s, too, which are the default of other verbs; without --timeout a wait takes 300 s at most, as with RabbitMQ."""
    clock = [0.0]
    # of the module alone: a broker of this process has the true one
    own = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: clock.__setitem__(0, clock[0] + 1.0))
    monkeypatch.setattr(node, "time", own)
    for timeout_s, end_s in ((60.0, 61.0), (None, 301.0)):
        clock[0] = 0.0
        with pytest.raises(OperatorError) as late:
            node._wait(Session("u", "u", "p", timeout_s=timeout_s), lambda: False, "the broker did not start")
        assert (late.value.exit_code, clock[0]) == (75, end_s)


def test_a_name_is_no_command_of_a_terminal(operator: Operator) -> None:
    """A tenant names its queues; an administrator looks at them."""
    vhost = operator.broker.node.broker.vhosts["/"]
    name = "\x1b]0;owned\x07\x9b2J\u202eq\t"
    vhost.run(vhost.declare_queue(name))
    for formatter in ("table", "pretty_table", "json"):
        text = operator.run("-q", "list_queues", "name", "--formatter", formatter)
        assert all(one.isprintable() or one == "\n" for one in text) and "owned" in text, formatter
    assert json.loads(operator.run("list_queues", "name", "--formatter", "json")) == [{"name": name}]
    command = [sys.executable, "-m", "flintmq.cli.main", "ctl", "--uri", operator.uri, "delete_queue", f"{name}gone"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 65 and "no queue" in done.stderr and done.stderr.rstrip("\n").isprintable()
    operator.run("delete_queue", "--", name)
