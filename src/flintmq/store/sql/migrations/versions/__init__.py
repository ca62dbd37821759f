"""One module a version, `vNNNN_what.py`. Never changed once released."""
