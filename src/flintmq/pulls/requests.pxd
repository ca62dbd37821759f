# Pulls for Python: PullGroup, Pull, Answers.
from libc.stdint cimport uint64_t
from flintmq.pulls.types cimport answers_t, pull_group_t, pull_t
from flintmq.queue.control cimport QueueHandle
from flintmq.scheduler.system cimport ActorSystem

cdef class Answers:
    cdef answers_t answers
    cdef readonly uint64_t taken
    cdef object poll

cdef class Pull:
    cdef pull_t pull
    cdef readonly PullGroup pull_group     # keeps it
    cdef readonly object context    # the caller's own
    cdef Answers answers
    cdef readonly bint answered

cdef class PullGroup:
    cdef pull_group_t *pull_group           # NULL: freed
    cdef readonly QueueHandle handle
    cdef readonly object queue      # the control plane's Queue
    cdef readonly str group
    cdef readonly str key           # what lease ids begin with
    cdef ActorSystem system
    cdef object on_expired          # called with the queue when entries are past their time; whether all of them are gone then
