"""Log bytes and AMQP contents <-> Arrow record batches (docs/DATAPLANE.md, "Tables").

Importing the package or `schema` is light: pyarrow is imported when a schema or batch is made. The other modules are compiled where
per-row work happens.
"""
