"""Whether histories of a shared queue can be told as one thing after the other: recorder, model, checker, mutants of the algorithm."""
