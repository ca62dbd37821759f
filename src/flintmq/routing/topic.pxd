# Topic patterns as a trie of words, walked as a set of states: a match costs O(words x states), and ends after steps_max of them.
#
# Called with the virtual host's lock held (one caller at a time): a match writes marks into the nodes.
cimport cython
from libc.stdint cimport uint64_t

@cython.final
cdef class TopicNode:
    cdef dict words               # word (bytes) -> TopicNode; None while empty
    cdef TopicNode star           # the word "*": exactly one word; or None
    cdef TopicNode hash           # the word "#": no word, one, or several; or None
    cdef dict destinations        # destination -> number of bindings whose pattern ends here; None while empty
    cdef uint64_t mark            # step of the walk that last put this node among its states
    cdef bint is_hash             # reached by "#": stays a state on every word

@cython.final
cdef class TopicTrie:
    cdef TopicNode root
    cdef uint64_t step            # number of the current step of a walk; never reused
    cdef readonly Py_ssize_t pattern_count   # different (pattern, destination) pairs, `#.#` being `#`
    cdef readonly Py_ssize_t steps           # of the last match: nodes entered
    cdef public Py_ssize_t steps_max
    cdef void enter(self, list states, TopicNode node)
    cdef void collect(self, list states, set destinations)
