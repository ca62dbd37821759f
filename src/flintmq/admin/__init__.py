"""The HTTP face of a node: pulls, figures, metrics, health."""
