"""Child of test_kill.py: saves, deletes and takes ids without end, and prints what has returned, one JSON list a line.

Lines: ["open", uuid in hex], ["id", n], ["queue", name, n], ["deleting", name] (begun, may or may not
have happened), ["delete", name], ["submitted", name, n].
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path

from flintmq.config import Limits
from flintmq.ports import BindingRecord, QueueRecord
from flintmq.store.sql.changes import Save
from flintmq.store.sql.definitions import SqlDefinitions


def say(*words: object) -> None:
    """One write: a line is there whole or not at all."""
    os.write(1, json.dumps(words).encode() + b"\n")


def main() -> None:
    directory, run = Path(sys.argv[1]), sys.argv[2]
    say("opening")
    definitions = SqlDefinitions.open(directory, limits=Limits(queue_id_block=7))
    say("open", definitions.store_uuid.hex())
    room = threading.Semaphore(8)
    for number in itertools.count():
        queue_id = definitions.new_queue_id()
        say("id", queue_id)
        name = f"{run}-{number}"
        if number % 3 == 0:
            room.acquire()

            def answer(error: Exception | None, name: str = name, queue_id: int = queue_id) -> None:
                assert error is None
                say("submitted", name, queue_id)
                room.release()

            record = QueueRecord("/", name, queue_id)
            definitions.submit([Save(record), Save(BindingRecord("/", "amq.topic", "queue", name, b"k"))], answer)
            continue
        definitions.save_queue(QueueRecord("/", name, queue_id))
        definitions.save_binding(BindingRecord("/", "amq.topic", "queue", name, b"k"))
        say("queue", name, queue_id)
        if number % 5 == 0:
            say("deleting", name)
            definitions.delete_queue("/", name)
            say("delete", name)


if __name__ == "__main__":
    main()
