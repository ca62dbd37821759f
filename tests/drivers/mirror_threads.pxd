# A mirrored queue under load from threads without the GIL (tests only).
