"""How ranks find each other: the store where they meet.

The store is torch's, started by the first rank or by torchrun, so that no further server is needed.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gagpo.base.background import Background, JobTimeout
from gagpo.base.rank import MASTER_ADDR, MASTER_PORT, WORLD_SIZE
from gagpo.distributed.errors import RankLost

MEETING_SECONDS = 600.0


def meet(seconds: float) -> tuple[Store, Store, int, int]:
    """Wait for the store at ``MASTER_ADDR:MASTER_PORT``; return two connections to it, the rank and the world size.

    All ranks wait here until the last one has come. Ranks that torchrun restarts after a failure meet at the same
    store, which still has the keys of the failed attempt, so each attempt has its own prefix. The second connection is
    for the watch: calls of one connection wait for each other, and a heartbeat must not wait for a slow call.

    Raises: RankLost after ``seconds``.
    """
    address = f"{os.environ[MASTER_ADDR]}:{os.environ[MASTER_PORT]}"
    if os.environ[MASTER_PORT].strip("0") == "":
        raise RankLost(
            "ranks cannot meet at MASTER_PORT=0",
            key="MASTER_PORT",
            advice="run torchrun --standalone, or name a free port",
        )
    meetings: list[tuple[Store, Store, int, int]] = []
    attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"

    def find() -> None:
        store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=seconds))))  # type: ignore[attr-defined]
        meetings.append((PrefixStore(attempt, store), PrefixStore(attempt, store.clone()), rank, world_size))

    meeting = Background("the meeting of the ranks", seconds + 5)  # torch itself waits forever for a stopped store
    try:
        meeting.start(find)
        meeting.wait()
    except JobTimeout:
        raise not_found(f"the store at {address} does not answer") from None
    except (RuntimeError, ValueError, dist.DistError) as error:
        raise not_found(error) from None
    return meetings[0]


def not_found(why: object) -> RankLost:
    """The error of ranks that could not open their channels, in one line.

    gloo uses the address that the machine's own name stands for, which may be loopback.
    """
    reason = " ".join(str(why).split())[:200]
    advice = "on several machines set GLOO_SOCKET_IFNAME to the network interface between them"
    return RankLost(f"the {os.environ[WORLD_SIZE]} ranks did not find each other: {reason}", advice=advice)
