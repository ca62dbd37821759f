"""The state machine of ADR 13 (a node's store follows it to another machine) in a world that loses, delays, kills and forgets."""
