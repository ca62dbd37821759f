"""FlintMQ: a durable, strictly ordered AMQP message broker, with a PySpark data pipeline."""

__version__ = "0.1.0"
