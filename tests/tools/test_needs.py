"""tools.needs: the compiled modules that a file needs, so that builds of a part are whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools import needs

SCENES = [
    "tests/queue/stress.py",
    "tests/scheduler/stress.py",
    "tests/streams/kit.py",
    "tests/streams/stress.py",
    "tests/streams/test_threads.py",
]


def test_all_compiled_modules_that_the_stresses_load_are_named() -> None:
    """What they load, as Python says it after their imports: a module that the build of `make stress` lacks ends it."""
    load = "; ".join(["import sys", *(f"import {name.removesuffix('.py').replace('/', '.')}" for name in SCENES)])
    ours = "n.startswith(('flintmq.', 'tests.')) and str(getattr(m, '__file__', '')).endswith('.so')"
    tell = f"print(*(n for n, m in sys.modules.items() if {ours}))"
    loaded = subprocess.run([sys.executable, "-c", f"{load}; {tell}"], check=True, capture_output=True, text=True).stdout.split()
    assert len(loaded) > 40
    assert not set(loaded) - set(needs.needed([Path(name) for name in SCENES]))


def test_imports_that_count(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import flintmq.net.loop\n"
        "from cython.cimports.flintmq.core.atomics import at_load64\n"
        "try:\n    from flintmq.core import hash64\nexcept ImportError:\n    pass\n"
        "def later():\n    import flintmq.channel.channel\n"
    )
    assert needs.needed([file]) == ["flintmq.core.hash64"]
    file.write_text("import flintmq.queue.due_index\n")
    assert {"flintmq.queue.due_index", "flintmq.core.content"} <= set(needs.needed([file]))
