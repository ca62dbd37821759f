"""The broker's side of the data plane: what Spark and other Arrow Flight clients ask of queues and logs. docs/DATAPLANE.md."""
