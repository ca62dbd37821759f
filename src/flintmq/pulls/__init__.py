"""Pull requests: who wants messages of a queue asks for them, waits if there are none, and settles them by lease."""
