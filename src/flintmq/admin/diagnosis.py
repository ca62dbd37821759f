"""Diagnosis: what an operator should look at first, with the reason and what to do.

in: counters, samples, transactions, pipelines. out: cards, the worst first, of what the user sees.

D1  A card names its cause in numbers that were counted, and one thing to do. A suspicion says so.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from flintmq.access.tags import sees_everything
from flintmq.admin.api_names import shown
from flintmq.admin.samples import QUEUE_TIERS, Sampler

ERROR, WARNING, HINT = "error", "warning", "hint"
_ORDER = {ERROR: 0, WARNING: 1, HINT: 2}
# messages a second by which a queue must grow, seconds that are looked at, messages that make a queue worth a card
_GROWTH, _WINDOW_S, _MANY = 1.0, 60, 1_000
_CARDS_MAX = 100
# seconds after which a transaction in doubt, or a batch of a pipeline that is not committed, is worth a card
_OLD_S = 300


class Diagnosis:
    """Args: parts; sampler."""

    def __init__(self, parts: Any, sampler: Sampler) -> None:
        self._parts = parts
        self._sampler = sampler

    def cards(self, call: Any) -> list[dict[str, Any]]:
        """O(queues with samples)."""
        cards = [*self._queues(call), *self._transactions(call), *self._pipelines(call)]
        if sees_everything(call.tags):
            cards += self._node()
        return sorted(cards, key=lambda card: _ORDER[card["level"]])[:_CARDS_MAX]

    def _node(self) -> list[dict[str, Any]]:
        broker, cards = self._parts.broker, []
        blocked = sum(bool(one.is_blocked) for one in list(broker.connections.values()))
        if any(loop.disk_low for loop in broker.loops):
            cards.append(_card(ERROR, "The disk is full", f"{blocked} publishers wait", "Free space in the store's directory", "node"))
        elif any(loop.alarmed for loop in broker.loops):
            cards.append(
                _card(ERROR, "Memory is short", f"{blocked} publishers wait", "Consume messages, or give the broker memory", "node")
            )
        if self._parts.store is not None and self._parts.store.failure is not None:
            cards.append(
                _card(ERROR, "The disk failed", "nothing is confirmed any more", "See the log, and restart on a good disk", "node")
            )
        unroutable = broker.counters.drops.get("unroutable", 0)
        if unroutable:
            text = f"{unroutable} messages were published to exchanges that led to no queue"
            cards.append(_card(WARNING, "Messages go nowhere", text, "Test the route, or give the exchange an alternate exchange", "why"))
        service = {} if self._parts.pipeline is None else self._parts.pipeline()["flight"]
        if service and service["failed_starts"] and service["state"] != "up":
            text = f"{service['failed_starts']} starts of the service for Arrow Flight failed: Spark can't reach this broker"
            cards.append(_card(WARNING, "The Flight service does not start", text, "See the log: it says why", "node"))
        return cards

    def _queues(self, call: Any) -> list[dict[str, Any]]:
        cards = []
        for queue_id, series in islice(list(self._sampler.queues.items()), self._parts.broker.limits.samples_queues_max):
            queue = self._parts.broker.queues.get(queue_id)
            if queue is None or not call.sees(queue.vhost):
                continue
            card = _queue_card(queue, series, queue_id in self._parts.broker.paused)
            if card is not None:
                cards.append(card | {"vhost": queue.vhost, "queue": shown(queue.name)})
        return cards

    def _transactions(self, call: Any) -> list[dict[str, Any]]:
        coordinator = self._parts.broker.transactions
        if coordinator is None:
            return []
        old = [one for one in coordinator.list() if one.state.value == "prepared" and one.age_s > _OLD_S and call.sees(one.xid.vhost)]
        if not old:
            return []
        text = f"{len(old)} transactions are prepared and not decided, the oldest for {int(max(one.age_s for one in old))} s"
        return [_card(WARNING, "Transactions in doubt", text, "Ask their manager, or decide them with flintmq tx", "transactions")]

    def _pipelines(self, call: Any) -> list[dict[str, Any]]:
        source = self._parts.pipeline
        cards = []
        for one in source()["subscriptions"] if source is not None else ():
            if call.sees(one["vhost"]) and one["prepared"] and one["prepared_age_ms"] > _OLD_S * 1000:
                text = f"{one['prepared']} messages of subscription '{one['name']}' are held for {one['prepared_age_ms'] // 1000} s"
                cards.append(_card(WARNING, "A Spark batch is not committed", text, "Start its query again, or reset it", "pipelines"))
            elif call.sees(one["vhost"]) and one["behind"] > _MANY and not one["active"]:
                text = f"nobody reads for subscription '{one['name']}', and {one['behind']} messages wait"
                cards.append(_card(HINT, "A Spark query stands still", text, "Start its query", "pipelines"))
        return cards


def _queue_card(queue: Any, series: Any, paused: bool) -> dict[str, Any] | None:
    """The worst that there is to say of a queue; None: nothing."""
    core, name = queue.core, shown(queue.name)
    if core.failed_count:
        text = f"{core.failed_count} messages of '{name}' can't be read"
        return _card(ERROR, "Messages are unreadable", text, "See the log, and flintmq log verify", "queue")
    if paused:
        return _card(
            HINT, "A queue is paused", f"'{name}' gives no messages to its consumers", "Resume it (flintmq ctl resume_queue)", "queue"
        )
    ready, unacked, consumers = core.ready_count(), core.unacked_count(), core.consumer_count()
    columns = series.of(_WINDOW_S)["samples"]
    count = len(columns["messages_ready"])
    seconds = max(1, (count - 1) * QUEUE_TIERS[0][0])
    growth = (columns["messages_ready"][-1] - columns["messages_ready"][0]) / seconds
    rate = (columns["delivered"][-1] - columns["delivered"][0]) / seconds
    if ready and not consumers and not queue.policy.is_stream and growth > _GROWTH:
        text = f"'{name}' has {ready} messages, grows by {growth:.0f} a second, and nobody consumes"
        return _card(WARNING, "A queue nobody consumes grows", text, "Start a consumer, or limit the queue by a policy", "queue")
    if consumers and growth > _GROWTH and count > 2:
        text = f"'{name}' grows by {growth:.0f} a second; its {consumers} consumers take {rate:.0f} a second and hold {unacked}"
        return _card(WARNING, "Consumers are too slow", text, "Add consumers, or look at the prefetch and at what they wait for", "queue")
    if consumers and ready and not unacked and not rate and count > 2 and not queue.policy.is_stream:
        text = f"'{name}' has {ready} messages and {consumers} consumers, which took none for {seconds} s"
        return _card(WARNING, "Consumers take nothing", text, "They may be blocked: look at their connections", "queue")
    if unacked > _MANY and not rate and count > 2:
        text = f"consumers of '{name}' hold {unacked} messages and settled none for {seconds} s (as far as counters tell)"
        return _card(HINT, "Messages are held", text, "Set a prefetch limit, and look for a consumer that hangs", "queue")
    return None


def _card(level: str, title: str, text: str, advice: str, page: str) -> dict[str, Any]:
    return {"level": level, "title": title, "text": text, "advice": advice, "page": page}
