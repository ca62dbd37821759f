# Python face of loop.py (compiled), for the type checker.
from flintmq.net.loop_base import LoopBase

class Loop(LoopBase):
    def run(self) -> None: ...
