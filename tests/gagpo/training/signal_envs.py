"""A corridor that sends its own process a SIGTERM, where an exception of the handler is thrown away."""

import os
import signal
from contextlib import suppress

import gymnasium

from gagpo.envs.testing import CorridorEnv

COUNTS = {"actions": 0}


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


class Destroyed:
    def __del__(self):
        terminate()


class SignallingEnv(CorridorEnv):
    """action: number of the action, in this process, in which the signal comes. place: destructor, or caught."""

    def __init__(self, action: int = 0, place: str = "destructor", **kwargs):
        super().__init__(**kwargs)
        self.action = action
        self.place = place

    def act(self, action):
        COUNTS["actions"] += 1
        if COUNTS["actions"] == self.action:
            if self.place == "destructor":
                Destroyed()
            else:
                with suppress(BaseException):  # as other packages do
                    terminate()
        return super().act(action)


gymnasium.register(
    "gagpo-test/Signalling-v0", f"{__name__}:SignallingEnv", disable_env_checker=True, order_enforce=False
)
