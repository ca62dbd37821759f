"""This node among others that share an engine: its shared queues, their definitions, its links to other nodes."""
