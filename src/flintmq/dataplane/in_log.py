"""What of the data plane stands in the transaction log: kinds of notes, and formats of transactions (docs/DATAPLANE.md).

A node asks here at its start whether there is anything: the rest of the data plane is loaded when somebody needs it.
"""

from __future__ import annotations

from typing import Any

NOTE_SUBSCRIPTION, NOTE_SCOPE, NOTE_STAGE, NOTE_LIFE = 1, 2, 3, 4
# format ids of the transactions of sets and stages: "FLNS", "FLNG"
FORMAT_SET, FORMAT_STAGE = 0x464C4E53, 0x464C4E47
PIPELINE_FORMATS = frozenset({FORMAT_SET, FORMAT_STAGE})


def has_work(store: Any, coordinator: Any) -> bool:
    """Whether a recovered store has subscriptions, scopes, stages or transactions of the pipeline. O(notes and transactions)."""
    noted = any(store.notes(kind) for kind in (NOTE_SUBSCRIPTION, NOTE_SCOPE, NOTE_STAGE))
    return noted or any(view.xid.format in PIPELINE_FORMATS for view in coordinator.list())
