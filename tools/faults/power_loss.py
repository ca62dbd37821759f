class PowerLoss:
    def __init__(self, *a): pass
    def arm(self): return {}
    def strike(self, rng): return {}
