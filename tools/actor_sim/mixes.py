"""Which operations a run mixes, and which property each mix is after.

in: nothing. out: names of mixes for the campaign and the tests.
"""

from __future__ import annotations

BITS = {
    "park": 1,
    "wake_next": 2,
    "times": 4,
    "suspend": 8,
    "cancel": 16,
    "retire": 32,
    "close": 64,
    "fail": 128,
    "again": 256,
    "hand": 512,
    "long": 1024,
    "small": 2048,
    "stop": 4096,
    "memory": 8192,
}

# A suspension belongs to an actor, so it is not mixed with closing (the model counts by key).
MIXES = {
    "plain": "",
    "long": "long again",
    "wake": "park",
    "wake_next": "park wake_next",
    "wake_times": "park times long",
    "next_times": "park wake_next times",
    "mailbox": "small",
    "mailbox_times": "small park times again",
    "suspend": "suspend park again",
    "suspend_times": "suspend park times long",
    "cancel": "cancel park times suspend",
    "poison": "fail park times",
    "poison_suspend": "fail suspend again",
    "retire": "retire park",
    "retire_times": "retire park times fail suspend",
    "retire_late": "retire again long small",
    "close": "close park times again",
    "close_retire": "close retire fail hand",
    "hand": "hand park small",
    "stop": "stop park times fail again suspend",
    "stop_close": "stop close retire hand park",
    "memory": "memory park times suspend small",
    "memory_retire": "memory retire close park times fail",
    "all": "park times suspend cancel retire fail again hand long small",
    "all_next": "park wake_next times suspend retire fail again hand long",
}


def bits(name: str) -> int:
    """The bit set of a mix."""
    return sum(BITS[word] for word in MIXES[name].split())
