# Whether a checkpoint and the log behind it come to what the whole log does.
from flintmq.store.recovery cimport Recovery

# The first difference in a queue's entries, as text, or None. May wait for the disk.
cdef object entry_difference(Recovery whole, Recovery other, object queue_id)
