"""What people do to checkpoints and subscriptions, while messages flow: each is refused with its code, nothing is lost or comes twice.

in: a running campaign. out: findings in it. Scenes with the query `files`:
  deleted   the checkpoint goes while a batch is being processed: CHECKPOINT_NEW until it is back
  behind    the checkpoint is replaced by an older copy: CHECKPOINT_BEHIND until it is back
  ahead     an operator gives back the batch that the checkpoint has planned: CHECKPOINT_AHEAD until the plan is taken back
  two       a second query on the same subscription, with a checkpoint of its own: CHECKPOINT_NEW, and the first one runs on; also when that
            was stopped in mid-batch
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tools.crash.spark.plan import Kill

if TYPE_CHECKING:
    from tools.crash.spark.campaign import Campaign

NAMES = ("deleted", "behind", "ahead", "two")
END_S_MAX = 120.0
# Batches that are committed after an old copy of the checkpoint was made. One of them may be planned in the copy already, and the broker
# hears of the last one's end with the next: a copy that is one batch old by that is refused, too, but as CHECKPOINT_LOST.
COMMITS = 3


class Scenes:
    """See module."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._checkpoint = campaign.directory / "checkpoint.files"
        self._aside = campaign.directory / "checkpoint.aside"

    def run(self) -> list[str]:
        """All of them. Returns the names of those that passed."""
        passed = []
        for name in NAMES:
            known = len(self._campaign.findings)
            began = time.monotonic()
            getattr(self, f"_{name}")()
            self._goes_on(name)
            if len(self._campaign.findings) == known:
                passed.append(name)
            self._campaign.say(
                f"     scene {name}: {'as promised' if name in passed else 'NOT AS PROMISED'}, {time.monotonic() - began:.1f} s"
            )
        return passed

    # --- scenes ---------------------------------------------------------------------------------------------------------

    def _deleted(self) -> None:
        self._stop_in_mid_batch()
        self._checkpoint.rename(self._aside)
        self._refused("CHECKPOINT_NEW")
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._aside.rename(self._checkpoint)

    def _behind(self) -> None:
        self._hold()
        shutil.copytree(self._checkpoint, self._aside)
        self._tell("resume files")
        for _ in range(COMMITS):
            self._campaign.progress(self._campaign.commits(), "an old copy was made")
        self._hold()
        newer = self._aside.with_name("checkpoint.newer")
        self._checkpoint.rename(newer)
        self._aside.rename(self._checkpoint)
        self._refused("CHECKPOINT_BEHIND")
        shutil.rmtree(self._checkpoint)
        newer.rename(self._checkpoint)

    def _ahead(self) -> None:
        self._stop_in_mid_batch()
        with contextlib.closing(self._campaign.plane()) as plane:
            plane.sub_reset("files", "redeliver")
        self._refused("CHECKPOINT_AHEAD")
        # The batch was never given to a task, so its plan can be taken back.
        last = self._campaign.commits()["files"]
        for directory in (self._checkpoint / "offsets",):
            for entry in directory.iterdir():
                number = entry.name.strip(".").partition(".")[0]
                if number.isdigit() and int(number) > last:
                    entry.unlink()

    def _two(self) -> None:
        campaign = self._campaign
        campaign.publisher.pause()
        campaign.drained()
        self._forget_ends()
        self._tell("leave files")
        self._tell("resume second")
        second = self._end_of("second")
        campaign.publisher.resume()
        if "CHECKPOINT_NEW" not in second["codes"]:
            self._wrong("two", "CHECKPOINT_NEW", second)
        for first in self._ends("files"):
            self._wrong("two", "no end of the first query", first)
        self._goes_on("two")
        # In the middle of a batch: only the query that has planned it may go on with it, whether it runs or not.
        self._stop_in_mid_batch()
        shutil.rmtree(self._checkpoint.with_name("checkpoint.second"), ignore_errors=True)
        self._tell("resume second")
        second = self._end_of("second")
        if "CHECKPOINT_NEW" not in second["codes"]:
            self._wrong("two", "CHECKPOINT_NEW", second)

    # --- steps ----------------------------------------------------------------------------------------------------------

    def _tell(self, words: str) -> None:
        self._campaign.driver.tell(words)

    def _hold(self) -> None:
        self._forget_ends()
        self._tell("hold files")
        self._end_of("files")

    def _stop_in_mid_batch(self) -> None:
        """The batch is prepared, planned, and in the offset log; no task has seen it."""
        self._forget_ends()
        self._tell("leave files")
        for _ in range(3):
            if self._campaign.at_point(Kill("files", "partitions-exit", "reader")):
                break
        self._end_of("files")

    def _refused(self, code: str) -> None:
        """The query is started, and ends with the code."""
        self._forget_ends()
        self._tell("resume files")
        self._tell_when(lambda: self._campaign.driver.starts, "leave files")
        end = self._end_of("files")
        if code not in end["codes"]:
            self._wrong("files", code, end)

    def _tell_when(self, count: Callable[[], int], words: str) -> None:
        before = count()
        self._campaign.wait(lambda: count() > before or self._ends("files"), END_S_MAX)
        self._tell(words)

    def _goes_on(self, name: str) -> None:
        self._forget_ends()
        self._tell("resume files")
        self._campaign.progress(self._campaign.commits(), f"scene {name}")

    def _ends(self, query: str) -> list[dict[str, Any]]:
        return [end for end in list(self._campaign.driver.ends) if end["query"] == query]

    def _forget_ends(self) -> None:
        ends = self._campaign.driver.ends
        ends[:] = [end for end in ends if end["query"] == "copy"]

    def _end_of(self, query: str) -> dict[str, Any]:
        self._campaign.wait(lambda: self._ends(query), END_S_MAX)
        ends = self._ends(query)
        return ends[0] if ends else {"query": query, "codes": "", "clean": False, "text": f"it did not end within {END_S_MAX:.0f} s"}

    def _wrong(self, what: str, expected: str, end: dict[str, Any]) -> None:
        self._campaign.findings.append(f"{what}: expected {expected}, found {end['codes'] or end['text'][-300:]}")
