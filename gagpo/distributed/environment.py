"""The environment variables of a rank, and its exit status."""

from __future__ import annotations

import os

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets; any other launcher must set them too."""

LOST = 75
"""Exit status of a rank that ends because another is gone."""

PARENT = "GAGPO_PARENT"
"""Environment variable with the id of the launcher; a rank ends when that process is gone."""


def started_as_rank() -> bool:
    """Whether a launcher (ours, torchrun or another) started this process as one of several."""
    return all(name in os.environ for name in ENVIRONMENT) and os.environ["WORLD_SIZE"] != "1"
