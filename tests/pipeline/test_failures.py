"""Whatever goes wrong in a job becomes one line, with the exit code that tells whose turn it is."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from flintmq.errors import OperatorError
from flintmq.flight.plane_error import PlaneError
from flintmq.pipeline.jobs.failures import JVM_GONE, exit_code, explained, one_clear_line, one_line
from pyspark_flintmq.errors import ConnectionLost, SourceError

TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted SQLSTATE: XXKST
\tat org.apache.spark.sql.Foo.bar(Foo.scala:1)
Traceback (most recent call last):
  File "x.py", line 1, in read
pyspark_flintmq.errors.SourceError: FLINTMQ_CHECKPOINT_LOST: the subscription holds a batch
\tat java.base/java.lang.Thread.run(Thread.java:840)"""


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("OPTION_UNKNOWN", 64),
        ("COLUMN_TYPE", 64),
        ("SCHEMA_MISMATCH", 65),
        ("UNROUTABLE", 65),
        ("UNREACHABLE", 69),
        ("QUEUE_MISSING", 69),
        ("SOMETHING_NEW", 69),
        ("INTERNAL", 70),
        ("CHECKPOINT_LOST", 75),
        ("BATCH_UNREAD", 75),
        ("FLINTMQ_FENCED", 75),
        ("FORBIDDEN", 78),
        ("LOGIN_REFUSED", 78),
    ],
)
def test_each_code_has_its_exit_code(code: str, number: int) -> None:
    assert exit_code(code) == number


def test_a_trace_becomes_the_line_that_says_it() -> None:
    """Ours wherever it stands; else the innermost cause; else the first line."""
    told = explained(RuntimeError(TRACE))
    assert (str(told), told.exit_code) == ("FLINTMQ_CHECKPOINT_LOST: the subscription holds a batch", 75)
    assert one_line("a\n  at b\nCaused by: c: d\n  at e\nCaused by: f\n at g") == "f"
    assert one_line("\n first \nsecond") == "first"
    assert str(explained(RuntimeError(""), "job")) == "job: RuntimeError"
    assert explained(RuntimeError("unheard of")).exit_code == 70


@pytest.mark.parametrize(
    ("error", "text", "number"),
    [
        (SourceError("OPTION_VALUE", "no"), "FLINTMQ_OPTION_VALUE: no", 64),
        (ConnectionLost("gone"), "FLINTMQ_CONNECTION_LOST: gone", 69),
        (PlaneError("FENCED", "older"), "FLINTMQ_FENCED: older", 75),
        (ModuleNotFoundError("No module named 'deltalake'", name="deltalake.writer"), "flintmq[delta]", 69),
        (ModuleNotFoundError("No module named 'pyspark'", name="pyspark"), "flintmq[spark]", 69),
        (PermissionError(13, "Permission denied", "/data"), "Permission denied", 78),
        (RuntimeError("x\n[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update\n at y"), "another query writes to this checkpoint", 75),
        (OSError(5, "Input/output error", "/data"), "/data: Input/output error", 74),
    ],
)
def test_errors_of_all_sorts(error: Exception, text: str, number: int) -> None:
    told = explained(error)
    assert text in str(told) and "\n" not in str(told) and told.exit_code == number


def test_one_that_is_clear_already_stays() -> None:
    """An OperatorError passes as it is; KeyboardInterrupt is no error."""
    clear = OperatorError("as it was", 64)
    with pytest.raises(OperatorError) as error, one_clear_line("job"):
        raise clear
    assert error.value is clear
    with pytest.raises(KeyboardInterrupt), one_clear_line("job"):
        raise KeyboardInterrupt


def test_a_jvm_that_is_gone_is_one_line() -> None:
    """Its error has no text any more (Py4J asks the JVM for it), or a call of it is refused. Another refusal is what it was."""
    from py4j.clientserver import ClientServer, JavaParameters
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JJavaError

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared, own = JavaGateway(gateway_parameters=GatewayParameters(port=port)), ClientServer(JavaParameters(port=port))
    for gateway in (shared, own):
        with pytest.raises(Exception) as refused:
            gateway.jvm.java.lang.System.nanoTime()
        there_was = SimpleNamespace(_gateway_client=gateway._gateway_client, _target_id="o1")
        for one in (refused.value, Py4JJavaError("An error", there_was)):
            error = explained(one, "archive")
            assert (str(error), error.exit_code) == (f"archive: {JVM_GONE}", 69)
    own.shutdown_callback_server()
    assert explained(ConnectionRefusedError(111, "Connection refused")).exit_code == 74
