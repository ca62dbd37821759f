# Why a connection waits for Python: connection_t.slow, and what goes with it.

cpdef enum:                   # connection_t.slow: why the loop must call Python for a connection
    SLOW_NONE = 0
    SLOW_METHOD = 1           # slow_payload holds a method frame's payload
    SLOW_ROUTE = 2            # the channel's publish has no cached route: slow_payload holds the route bytes
    SLOW_PUBLISH = 3          # a complete message needs Python (a route that its headers decide and no cache has, a property that is refused)
    SLOW_DEAD_LETTER = 4      # slow_tag..: a refused delivery goes to a dead-letter exchange
    SLOW_ERROR = 5            # engine.error_*
    SLOW_VERSION = 6
    SLOW_POLICY = 7           # a queue is over its limit and dead-letters what it drops or refuses
    SLOW_HEADER = 8           # the protocol header arrived: send connection.start
    SLOW_RESOLVE = 9          # as SLOW_ROUTE, but the channel is authorized for slow_exchange: only the route is missing

cpdef enum:                   # bits of slow_size with SLOW_DEAD_LETTER
    SETTLING_MULTIPLE = 1
    SETTLING_REQUEUE = 2
