"""Topic matching: a trie over the words of the patterns (see topic.pxd).

in: patterns with destinations, routing keys as bytes. out: the set of destinations of a key.

I1  Matching has no backtracking: after each word the walk holds a set of nodes, each at most once. `#.#` says what `#` says and is
    kept as that, so after i words of a key the set has at most 2 x 5^i nodes, whatever patterns there are: between words, each of
    which is skipped by a `#`, met by itself or met by `*`, there is a `#` or none. A key of up to six words is matched in 39,062 steps.
    A longer one may meet (words of the key) x (nodes of the trie): a match ends after `steps_max` steps and says so.
I2  A node that no pattern needs any more is removed, so unbinding gives the memory back.
I3  Words are bytes between dots. The empty key has no words; "a." has two, the second empty (as on RabbitMQ).
"""

from __future__ import annotations

from cython import Py_ssize_t, cclass, cfunc, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.libc.stdint import uint64_t


@cclass
class TopicNode:
    """A place in the trie: what was matched so far."""

    def __cinit__(self):
        self.mark = 0
        self.is_hash = False


@cfunc
def _words(key: bytes) -> list:
    return key.split(b".") if key else []


@cfunc
def _pattern_words(pattern: bytes) -> list:
    """The words of a pattern, one `#` for several in a row."""
    words: list = []
    word: bytes
    before: bytes = b""
    for word in _words(pattern):
        if word != b"#" or before != b"#":
            words.append(word)
        before = word
    return words


@cfunc
def _child(node: TopicNode, word: bytes) -> TopicNode:
    """The next node along `word` of a pattern, or None."""
    if word == b"*":
        return node.star
    if word == b"#":
        return node.hash
    if node.words is None:
        return None
    return node.words.get(word)


@cfunc
def _drop_child(node: TopicNode, word: bytes):
    if word == b"*":
        node.star = None
    elif word == b"#":
        node.hash = None
    else:
        del node.words[word]
        if not node.words:
            node.words = None


@cclass
class TopicTrie:
    """The patterns of one topic exchange, or of anything else that speaks them. Not thread-safe.

    Attributes: steps: nodes that the last match entered; steps_max: how many it may at most, about 30 ns each (Limits.topic_steps_max).
    """

    def __init__(self, steps_max: int):
        self.root = TopicNode()
        self.step = 0
        self.pattern_count = 0
        self.steps = 0
        self.steps_max = steps_max

    def add(self, pattern: bytes, destination: object) -> None:
        """Adds one binding; the same pair may be added several times and counts."""
        node: TopicNode = self.root
        following: TopicNode
        word: bytes
        for word in _pattern_words(pattern):
            following = _child(node, word)
            if following is None:
                following = TopicNode()
                if word == b"*":
                    node.star = following
                elif word == b"#":
                    following.is_hash = True
                    node.hash = following
                else:
                    if node.words is None:
                        node.words = {}
                    node.words[word] = following
            node = following
        if node.destinations is None:
            node.destinations = {}
        count: object = node.destinations.get(destination, 0)
        if count == 0:
            self.pattern_count += 1
        node.destinations[destination] = count + 1

    def remove(self, pattern: bytes, destination: object) -> bool:
        """Takes back one `add`. False when there is none."""
        words: list = _pattern_words(pattern)
        path: list = [self.root]
        node: TopicNode = self.root
        word: bytes
        for word in words:
            node = _child(node, word)
            if node is None:
                return False
            path.append(node)
        if node.destinations is None or destination not in node.destinations:
            return False
        count: object = node.destinations[destination] - 1
        if count:
            node.destinations[destination] = count
            return True
        check(self.pattern_count > 0, b"topic I2 a pattern that goes was counted", self.pattern_count, len(words))
        self.pattern_count -= 1
        del node.destinations[destination]
        if not node.destinations:
            node.destinations = None
        i: Py_ssize_t = len(words)
        while i > 0:
            node = path[i]
            if node.destinations is not None or node.words is not None or node.star is not None or node.hash is not None:
                break
            i -= 1
            _drop_child(path[i], words[i])
        return True

    def match(self, routing_key: bytes) -> set | None:
        """Destinations of every pattern that matches the key, each once. None: that takes more than `steps_max` steps."""
        states: list = []
        before: list
        node: TopicNode
        following: TopicNode
        destinations: set = set()
        word: bytes
        self.step += 1
        self.steps = 0
        self.enter(states, self.root)
        for word in _words(routing_key):
            self.step += 1
            before = states
            states = []
            for node in before:
                if self.steps > self.steps_max:
                    return None
                if node.is_hash:
                    self.enter(states, node)
                if node.words is not None:
                    following = node.words.get(word)
                    if following is not None:
                        self.enter(states, following)
                if node.star is not None:
                    self.enter(states, node.star)
            if not states:
                return destinations
        self.collect(states, destinations)
        return destinations

    def enter(self, states: list | None, node: TopicNode | None) -> void:
        # A node once entered in this step is not entered again: that is what keeps the walk linear. "#" also matches no word,
        # so its node is entered together with the one before it.
        while node is not None and node.mark != self.step:
            node.mark = self.step
            self.steps += 1
            states.append(node)
            node = node.hash

    def collect(self, states: list | None, destinations: set | None) -> void:
        node: TopicNode
        for node in states:
            if node.destinations is not None:
                destinations.update(node.destinations)

    def node_count(self) -> int:
        """Nodes in use, the root included (tests: nothing is left behind)."""
        pending: list = [self.root]
        count: uint64_t = 0
        node: TopicNode
        while pending:
            node = pending.pop()
            count += 1
            if node.words is not None:
                pending.extend(node.words.values())
            if node.star is not None:
                pending.append(node.star)
            if node.hash is not None:
                pending.append(node.hash)
        return count
