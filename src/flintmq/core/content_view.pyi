# Python face of content_view.py (compiled), for the type checker.

class ContentView:
    """A message content as it lies in memory; it stays there until the view goes. Any thread."""

    exchange: bytes
    routing_key: bytes
    header: bytes
    @property
    def body_bytes(self) -> int: ...
    @property
    def size(self) -> int:
        """Of route, header and body."""
    def body(self, start: int = 0, size: int = 0xFFFFFFFF) -> bytes:
        """A copy of a piece of the body; b"" behind its end. O(size)."""
