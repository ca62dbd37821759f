"""Ordered stores of rows, behind one port: what shared queues, the cluster and `flintmq.recipes` stand on."""
