class StreamSource:
    """A stream's log as the stream core sees it (source.pxd)."""

    def taken(self) -> None: ...
