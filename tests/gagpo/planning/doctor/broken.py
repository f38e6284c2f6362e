"""Checks of the doctor that fail."""

import os
import signal
import time

from gagpo.planning.doctor.machine import Finding


def fine(machine):
    return Finding("ok", f"rank {machine.ranks.rank}", {"number": machine.ranks.rank})


def raises(machine):
    raise RuntimeError("no kernel image\nis available")


def is_killed(machine):
    print("the driver has fallen off the bus", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def sleeps(machine):
    time.sleep(3600)


def one_hangs(machine):
    """The last rank never reaches the barrier."""
    if machine.ranks.rank == machine.ranks.world_size - 1:
        sleeps(machine)
    machine.ranks.barrier()
    return fine(machine)


def one_raises(machine):
    if machine.ranks.rank == 1:
        raises(machine)
    machine.ranks.barrier()
    return fine(machine)


def one_warns(machine):
    verdict = "warning" if machine.ranks.rank == 1 else "ok"
    return Finding(verdict, f"seen by {machine.ranks.rank}", {"number": 1}, "look")
