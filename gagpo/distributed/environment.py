"""How a process knows that it is a rank: the environment variables it was started with, and how it ends."""

from __future__ import annotations

import os

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells every process, and what whoever else starts ranks has to set."""

LOST = 75
"""Exit status of a rank that ends because another is gone."""

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable with the network interface that ranks talk over."""

PARENT = "GAGPO_PARENT"
"""Environment variable with the process that started a rank here, and without which it should not go on."""


def started_as_rank() -> bool:
    """Whether torchrun, our launcher or something like them started this process as one of several."""
    return all(name in os.environ for name in ENVIRONMENT) and os.environ["WORLD_SIZE"] != "1"
