"""Whether histories of a shared queue can be told as one thing after the other: recorder, models, checker, mutants of the algorithms."""
