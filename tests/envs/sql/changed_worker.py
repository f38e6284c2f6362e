"""Query processes with a fault."""

import os
import signal
import sys

from gagpo.envs.sql import worker


def ends(channel):
    worker._run = lambda *_: sys.exit(3)
    worker.main(channel)


def slow_gold(channel):
    worker._limit_everything = lambda _: os.kill(os.getpid(), signal.SIGXCPU)
    worker.main(channel)
