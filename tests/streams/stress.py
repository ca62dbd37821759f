"""The thread stress of this folder as a program, for a build with ThreadSanitizer: python -m tests.streams.stress [rounds]."""

from __future__ import annotations

import sys

from tests.streams import test_threads


def main(rounds: int) -> None:
    for _ in range(rounds):
        for hot, window in ((1_000_000, 0), (64, 200), (0, 3)):
            test_threads.test_groups(hot, window, 400)
        for hot in (0, 1_000_000):
            test_threads.test_members_come_and_go(hot, 400)
        test_threads.test_lone_consumers(500)
        test_threads.test_ping_pong(500)
    print("stress passed")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
