"""Reading ahead: an iterator that works in a thread of its own, a little before the one who takes from it.

in: a generator whose work does not hold the interpreter's lock all the time. out: the same items in the same order.

H1  At most `depth` items wait, and one is being made.
H2  When the taker ends, the generator is closed in its own thread; the thread ends with it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import Any

# seconds after which a thread whose items nobody takes looks whether anybody still wants them
LOOK_S = 0.2


def ahead(source: Generator[Any, None, None], depth: int) -> Iterator[Any]:
    """The items of `source`, which is used in another thread from now on. Raises: what `source` raises, after the items before."""
    items: queue.Queue[tuple[Any, BaseException | None, bool]] = queue.Queue(depth)
    ended = threading.Event()

    def offer(item: Any, error: BaseException | None = None, last: bool = False) -> bool:
        while not ended.is_set():
            with contextlib.suppress(queue.Full):
                items.put((item, error, last), timeout=LOOK_S)
                return True
        return False

    def work() -> None:
        try:
            with contextlib.closing(source):
                for item in source:
                    if not offer(item):
                        return
        except BaseException as error:
            offer(None, error, last=True)
        else:
            offer(None, last=True)

    threading.Thread(target=work, name="flintmq-flight-ahead", daemon=True).start()
    try:
        while True:
            item, error, last = items.get()
            if error is not None:
                raise error
            if last:
                return
            yield item
            del item
    finally:
        ended.set()
        with contextlib.suppress(queue.Empty):  # whoever waits for a place goes on at once
            items.get_nowait()
