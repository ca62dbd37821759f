"""The queue source over AMQP 0-9-1 (`transport=amqp`): for RabbitMQ, and for a FlintMQ whose data plane is off.

One consuming connection on the driver, a spool on disk. Nothing is imported here: Spark looks at the package in every session.
"""
