"""`flintmq tx` shows and decides transactions in doubt of a stopped broker, and touches nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flintmq.store.log_store")

from click.testing import CliRunner, Result

from flintmq.cli.main import cli
from flintmq.errors import OperatorError
from flintmq.transactions import BranchState, XaStatus
from tests.transactions.test_on_the_broker import AFTER, BEFORE, Running, X


def run(directory: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["tx", *arguments, "--store-dir", str(directory)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose broker was killed with one transaction in doubt."""
    broker = Running(tmp_path / "store")
    broker.fill()
    broker.work()
    assert broker.transactions.prepare(X).result(20) is XaStatus.XA_OK
    broker.kill()
    return tmp_path / "store"


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_an_operator_decides_and_forgets(store: Path, word: str) -> None:
    """list names it with its queues; the decision is done and remembered by the next broker; forget ends it."""
    listed = run(store, "list").output
    assert f"{X}  prepared" in listed and "//in: 0 to enter, 1 held" in listed and "//urgent: 1 to enter, 0 held" in listed
    assert ("committed" if word == "commit" else "rolled back") in run(store, word, str(X)).output
    broker = Running(store)
    state = BranchState.HEURISTIC_COMMIT if word == "commit" else BranchState.HEURISTIC_ROLLBACK
    assert [view.state for view in broker.transactions.list()] == [state]
    assert broker.all_bodies() == (AFTER if word == "commit" else BEFORE)
    broker.node.stop()
    assert "forgotten" in run(store, "forget", str(X)).output
    empty = run(store, "list")
    assert empty.stdout == "" and "no transaction waits" in empty.stderr


def test_what_can_t_be_done_is_refused(store: Path, tmp_path: Path) -> None:
    """An unknown name, a malformed one, forget of what nobody decided, no store, and a running broker: an error, and nothing changed."""
    for arguments, code in ((("commit", "1:00:@/"), 69), (("commit", "nonsense"), 64), (("forget", str(X)), 69)):
        with pytest.raises(OperatorError) as refused:
            run(store, *arguments)
        assert refused.value.exit_code == code
    with pytest.raises(OperatorError, match="holds no store"):
        run(tmp_path / "nothing", "list")
    assert not (tmp_path / "nothing").exists()
    broker = Running(store)
    with pytest.raises(OperatorError, match="stop the broker first"):
        run(store, "list")
    assert [view.state for view in broker.transactions.list()] == [BranchState.PREPARED]
    broker.node.stop()
