"""Iterators between the one who decodes and the one who takes: reading ahead in a thread of its own, passing over what the taker has.

in: a generator whose work does not hold the interpreter's lock all the time. out: the same items in the same order; record batches
without their first rows.

H1  At most `depth` items wait, and one is being made.
H2  When the taker ends, the generator is closed in its own thread; the thread ends with it, at most one item later.
H3  The generator may outlive its taker by that item: it must use nothing that ends with the taker, such as the context of a call.
    pyarrow's ServerCallContext.is_cancelled reads freed memory then, and takes the process with it. `ended` is for it to ask instead.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import Any

# seconds after which a thread whose items nobody takes looks whether anybody still wants them
LOOK_S = 0.2


def behind(batches: Generator[Any, None, None], skip: int) -> Generator[Any, None, None]:
    """The rows behind the first `skip`, which the taker has already. Closes `batches` when it ends."""
    with contextlib.closing(batches):
        for batch in batches:
            if skip < batch.num_rows:
                yield batch.slice(skip) if skip else batch
            skip = max(0, skip - batch.num_rows)


def ahead(source: Generator[Any, None, None], depth: int, ended: threading.Event | None = None) -> Iterator[Any]:
    """The items of `source`, which is used in another thread from now on. Args: ended: set when nobody takes any more.

    Raises: what `source` raises, after the items before.
    """
    items: queue.Queue[tuple[Any, BaseException | None, bool]] = queue.Queue(depth)
    ended = threading.Event() if ended is None else ended

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
