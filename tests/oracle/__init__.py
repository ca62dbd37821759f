"""Twins: what stands in for a part of the broker in tests and tools, with the same face: a disk, logs, a store and queues in memory.

Compiled ones (those with a `.pxd`) are built in place with the package, and are in no wheel.
"""
