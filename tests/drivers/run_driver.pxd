# Index runs and rows of segments as Python values, for tests.
