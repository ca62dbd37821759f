KINDS: dict[int, bytes]
REASONS: dict[int, bytes]
STATES: dict[int, bytes]
OUTCOMES: dict[int, bytes]
