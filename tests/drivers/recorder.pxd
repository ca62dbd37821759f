# The protocol engine with a sink that writes down what it is told: for tests and fuzzers.
from flintmq.protocol.v0_9_1.engine cimport engine_t

cdef class Recorder:
    cdef engine_t engine
    cdef public list events
    cdef bytes buffer
    cdef public int frame_size_max
