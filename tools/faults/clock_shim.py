"""The wall clock of one process jumps: a shim that is compiled when needed and loaded by environment, steered through a file.

in: seconds. out: `ClockShim.env` for the child process. The machine's clock stays as it is, and monotonic clocks too. Needs gcc
(`shim.missing`). Programs that ask the kernel themselves, such as Go's, do not see it.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tools.faults.shim import build

SOURCE = Path(__file__).with_name("clock_shim.c")
_SECONDS = struct.Struct("=q")


class ClockShim:
    """Args: file: of its own, which is made. Raises: RuntimeError: the compiler's words."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(_SECONDS.pack(0))
        self.env = {"LD_PRELOAD": str(build(SOURCE)), "FLINT_CLOCK_FILE": str(file)}

    def jump(self, seconds: int) -> None:
        """The clock is so far off from now on: in front, or behind (negative); 0: it is right again."""
        with self._file.open("r+b") as file:  # in place: processes have it mapped
            file.write(_SECONDS.pack(seconds))
