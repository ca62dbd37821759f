# Python face of arrival.py (compiled), for the type checker.
from flintmq.queue.control import QueueHandle

def drop_over(handle: QueueHandle) -> int: ...
