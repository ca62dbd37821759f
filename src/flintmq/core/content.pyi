# Python face of content.py (compiled), for the type checker.
CONTENT_PERSISTENT: int
CONTENT_EXPIRES: int
CONTENT_HEADERS: int
CONTENT_REPLY_TO: int
CONTENT_PRIORITY: int
CONTENT_SHARED: int
FRAME_HEADER_SIZE: int
FRAME_END: int
FRAME_OVERHEAD: int

def bytes_mapped() -> int: ...
def give_back_chunks() -> int: ...
def thin_bytes() -> int: ...
