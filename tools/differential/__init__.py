"""The same scripts against FlintMQ and RabbitMQ, over a raw client, and what comes back compared (`make interop`)."""
