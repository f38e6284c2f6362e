"""Ranks of a trainer as threads of the test."""

import json
import threading

from gagpo.distributed.errors import RankFailed

WAIT = 60.0  # seconds, after which a rank that waits for another fails


class ThreadPeers:
    """One of several ranks, see :class:`gagpo.agents.engines.peers.Peers`."""

    def __init__(self, rank, count, per_machine, barrier, values):
        self.rank, self.world_size = rank, count
        self.local, self.local_world_size = rank % per_machine, per_machine
        self.barrier, self.values = barrier, values

    def gathered(self, value):
        self.values[self.rank] = json.dumps(value)
        self.barrier.wait(WAIT)
        gathered = [json.loads(text) for text in self.values]
        self.barrier.wait(WAIT)
        return gathered

    def raise_together(self, error, names):
        if error is not None:
            raise error
        for rank, name in enumerate(names):
            if name is not None:
                raise RankFailed(f"rank {rank} of {self.world_size} failed")


def as_ranks(count, work, per_machine=None, raises=False):
    """What ``work`` returns, or with ``raises`` its error, for each of so many ranks at the same time."""
    barrier, values = threading.Barrier(count), [""] * count
    results, errors = [None] * count, [None] * count

    def run(rank):
        try:
            results[rank] = work(ThreadPeers(rank, count, per_machine or count, barrier, values))
        except BaseException as error:
            errors[rank] = error
            if not raises:
                barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raises:
        return errors
    for error in sorted(
        (error for error in errors if error), key=lambda error: isinstance(error, threading.BrokenBarrierError)
    ):
        raise error
    return results
