"""The shim sees every change of a file and its undo gives back a state that a power loss could have left."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.faults import shim as shim_module
from tools.faults.power_loss import PowerLoss
from tools.faults.shim import Shim

pytestmark = pytest.mark.skipif(shim_module.missing() is not None, reason=str(shim_module.missing()))


def run(env: dict[str, str], code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python code in `folder` under the shim; it ends itself with SIGKILL or prints."""
    command = [sys.executable, "-c", "import os, signal, sqlite3, json\n" + code]
    return subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)


DIE = "\nos.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def all_gone(power: PowerLoss) -> dict[str, int]:
    """A strike that rolls everything unsynced back."""
    return power.strike(random.Random(0), "all")


def test_synced_stays_unsynced_goes(data: Path, tmp_path: Path) -> None:
    """Bytes written before a sync survive, bytes written after it are rolled back, in the same file and sector."""
    (data / "a").write_bytes(b"." * 2000)
    power = PowerLoss(data, tmp_path / "shim")
    code = "f = os.open('a', os.O_RDWR); os.pwrite(f, b'synced', 10); os.fdatasync(f)\n"
    code += "os.pwrite(f, b'lost', 100); os.pwrite(f, b'far', 5000)"
    assert run(power.arm(), code + DIE, data).returncode == -signal.SIGKILL
    assert len((data / "a").read_bytes()) == 5003
    counts = all_gone(power)
    assert (data / "a").read_bytes() == b"." * 10 + b"synced" + b"." * 1984
    assert counts["sectors"] == 2 and counts["sizes"] == 1


@pytest.mark.parametrize("seed", range(30))
def test_every_sector_is_a_version_it_had(data: Path, tmp_path: Path, seed: int) -> None:
    """After a strike each sector holds one of the contents it had since its last sync, and synced files are untouched."""
    (data / "a.db").write_bytes(b"0" * 4096)
    power = PowerLoss(data, tmp_path / "shim")
    code = """
f = os.open('a.db', os.O_RDWR); g = os.open('b', os.O_RDWR | os.O_CREAT); d = os.open('.', os.O_RDONLY); os.fsync(d)
for n in b'123':
    for s in range(8): os.pwrite(f, bytes([n]) * 512, s * 512)
    if n == ord('1'): os.fsync(f)
    os.pwrite(g, bytes([n]) * 1000, 0); os.fdatasync(g)
"""
    assert run(power.arm(), code + DIE, data).returncode == -signal.SIGKILL
    power.strike(random.Random(seed))
    content = (data / "a.db").read_bytes()
    assert len(content) == 4096
    for at in range(0, 4096, 512):
        assert content[at : at + 512] in [bytes([n]) * 512 for n in b"123"]
    assert (data / "b").read_bytes() == b"3" * 1000


def test_names_without_directory_sync_go_back(data: Path, tmp_path: Path) -> None:
    """A create, a rename over a file and an unlink are undone without a directory sync; with one they stay."""
    for name in ("target", "removed"):
        (data / name).write_bytes(name.encode())
    power = PowerLoss(data, tmp_path / "shim")
    code = """
f = os.open('new.tmp', os.O_RDWR | os.O_CREAT | os.O_EXCL); os.write(f, b'new'); os.fsync(f)
os.rename('new.tmp', 'target'); os.unlink('removed')
"""
    run(power.arm(), code + DIE, data)
    assert sorted(p.name for p in data.iterdir()) == ["target"]
    all_gone(power)
    assert {p.name: p.read_bytes() for p in data.iterdir()} == {"target": b"target", "removed": b"removed"}
    run(power.arm(), code + "os.fsync(os.open('.', os.O_RDONLY))" + DIE, data)
    all_gone(power)
    assert {p.name: p.read_bytes() for p in data.iterdir()} == {"target": b"new"}


def test_sqlite_commits_survive_power_loss(data: Path, tmp_path: Path) -> None:
    """SQLite in WAL mode with synchronous=FULL keeps every committed row, whatever part of the unsynced is lost."""
    for seed in range(8):
        power = PowerLoss(data, tmp_path / "shim")
        code = f"""
c = sqlite3.connect('x.db', isolation_level=None); c.execute('pragma journal_mode=wal'); c.execute('pragma synchronous=full')
c.execute('pragma wal_autocheckpoint=7'); c.execute('create table if not exists t (n integer, b blob)')
os.fsync(os.open('.', os.O_RDONLY))
print(c.execute('select count(*) from t').fetchone()[0], flush=True)
for n in range({5 + 3 * seed}): c.execute('insert into t values (?, ?)', (n, os.urandom(900)))
c.execute('begin immediate')
for n in range(5000): c.execute('insert into t values (?, ?)', (-1, os.urandom(900)))
"""
        done = run(power.arm(), code + DIE, data)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert int(done.stdout) == sum(5 + 3 * before for before in range(seed))
        assert power.shim.count("pwrite") > 10 and power.shim.count("sync") > 5
        counts = power.strike(random.Random(seed))
        assert "overflow" not in counts
    look = "c = sqlite3.connect('x.db')\nfor q in ('pragma integrity_check', 'select count(*) from t', 'select min(n) from t'):"
    done = run({}, look + " print(c.execute(q).fetchone()[0])", data)
    assert done.stdout.split() == ["ok", str(sum(5 + 3 * before for before in range(8))), "0"], done.stdout + done.stderr


def test_negative_unsynced_commit_is_lost(data: Path, tmp_path: Path) -> None:
    """With synchronous=OFF the same strike loses committed rows: the shim does not let unsynced data through."""
    power = PowerLoss(data, tmp_path / "shim")
    code = """
c = sqlite3.connect('x.db', isolation_level=None); c.execute('pragma journal_mode=wal'); c.execute('create table t (n integer)')
os.fsync(os.open('.', os.O_RDONLY)); [os.fsync(os.open(n, os.O_RDWR)) for n in ('x.db', 'x.db-wal')]
c.execute('pragma synchronous=off')
for n in range(50): c.execute('insert into t values (?)', (n,))
"""
    run(power.arm(), code + DIE, data)
    all_gone(power)
    done = run({}, "print(sqlite3.connect('x.db').execute('select count(*) from t').fetchone()[0])", data)
    assert done.stdout.strip() == "0", done.stderr


def test_lying_sync_makes_nothing_durable(data: Path, tmp_path: Path) -> None:
    """A sync that lies on the files it was told to is undone with what it covered; on others it is a sync."""
    power = PowerLoss(data, tmp_path / "shim", lies=("sync",), suffix=".flog")
    code = """
d = os.open('.', os.O_RDONLY); fs = [os.open(n, os.O_RDWR | os.O_CREAT) for n in ('a.flog', 'a.db')]; os.fsync(d)
for f in fs: os.write(f, b'x'); os.fdatasync(f)
f = os.open('b.tmp', os.O_RDWR | os.O_CREAT); os.rename('b.tmp', 'b.flog'); os.fsync(d)
os.write(f, b'x'); os.fdatasync(f)
"""
    run(power.arm(), code + DIE, data)
    all_gone(power)
    assert {p.name: p.read_bytes() for p in data.iterdir()} == {"a.flog": b"", "a.db": b"x", "b.flog": b""}


TRY = """
f = os.open('a', os.O_RDWR | os.O_CREAT); out = []
for n in range(6):
    for name, call in (('w', lambda: os.pwrite(f, b'x' * 100, n * 100)), ('s', lambda: os.fdatasync(f))):
        try: out.append([name, call() or 0])
        except OSError as e: out.append([name, -e.errno])
print(json.dumps(out))
"""


def test_nth_operation_fails_once_or_for_ever(data: Path, tmp_path: Path) -> None:
    """The chosen operation fails after so many have passed, once or from then on, and a short write comes before ENOSPC."""
    shim = Shim(data, tmp_path / "shim", record=False)
    shim.fail("sync", after=2)
    got = json.loads(run(shim.env, TRY, data).stdout)
    assert [value for name, value in got if name == "s"] == [0, 0, -errno.EIO, 0, 0, 0]
    assert shim.failed() == 1 and shim.count("sync") == 6
    shim.reset()
    shim.fail("pwrite", code=errno.ENOSPC, after=3, forever=True, short=True)
    got = json.loads(run(shim.env, TRY, data).stdout)
    assert [value for name, value in got if name == "w"] == [100, 100, 100, 50, -errno.ENOSPC, -errno.ENOSPC]
    shim.reset()
    shim.fail("pwrite", suffix=".flog", forever=True)
    assert shim.failed() == 0 and -errno.EIO not in [value for _, value in json.loads(run(shim.env, TRY, data).stdout)]


def test_failed_sync_makes_nothing_durable_later(data: Path, tmp_path: Path) -> None:
    """After a failed sync the next one succeeds, and the bytes are gone all the same."""
    (data / "a").write_bytes(b"." * 1200)
    power = PowerLoss(data, tmp_path / "shim")
    env = power.arm()
    power.shim.fail("sync")
    run(env, TRY.replace("range(6)", "range(2)").replace("n * 100", "n * 600") + DIE, data)
    all_gone(power)
    assert (data / "a").read_bytes() == b"." * 600 + b"x" * 100 + b"." * 500


def test_syncs_are_delayed(data: Path, tmp_path: Path) -> None:
    """A delay holds for every sync and a stall for one; other operations do not wait."""
    shim = Shim(data, tmp_path / "shim", record=False)
    shim.delay(20, 20)
    shim.stall(100)
    begun = time.monotonic()
    assert run(shim.env, TRY, data).returncode == 0
    assert time.monotonic() - begun >= 6 * 0.02 + 0.1
