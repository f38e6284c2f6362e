"""Query processes with a fault."""

import os
import signal
import sys

from gagpo.envs.sql import worker


def ends(pipe):
    worker._run = lambda *_: sys.exit(3)
    worker.main(pipe)


def slow_gold(pipe):
    worker._limit_process = lambda _: os.kill(os.getpid(), signal.SIGXCPU)
    worker.main(pipe)
