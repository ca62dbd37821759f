"""Builds the simulated scheduler and makes it importable in this process.

in: nothing. out: `flintmq` of the simulation copy at the head of sys.path, libactorsim loaded for all modules.
Invariant: never mixed with the ordinary compiled modules: a process uses either the one or the other, so tests run it in a child.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def build(copy: str = "", patch: str = "", plain: bool = False) -> Path:
    """Compiles what changed; returns the source directory of the copy. Raises RuntimeError with the compiler's words.

    Args: copy: directory in the repository; patch: name of a source mutant; plain: real threads and clocks instead of the simulation.
    """
    copy = copy or ("build/actor_plain" if plain else "build/actor_sim")
    done = subprocess.run(
        ["sh", str(ROOT / "tools/actor_sim/build.sh"), copy, *([patch] if patch else [])],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PLAIN": "1" if plain else "", "PYTHON": sys.executable},
    )
    if done.returncode:
        raise RuntimeError(f"the simulation does not build:\n{done.stderr[-4000:]}")
    return Path(done.stdout.strip().splitlines()[-1])


def use(source: Path) -> None:
    """Makes `import flintmq...` mean the simulation copy. Only before anything of flintmq was imported."""
    loaded = [name for name in sys.modules if name.split(".")[0] == "flintmq"]
    if loaded:
        raise RuntimeError(f"the ordinary modules are loaded already: {loaded[:3]}")
    if (source.parent / "libactorsim.so").exists():
        ctypes.CDLL(str(source.parent / "libactorsim.so"), mode=ctypes.RTLD_GLOBAL)
    sys.path.insert(0, str(source))
