"""Each edge of the table of consumer lists (docs/QUEUE_CORE.md), and nothing but those edges; who is woken, and in what order."""

from __future__ import annotations

from itertools import pairwise

import pytest

queue_driver = pytest.importorskip("tests.drivers.queue_driver")
Consumer, Credit, Queue, Target = queue_driver.Consumer, queue_driver.Credit, queue_driver.Queue, queue_driver.Target


def drain(consumer) -> list[bytes]:
    bodies = []
    while got := consumer.pull():
        bodies.append(got[1])
    return bodies


def test_adding_puts_a_consumer_on_the_list_of_its_kind() -> None:
    queue = Queue()
    assert Consumer(queue).list == "INTERESTED"
    assert Consumer(queue, browser=True).list == "NON_ACQUIRING"
    assert Consumer(queue, suspended=True).list == "NOT_INTERESTED"
    credit = Credit(1)
    first = Consumer(queue, shared=credit)
    queue.enqueue(b"x")
    queue.enqueue(b"y")
    assert first.pull() is not None
    assert Consumer(queue, shared=credit).list == "NOT_INTERESTED", "no credit left on its channel"


def test_an_arrival_moves_one_interested_consumer_to_notified_and_tells_it() -> None:
    queue = Queue()
    first, second = Consumer(queue), Consumer(queue)
    queue.enqueue(b"1")
    assert (first.list, second.list) == ("NOTIFIED", "INTERESTED")
    assert (first.target.take(), second.target.take()) == (1, 0)


def test_a_notified_consumer_stays_notified_while_it_gets_messages_then_goes_to_the_back_of_interested() -> None:
    queue = Queue()
    first, second = Consumer(queue), Consumer(queue)
    queue.enqueue(b"1")
    assert first.pull()[1] == b"1"
    assert first.list == "NOTIFIED"
    assert first.pull() is None
    assert first.list == "INTERESTED"
    queue.enqueue(b"2")
    assert (first.list, second.list) == ("INTERESTED", "NOTIFIED"), "the second is at the front now"


def test_an_arrival_wakes_nobody_when_the_consumer_is_notified_already() -> None:
    queue = Queue()
    consumer = Consumer(queue)
    queue.enqueue(b"1")
    queue.enqueue(b"2")
    assert consumer.target.take() == 1


@pytest.mark.parametrize("browser", [False, True])
def test_not_desired_moves_away_from_every_list_and_desired_back(browser: bool) -> None:
    queue = Queue()
    consumer = Consumer(queue, browser=browser)
    consumer.target.take()
    consumer.set_desired(False)
    assert consumer.list == "NOT_INTERESTED"
    consumer.set_desired(False)
    assert consumer.list == "NOT_INTERESTED"
    queue.enqueue(b"1")
    assert consumer.target.take() == 0
    assert consumer.pull() is None
    consumer.set_desired(True)
    assert consumer.list == ("NON_ACQUIRING" if browser else "NOTIFIED")
    assert consumer.target.take() == 1
    consumer.set_desired(False)
    assert consumer.list == "NOT_INTERESTED"


def test_a_notified_consumer_that_loses_interest_hands_its_work_over() -> None:
    queue = Queue()
    first, second = Consumer(queue), Consumer(queue)
    queue.enqueue(b"1")
    assert first.list == "NOTIFIED"
    first.suspend()
    assert (first.list, second.list) == ("NOT_INTERESTED", "NOTIFIED")
    assert second.target.take() == 1


def test_removing_a_notified_consumer_hands_its_work_over() -> None:
    queue = Queue()
    first, second = Consumer(queue), Consumer(queue)
    queue.enqueue(b"1")
    first.close()
    assert (first.list, second.list) == ("REMOVED", "NOTIFIED")
    assert queue.consumer_count == 1


def test_removed_stays_removed() -> None:
    queue = Queue()
    consumer = Consumer(queue)
    consumer.close()
    consumer.set_desired(True)
    consumer.close()
    assert consumer.list == "REMOVED"
    assert sum(queue.list_counts().values()) == 0


def test_out_of_credit_goes_to_not_interested_and_settling_brings_it_back() -> None:
    queue = Queue()
    consumer = Consumer(queue, prefetch=1)
    queue.enqueue(b"1")
    queue.enqueue(b"2")
    position = consumer.pull()[0]
    assert consumer.list == "NOTIFIED"
    assert consumer.pull() is None
    assert consumer.list == "NOT_INTERESTED"
    consumer.target.take()
    assert consumer.ack(position)
    assert consumer.list == "NOTIFIED"
    assert consumer.target.take() == 1
    assert consumer.pull()[1] == b"2"


def test_two_consumers_get_ten_waiting_messages_in_alternation() -> None:
    queue = Queue()
    for number in range(10):
        queue.enqueue(b"%d" % number)
    first, second = Consumer(queue), Consumer(queue)
    got: dict[int, list[bytes]] = {first.id: [], second.id: []}
    order = []
    # The session's part: one turn each for whoever was told, the turn ends at `rotate`.
    pending = [c for c in (first, second) if c.target.take()]
    while pending:
        consumer = pending.pop(0)
        again = False
        while delivery := consumer.pull():
            got[consumer.id].append(delivery[1])
            order.append(consumer.id)
            again = True
            if delivery[4]:
                break
        else:
            again = False
        pending += [c for c in (first, second) if c.target.take() and c not in pending and c is not consumer]
        if again:
            pending.append(consumer)
    assert (len(got[first.id]), len(got[second.id])) == (5, 5)
    assert all(a != b for a, b in pairwise(order))


def test_a_lone_consumer_gets_the_whole_turn() -> None:
    queue = Queue()
    consumer = Consumer(queue)
    for number in range(10):
        queue.enqueue(b"%d" % number)
    assert [consumer.pull()[4] for _ in range(10)] == [False] * 10


def test_a_stream_reaches_each_of_several_always_ready_consumers() -> None:
    queue = Queue()
    consumers = [Consumer(queue, no_ack=True) for _ in range(5)]
    got = [0] * 5
    for number in range(500):
        queue.enqueue(b"%d" % number)
        for index, consumer in enumerate(consumers):
            if consumer.target.take():
                got[index] += len(drain(consumer))
    assert sum(got) == 500
    assert min(got) >= 50


def test_higher_priority_is_served_first_and_lower_only_when_it_can_take_no_more() -> None:
    queue = Queue()
    low, high = Consumer(queue, priority=1), Consumer(queue, priority=9, prefetch=2)
    for number in range(4):
        queue.enqueue(b"%d" % number)
    assert (high.list, low.list) == ("NOTIFIED", "INTERESTED")
    assert low.pull() is None, "a higher one is ready"
    assert [high.pull()[1], high.pull()[1]] == [b"0", b"1"]
    assert high.pull() is None
    assert low.target.take() >= 1
    assert drain(low) == [b"2", b"3"]


def test_a_suspended_higher_consumer_does_not_hold_back_a_lower_one() -> None:
    queue = Queue()
    low, high = Consumer(queue), Consumer(queue, priority=1)
    queue.enqueue(b"1")
    high.suspend()
    assert low.target.take() == 1
    assert drain(low) == [b"1"]


def test_a_higher_consumer_without_interest_in_the_entry_does_not_hold_back_a_lower_one() -> None:
    queue = Queue()
    low, high = Consumer(queue), Consumer(queue, priority=1, wants=b"h")
    queue.enqueue(b"l1")
    assert low.target.take() == 1
    assert low.pull()[1] == b"l1"
    queue.enqueue(b"h1")
    assert high.target.take() == 1
    assert low.pull() is None
    assert high.pull()[1] == b"h1"


def test_one_target_serves_several_queues() -> None:
    target = Target()
    queues = [Queue() for _ in range(3)]
    consumers = [Consumer(queue, target=target) for queue in queues]
    for number, queue in enumerate(queues):
        queue.enqueue(b"%d" % number)
    assert target.take() == 3
    assert [consumer.pull()[1] for consumer in consumers] == [b"0", b"1", b"2"]
    assert [consumer.pull() for consumer in consumers] == [None, None, None]
    queues[1].enqueue(b"again")
    assert target.take() == 1
    assert [c.list for c in consumers] == ["INTERESTED", "NOTIFIED", "INTERESTED"]


def test_shared_credit_counts_over_all_consumers_of_the_channel() -> None:
    credit = Credit(2)
    queue, other = Queue(), Queue()
    first, second = Consumer(queue, shared=credit), Consumer(other, shared=credit)
    for _ in range(3):
        queue.enqueue(b"q")
        other.enqueue(b"o")
    assert first.pull() and second.pull()
    assert first.pull() is None and second.pull() is None
    assert (first.list, second.list, credit.used) == ("NOT_INTERESTED", "NOT_INTERESTED", 2)
    assert first.ack(1)
    assert credit.used == 1
    assert first.pull()[1] == b"q"


def test_no_ack_consumers_and_browsers_take_no_credit() -> None:
    queue = Queue()
    for number in range(3):
        queue.enqueue(b"%d" % number)
    browser = Consumer(queue, browser=True, prefetch=1)
    assert len(drain(browser)) == 3
    consumer = Consumer(queue, no_ack=True, prefetch=1)
    assert len(drain(consumer)) == 3
    assert (browser.used, consumer.used) == (0, 0)


def test_exclusive_refuses_others_and_is_refused_beside_others() -> None:
    queue = Queue()
    first = Consumer(queue)
    with pytest.raises(ValueError):
        Consumer(queue, exclusive=True)
    first.close()
    only = Consumer(queue, exclusive=True)
    with pytest.raises(ValueError):
        Consumer(queue)
    only.close()
    assert Consumer(queue).list == "INTERESTED"


def test_a_deleted_queue_refuses_and_wakes_nobody() -> None:
    queue = Queue()
    consumer = Consumer(queue)
    queue.enqueue(b"1")
    consumer.target.take()
    queue.mark_deleted()
    assert queue.enqueue(b"2") == 0
    assert consumer.pull() is None
    assert consumer.target.take() == 0
    assert queue.take_head()[1] == b"1"
    with pytest.raises(ValueError):
        Consumer(queue)


def test_outranked_consumer_gets_what_the_higher_one_does_not_want() -> None:
    queue = Queue()
    queue.enqueue(b"b")
    low = Consumer(queue)
    queue.enqueue(b"a")
    high = Consumer(queue, priority=5, wants=b"b")
    assert low.pull() is None, "the first message is for the higher consumer"
    low.target.take()
    assert high.pull()[1] == b"b" and high.pull() is None
    assert low.target.take() == 1, "nobody else will take the second one"
    assert low.pull()[1] == b"a"
