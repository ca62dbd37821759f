# Index runs as Python values, for tests.
