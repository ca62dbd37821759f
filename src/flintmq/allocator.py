"""How much freed memory the C library's allocator keeps in this process.

in: limits in bytes. out: settings of glibc's malloc; freed pages given back to the kernel.

Why: glibc keeps a heap ("arena") for each few threads, and what is freed inside stays there. By default a large block that is freed once
raises the size up to which later blocks come from the heaps (to 32 MiB), and each heap then keeps twice that: a gigabyte over 16 heaps,
after an hour of record batches that pass through the data plane's threads. Fixed limits turn that rule off.

A1  What an operator set in the environment (MALLOC_ARENA_MAX, ..., GLIBC_TUNABLES) stays as it is.
A2  Where the C library has no such calls (musl), nothing happens.
"""

from __future__ import annotations

import os
from typing import Any

# names of <malloc.h>
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def limit_kept(mmap_bytes: int, trim_bytes: int, arenas: int = 0) -> bool:
    """Sets what this process keeps. To be called before it has many threads.

    Args: mmap_bytes: blocks from this size on come from the kernel, and go back when they are freed; trim_bytes: free bytes at the end
    of a heap above which they go back; arenas: heaps at most, 0: as the library has it.
    Returns: whether it is as asked for.
    """
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    library = _library()
    if library is None:
        return False
    wanted = [
        ("MALLOC_MMAP_THRESHOLD_", _MMAP_THRESHOLD, mmap_bytes),
        ("MALLOC_TRIM_THRESHOLD_", _TRIM_THRESHOLD, trim_bytes),
        ("MALLOC_ARENA_MAX", _ARENA_MAX, arenas),
    ]
    done = [bool(library.mallopt(option, value)) for name, option, value in wanted if value and not os.environ.get(name)]
    return bool(done) and all(done)


def give_back() -> bool:
    """Gives the free pages of all heaps back to the kernel. Each heap is locked while it is looked through: some milliseconds for 100 MiB.

    Returns: whether there were any.
    """
    library = _library()
    return library is not None and bool(library.malloc_trim(0))


def _library() -> Any:
    import ctypes

    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
