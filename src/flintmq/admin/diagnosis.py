"""Diagnosis: what an operator should look at first, with the reason and what to do. The console and `flintmq doctor` show it.

in: counters, samples, transactions, pipelines, rules about the node (admin.node_rules). out: cards, the worst first, of what the user sees.

D1  A card names its cause in numbers that were counted, and one thing to do. A suspicion says so.
D2  What happened once is said for a while, not until the restart: rates come from the samples of the last minutes.
D3  Queues and exchanges are looked at in pieces, with turns of others in between; what the user does not see is in no card.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from flintmq.access.tags import ADMINISTRATOR, sees_everything
from flintmq.admin.api_names import shown
from flintmq.admin.node_rules import (
    ERROR,
    HINT,
    UNROUTABLE_S,
    WARNING,
    card,
    facts_of,
    link_cards,
    node_cards,
    target_cards,
    user_cards,
)
from flintmq.admin.samples import NODE_TIERS, QUEUE_TIERS, Sampler

_ORDER = {ERROR: 0, WARNING: 1, HINT: 2}
# messages a second by which a queue must grow, seconds that are looked at, messages that make a queue worth a card
_GROWTH, _WINDOW_S, _MANY = 1.0, 60, 1_000
_CARDS_MAX = 100
# seconds after which a transaction in doubt, or a batch of a pipeline that is not committed, is worth a card
_OLD_S = 300
# queues whose samples are looked at in one piece
_PIECE = 20


class Diagnosis:
    """Args: parts; sampler."""

    def __init__(self, parts: Any, sampler: Sampler) -> None:
        self._parts = parts
        self._sampler = sampler

    async def cards(self, call: Any) -> dict[str, Any]:
        """cards; left_out: subjects that the user may not see, with a tag that would let it. In pieces. O(queues + exchanges)."""
        left_out: dict[str, str] = {}
        cards = [*await self._queues(call), *self._transactions(call), *self._pipelines(call), *link_cards(self._parts, call.sees)]
        cards += await target_cards(call.vhosts())
        if sees_everything(call.tags):
            facts = await asyncio.to_thread(facts_of, self._parts)
            cards += node_cards(self._parts, facts, self._unroutable())
        else:
            left_out["the node"] = "monitoring"
        if ADMINISTRATOR in call.tags:
            cards += user_cards(self._parts)
        else:
            left_out["users"] = ADMINISTRATOR
        return {"cards": sorted(cards, key=lambda one: _ORDER[one["level"]])[:_CARDS_MAX], "left_out": left_out}

    def _unroutable(self) -> tuple[int, int]:
        """Messages that led to no queue, and in how many seconds (D2)."""
        column = self._sampler.node.of(UNROUTABLE_S)["samples"]["unroutable"]
        if not column:
            return 0, 0
        now = self._parts.broker.counters.drops.get("unroutable", 0)
        return now - column[0], len(column) * NODE_TIERS[0][0]

    async def _queues(self, call: Any) -> list[dict[str, Any]]:
        cards = []
        sampled = list(islice(self._sampler.queues.items(), self._parts.broker.limits.samples_queues_max))
        for start in range(0, len(sampled), _PIECE):
            for queue_id, series in sampled[start : start + _PIECE]:
                queue = self._parts.broker.queues.get(queue_id)
                if queue is None or not call.sees(queue.vhost):
                    continue
                made = _queue_card(queue, series, queue_id in self._parts.broker.paused)
                if made is not None:
                    cards.append(made | {"vhost": queue.vhost, "queue": shown(queue.name)})
            await asyncio.sleep(0)
        return cards

    def _transactions(self, call: Any) -> list[dict[str, Any]]:
        coordinator = self._parts.broker.transactions
        if coordinator is None:
            return []
        old = [one for one in coordinator.list() if one.state.value == "prepared" and one.age_s > _OLD_S and call.sees(one.xid.vhost)]
        if not old:
            return []
        text = f"{len(old)} transactions are prepared and not decided, the oldest for {int(max(one.age_s for one in old))} s"
        return [card(WARNING, "Transactions in doubt", text, "Ask their manager, or decide them with flintmq tx", "transactions")]

    def _pipelines(self, call: Any) -> list[dict[str, Any]]:
        source = self._parts.pipeline
        cards = []
        for one in source()["subscriptions"] if source is not None else ():
            if call.sees(one["vhost"]) and one["prepared"] and one["prepared_age_ms"] > _OLD_S * 1000:
                text = f"{one['prepared']} messages of subscription '{one['name']}' are held for {one['prepared_age_ms'] // 1000} s"
                cards.append(card(WARNING, "A Spark batch is not committed", text, "Start its query again, or reset it", "pipelines"))
            elif call.sees(one["vhost"]) and one["behind"] > _MANY and not one["active"]:
                text = f"nobody reads for subscription '{one['name']}', and {one['behind']} messages wait"
                cards.append(card(HINT, "A Spark query stands still", text, "Start its query", "pipelines"))
        return cards


def _queue_card(queue: Any, series: Any, paused: bool) -> dict[str, Any] | None:
    """The worst that there is to say of a queue; None: nothing."""
    core, name = queue.core, shown(queue.name)
    if core.failed_count:
        text = f"{core.failed_count} messages of '{name}' can't be read"
        return card(ERROR, "Messages are unreadable", text, "See the log, and flintmq log verify", "queue")
    if paused:
        return card(
            HINT, "A queue is paused", f"'{name}' gives no messages to its consumers", "Resume it (flintmq ctl resume_queue)", "queue"
        )
    ready, unacked, consumers = core.ready_count(), core.unacked_count(), core.consumer_count()
    columns = series.of(_WINDOW_S)["samples"]
    if queue.policy.is_stream:
        return _stream_card(name, columns)
    count = len(columns["messages_ready"])
    seconds = max(1, (count - 1) * QUEUE_TIERS[0][0])
    growth = (columns["messages_ready"][-1] - columns["messages_ready"][0]) / seconds
    rate = (columns["delivered"][-1] - columns["delivered"][0]) / seconds
    if ready and not consumers and growth > _GROWTH:
        text = f"'{name}' has {ready} messages, grows by {growth:.0f} a second, and nobody consumes"
        return card(WARNING, "A queue nobody consumes grows", text, "Start a consumer, or limit the queue by a policy", "queue")
    if consumers and growth > _GROWTH and count > 2:
        text = f"'{name}' grows by {growth:.0f} a second; its {consumers} consumers take {rate:.0f} a second and hold {unacked}"
        return card(WARNING, "Consumers are too slow", text, "Add consumers, or look at the prefetch and at what they wait for", "queue")
    if consumers and ready and not unacked and not rate and count > 2:
        text = f"'{name}' has {ready} messages and {consumers} consumers, which took none for {seconds} s"
        return card(WARNING, "Consumers take nothing", text, "They may be blocked: look at their connections", "queue")
    if unacked > _MANY and not rate and count > 2:
        text = f"consumers of '{name}' hold {unacked} messages and settled none for {seconds} s (as far as counters tell)"
        return card(HINT, "Messages are held", text, "Set a prefetch limit, and look for a consumer that hangs", "queue")
    return None


def _stream_card(name: str, columns: dict[str, list[int]]) -> dict[str, Any] | None:
    """A stream keeps what was read: its consumers are too slow when they fall back further and further. Those of groups by the groups' lag;
    others get each message, so that one's pace is the stream's deliveries by the number of them."""
    count = len(columns["lag"])
    if count <= 2:
        return None
    seconds = (count - 1) * QUEUE_TIERS[0][0]
    lag = columns["lag"][-1]
    fallen = (lag - columns["lag"][0]) / seconds
    if fallen > _GROWTH:
        text = f"the slowest group of stream '{name}' is {lag} messages behind, {fallen:.0f} more each second"
        return card(WARNING, "A group falls behind", text, "Add consumers to it, or look at what they wait for", "queue")
    consumers = columns["consumers"][-1]
    if lag or not consumers or min(columns["consumers"]) != max(columns["consumers"]):
        return None
    came = (columns["enqueued"][-1] - columns["enqueued"][0]) / seconds
    read = (columns["delivered"][-1] - columns["delivered"][0]) / seconds / consumers
    if came - read > _GROWTH:
        text = f"stream '{name}' gets {came:.0f} messages a second, and each of its {consumers} consumers reads {read:.0f}"
        return card(WARNING, "Consumers are too slow", text, "Look at their prefetch, and at what they wait for", "queue")
    return None
