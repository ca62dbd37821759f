# Python face of scan.py (compiled), for the type checker.
EXPIRATION_INVALID: int

def scan_properties_of(payload: bytes) -> dict[str, object] | None: ...
