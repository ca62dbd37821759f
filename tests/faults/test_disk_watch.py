"""What `disk_full` waits for, read from journals that still grow."""

from __future__ import annotations

from pathlib import Path

from tools.faults import journal as j
from tools.faults.disk_full import Watch


def test_both_publishers_of_a_life_must_have_been_told_last_to_wait(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    journals = [j.Journal(tmp_path / f"client{number}.jsonl") for number in range(2)]
    for number, journal in enumerate(journals):
        journal.add(j.OPEN, f"confirm1c{number}", 1, "confirm", [])
        journal.add(j.NOTE, f"confirm1c{number}", "blocked", 1)
        journal.sync()
    watch.look()
    assert watch.blocked(1)
    assert not watch.blocked(2)
    journals[0].add(j.NOTE, "confirm1c0", "unblocked", 1)
    journals[0].sync()
    watch.look()
    assert not watch.blocked(1)
    assert watch.unblocked(1) == {"confirm1c0": 1, "confirm1c1": 0}
    for journal in journals:
        journal.close()


def test_settled_is_when_all_that_was_confirmed_is_acked_on_every_queue(tmp_path: Path) -> None:
    """Also when the ack is read first: it is in another client's journal."""
    watch = Watch(tmp_path)
    with (tmp_path / "client1.jsonl").open("w") as publisher, (tmp_path / "client0.jsonl").open("w") as consumer:
        publisher.write('[1,"P","p",1,["a","b"],10,0,""]\n[2,"C","p",[1],1]\n[3,"P","p",2,["a"],10,0,""]\n[4,"C","p",[2],0]\n[5,"P"')
        publisher.flush()
        watch.look()
        assert watch.confirmed == 1
        assert not watch.settled
        publisher.write(',"p",3,["a"],10,0,""]\n[6,"C","p",[3],1]\n')
        consumer.write('[7,"A","c","a",[["p",1],["p",3]],""]\n[8,"A","c","b",[["p",1]],""]\n')
        publisher.flush()
        consumer.flush()
        watch.look()
    assert watch.confirmed == 2
    assert watch.settled
