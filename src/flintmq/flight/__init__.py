"""The Flight service of the data plane: a child process of the broker that speaks Arrow Flight, and the client that callers use.

`python -m flintmq.flight` is the child (`server`, `auth`, `plane`, `link`); `client.DataPlane` and `results` are for callers.
The contract is docs/DATAPLANE.md. Importing this package imports neither pyarrow nor gRPC: workers of Spark fork.
"""
