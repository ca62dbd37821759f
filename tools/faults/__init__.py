"""Black-box fault campaigns: independent clients, a checker of what they saw, and ways to break a broker or its disk.

In: a broker as a command line. Out: a verdict per campaign (one JSON line) and an exit status.
Nothing here imports the broker: what is checked is what a client can see through a socket, and what the disk kept.
"""
