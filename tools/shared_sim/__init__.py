"""The state machine of ADR 15 (a shared queue has one owner, an engine the copy) in a world that loses, delays, stops and kills."""
