"""Source mutants: lines of the scheduler made wrong. Also the program that applies one to a copy: mutants_source.py NAME DIRECTORY.

in: the scheduler's sources. out: the same with one replacement. A mutant whose text is no longer there is an error: it has to follow
the code.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

SCHEDULER = Path(__file__).resolve().parent.parent.parent / "src" / "flintmq" / "scheduler"


@dataclass(frozen=True)
class SourceMutant:
    """file: of src/flintmq/scheduler; old -> new, exactly once; mix: which is looked at first; wrong: what is made wrong."""

    name: str
    file: str
    old: str
    new: str
    mix: str
    wrong: str


SOURCES: tuple[SourceMutant, ...] = (
    SourceMutant(
        "no look after the slice",
        "worker.py",
        "        work = actor_has_work(actor)\n        spin_unlock(address(actor.lock))\n        if work:",
        "        work = False\n        spin_unlock(address(actor.lock))\n        if work:",
        "plain",
        "3: who ends a slice looks for work after it gave up SCHEDULED",
    ),
    SourceMutant(
        "a wake between look and park is forgotten",
        "actor.py",
        "    return actor.chain or at_load32(address(actor.look_all)) or at_load32(address(actor.look_next))",
        "    return actor.chain",
        "wake",
        "4: the event count of the wake",
    ),
    SourceMutant(
        "a wake of the oldest wakes one only",
        "lines.py",
        "    elif actor.chain:\n        request = actor.waiters.first\n",
        "    elif actor.chain:\n        request = actor.waiters.first\n        actor.chain = False\n",
        "wake_next",
        "4: the next looks when the oldest was answered",
    ),
    SourceMutant(
        "one more than the mailbox holds",
        "lines.py",
        "actor.mailbox.count >= actor.system.mailbox_max",
        "actor.mailbox.count > actor.system.mailbox_max",
        "mailbox",
        "6: the bound",
    ),
    SourceMutant(
        "newest first",
        "lines.py",
        "        request = actor.mailbox.first\n        if request",
        "        request = actor.mailbox.last\n        if request",
        "plain",
        "6: FIFO",
    ),
    SourceMutant(
        "a slice without an end", "worker.py", "        if charged >= quantum:\n", "        if charged < 0:\n", "long", "8: the quantum"
    ),
    SourceMutant(
        "a suspended actor goes on",
        "worker.py",
        "while at_load32(address(actor.state)) == STATE_SCHEDULED and not",
        "while at_load32(address(actor.state)) & STATE_CLOSED == 0 and not",
        "suspend",
        "7: the word is looked at before each request",
    ),
    SourceMutant(
        "any token resumes",
        "actor.py",
        "    known = token != 0 and (actor.suspensions >> slot) & 1 and actor.suspension[slot] == token >> 3\n",
        "    known = token != 0 and at_load32(address(actor.state)) >= STATE_SUSPEND\n",
        "suspend",
        "7: tokens",
    ),
    SourceMutant(
        "virtual time goes back",
        "lines.py",
        "    if least > system.queue.vmin:\n",
        "    if least >= 0:\n",
        "long",
        "9: vmin is monotone",
    ),
    SourceMutant(
        "weights are ignored", "lines.py", "(cost_ns * WEIGHT_DEFAULT + weight - 1) // weight", "cost_ns", "load", "9: weighted shares"
    ),
    SourceMutant(
        "a sleeper keeps its claim", "lines.py", "actor.vrun < queue.vmin - system.quantum_ns:", "actor.vrun < 0:", "load", "9: sleeper"
    ),
    SourceMutant(
        "a newcomer starts at nothing",
        "lines.py",
        "        actor.vrun = vrun + run_queue_slice(system, queue.count + 1)\n",
        "        actor.vrun = 0\n",
        "load",
        "9: newcomer",
    ),
    SourceMutant(
        "a newcomer is not charged in advance",
        "lines.py",
        "        actor.vrun = vrun + run_queue_slice(system, queue.count + 1)\n",
        "        actor.vrun = vrun\n",
        "load",
        "9: the bound of the newcomer",
    ),
    SourceMutant(
        "I/O is not charged",
        "worker.py",
        "        cost = _cost(system, worker) + actor.io_ns\n",
        "        cost = _cost(system, worker)\n",
        "load",
        "9: cold reads cost",
    ),
    SourceMutant(
        "no pause after a failure",
        "worker.py",
        "    if failed:\n        run_queue_charge",
        "    if cost < 0:\n        run_queue_charge",
        "poison",
        "10: back-off",
    ),
    SourceMutant(
        "a failed actor pauses for ever",
        "deadlines.py",
        "                actor.pause_until_ns = 0\n                run = True\n",
        "                actor.pause_until_ns = 0\n",
        "poison",
        "10: the end of the pause",
    ),
    SourceMutant(
        "retired with a full mailbox",
        "actor_table.py",
        "    if actor.mailbox.first == NULL and actor.again",
        "    if actor.again",
        "retire",
        "11: only idle actors retire",
    ),
    SourceMutant(
        "a closed actor's key is free at once",
        "actor.py",
        "    if not state & STATE_SCHEDULED:\n        actor_finish_close(actor)",
        "    if state:\n        actor_finish_close(actor)",
        "close",
        "1 and 11: the old and the new actor of a key do not overlap",
    ),
    SourceMutant(
        "deadlines are not armed",
        "actor.py",
        "    due = request.deadline_ns\n    if due:\n",
        "    due = request.deadline_ns\n    if due < 0:\n",
        "suspend_times",
        "5: never silence",
    ),
    SourceMutant(
        "holds are not armed",
        "worker.py",
        "at_add32(address(system.parked), 1)\n        due = mailbox_due(actor)\n",
        "at_add32(address(system.parked), 1)\n        due = 0\n",
        "wake_times",
        "5: the end of a hold",
    ),
    SourceMutant(
        "the timer thread sleeps over an earlier time",
        "timers.py",
        "        sleeper = True\n",
        "        sleeper = False\n",
        "suspend_times",
        "5: arming and sleeping",
    ),
    SourceMutant(
        "a worker on its way is never there",
        "lines.py",
        "    queue.waking = False\n",
        "    queue.waking = True\n",
        "plain",
        "3: workers are woken",
    ),
)


def apply(name: str, directory: Path) -> None:
    """Writes the mutated text beside the copy, as build.sh wants it (`x.py.new`)."""
    mutant = next(one for one in SOURCES if one.name == name)
    path = directory / f"{mutant.file}.new"
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"mutant {name}: its text is {text.count(mutant.old)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.old, mutant.new))


if __name__ == "__main__":
    apply(sys.argv[1], Path(sys.argv[2]))
