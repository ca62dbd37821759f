"""URLs of engines."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Engine
from flintmq.engines.memory import MemoryEngine
from flintmq.engines.opening import open_engine
from flintmq.engines.sqlite import SqliteEngine
from flintmq.engines.urls import shown

LIMITS = Limits()


def opened(named: str) -> Engine:
    return open_engine(named, LIMITS)


def test_each_kind_of_url_opens_its_engine(tmp_path: Path) -> None:
    assert isinstance(opened("memory:"), MemoryEngine)
    engine = opened(f"sqlite:{tmp_path}/rows.db")
    assert isinstance(engine, SqliteEngine)
    assert not (tmp_path / "rows.db").exists(), "it is not connected yet"
    assert opened("etcd://a:1").name == "etcd://a:1"


def test_a_file_keeps_the_url_out_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("etcd://user:secret@a:1,b:2\n")
    assert opened(f"file:{file}").name == "etcd://a:1,b:2"
    with pytest.raises(ValueError, match="No such file"):
        opened(f"file:{tmp_path}/none")
    file.write_text("mysql://user:secret@host/rows")
    with pytest.raises(ValueError, match="names no engine") as error:
        opened(f"file:{file}")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["", "rows.db", "mysql://u:secret@h/d?password=secret", "memory:shared", "sqlite:", "sqlite::memory:"])
def test_what_is_no_url_of_an_engine_is_refused_with_the_forms_that_are(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:PATH|memory:") as error:
        opened(url)
    assert "secret" not in str(error.value)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("flintmq.engines.etcd"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match=r"pip install 'flintmq\[etcd\]'") as error:
        opened("etcd://user:secret@a:1")
    assert "secret" not in str(error.value)


def test_a_shown_url_has_neither_login_nor_parameters() -> None:
    for password in ("p/w", "p?w", "p#w", "p@w", "p:w", "p,w"):
        assert shown(f"etcd://u:{password}@a:1") == "etcd://...@a:1"
    assert shown("etcd://u:p@a:1,b:2?key=f") == "etcd://...@a:1,b:2"
    assert shown("postgresql://host/rows?password=p") == "postgresql://host/rows"
    assert shown("sqlite:/var/rows.db") == "sqlite:/var/rows.db"
