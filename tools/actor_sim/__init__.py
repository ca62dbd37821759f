"""Deterministic simulation of the compiled scheduler: build, load, campaign, mutants."""
