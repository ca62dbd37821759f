"""Has the disk read the log while the process is still starting.

in: the store's directory. out: pages in the cache. A start reads its log from the base on; after direct writes (docs/adr/0007) or a
restart of the machine that comes from the disk, which would else stand idle while modules are loaded and definitions are read. Nothing
depends on it.

The newest containers come first: the oldest may be dead ones that are only kept for readers of the past, which a start does not read. Of
each container it reads the header: of thousands, one after the other, that would take longer than all else.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from flintmq.store.log.file_port import read_into_cache

# what a start reads, in its order; of each log the newest container first
LOGS = ("transactions", "index", "messages")
# bytes of the message log when there is an index log: four times the least interval of checkpoints, as a start from one seldom reads more
CHECKPOINTED = 128 << 20
# as many reads are under way at a time: one alone leaves a part of what a fast disk can do
READERS = 2
# bytes of a container in which its header is (the module that knows would have a dozen others loaded before the disk begins)
HEADER_BYTES = 4096


def read_ahead(directory: Path, most: int) -> list[threading.Thread]:
    """Starts to read the containers of the store in `directory`, `most` bytes of them, and returns at once. Raises nothing: what can't be
    read is a matter of the start itself."""
    paths = _paths(directory, most)
    threads = [
        threading.Thread(target=read_into_cache, args=(paths[number::READERS],), name="flintmq-read-ahead", daemon=True)
        for number in range(READERS)
    ]
    threads.append(threading.Thread(target=_ask_for_headers, args=(directory,), name="flintmq-read-ahead", daemon=True))
    for thread in threads:
        thread.start()
    return threads


def _ask_for_headers(directory: Path) -> None:
    """Has the disk read the first bytes of the containers of the message log, as many at a time as it can."""
    try:
        for name in _containers(directory / "messages"):
            descriptor = os.open(f"{directory}/messages/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, HEADER_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)
    except OSError:
        return


def _containers(directory: Path) -> list[str]:
    """Names, the newest first: a deep backlog has thousands, so they are no paths."""
    return sorted((name for name in os.listdir(directory) if name.endswith(".flog")), reverse=True) if directory.is_dir() else []


def _paths(directory: Path, most: int) -> list[str]:
    paths: list[str] = []
    room = most
    try:
        for log in LOGS:
            if log == "messages" and any("/index/" in path for path in paths):
                room = min(room, CHECKPOINTED)
            for name in _containers(directory / log):
                path = f"{directory}/{log}/{name}"
                room -= os.stat(path).st_size
                if room < 0:
                    return paths
                paths.append(path)
    except OSError:
        pass
    return paths
