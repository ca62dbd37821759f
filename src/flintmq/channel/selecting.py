"""Selectors and browse-only consumers: which messages of a queue a basic.consume asks for, and whether it takes them.

in: the arguments of basic.consume. out: a Choice, or a refusal that says what is wrong with the selector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.exchange import erlang_term
from flintmq.selectors.grammar import SelectorError, parse
from flintmq.selectors.program import Selector
from flintmq.slotted import slotted

# Names of a selector: Qpid's for all protocols, and those of its filter in AMQP 1.0, which clients carry over.
SELECTORS = ("x-filter-jms-selector", "apache.org:selector-filter:string", "jms-selector")
# Names of the wish to see messages and take none: ours, and Qpid's.
BROWSES = ("x-browse", "x-filter-no-consume")


# of a selection in the queue core: its record, its keys, and its heap when that is full (queue/selections.pxd)
SELECTION_BYTES = 10_240


@slotted(frozen=True)
class Choice:
    """selector: None: every message; browse: the consumer sees each message once and takes none."""

    selector: Selector | None = None
    browse: bool = False

    @property
    def size(self) -> int:
        """Bytes of memory: of the selector, twice, as its text is an argument, too, and of what a queue may have for it."""
        return 0 if self.selector is None else 2 * self.selector.size + SELECTION_BYTES


ALL = Choice()


def parse_choice(
    arguments: Mapping[str, Any], no_ack: bool, plain: bool, where: str, limits: Limits, browse_only: bool = False, grouped: bool = False
) -> Choice:
    """Reads the arguments of a basic.consume.

    Args: plain: the queue is one of entries, no stream and no reply queue; where: "queue 'q' in vhost '/'", for texts;
        browse_only: all consumers of the queue are browsers; grouped: it has message groups, or is sorted.
    Raises: PeerError 406: what is no selector; a browse-only consumer that would acknowledge; either of them on a stream; a selector of
    one that takes messages from a grouped queue.
    """
    names = [name for name in (*SELECTORS, *BROWSES) if name in arguments]
    if not names and not browse_only:
        return ALL
    selector, browse = None, browse_only
    for name in names:
        value = arguments[name]
        if not isinstance(value, bool if name in BROWSES else str):
            raise _refused(name, where, f"{{unacceptable_type,{erlang_term(value)[0]}}}")
        if not plain:
            raise _refused(name, where, '"a stream or a reply queue has no selectors and no browsers; a stream has x-stream-filter"')
        if isinstance(value, bool):
            browse = browse or value
        elif selector is not None:
            raise _refused(name, where, '"a consumer has one selector"')
        elif value.strip():
            selector = _selector(name, value, where, limits)
    if browse and not no_ack:
        raise _refused(
            next((name for name in BROWSES if arguments.get(name)), BROWSES[0]),
            where,
            '"a browse-only consumer takes nothing, so it has nothing to acknowledge: consume with no_ack"',
        )
    if selector is not None and grouped and not browse:
        name = next(name for name in SELECTORS if name in arguments)
        raise _refused(name, where, '"a queue with message groups, or a sorted one, has selectors for browsers only"')
    return Choice(selector, browse)


def _selector(name: str, text: str, where: str, limits: Limits) -> Selector:
    try:
        return parse(text, limits)
    except SelectorError as error:
        raise _refused(name, where, f'"{error}"') from None


def _refused(name: str, where: str, reason: str) -> PeerError:
    return PeerError(ReplyCode.PRECONDITION_FAILED, f"invalid arg '{name}' for {where}: {reason}")
