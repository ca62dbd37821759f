"""Drivers: small compiled faces by which tests and tools work compiled modules from Python, also with threads that hold no lock of Python.

They are built in place with the package, and are in no wheel.
"""
