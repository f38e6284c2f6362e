"""The Hugging Face hub where it cannot be reached: one answer within seconds, in place of its client's retries."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import httpx2

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""What a hub name looks like."""

SECONDS = 3.0


@functools.cache
def reachable(endpoint: str) -> bool:
    """Whether a server answers at all within seconds, through the proxies of the environment variables."""
    try:
        httpx2.head(endpoint, timeout=SECONDS)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
        return False
    return True


def why_unavailable(model: str, revision: str | None = None) -> str:
    """Why a model of the hub can be neither downloaded nor read from the cache; '' if it can, or is a folder.

    Where the hub cannot be reached, only the cache is asked from then on.
    """
    if Path(model).is_dir() or not NAME.fullmatch(model):
        return ""
    from huggingface_hub import constants, try_to_load_from_cache

    reason = "offline mode is set"
    if not constants.HF_HUB_OFFLINE:
        if reachable(constants.ENDPOINT):
            return ""
        reason = f"no answer from {constants.ENDPOINT}"
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"  # for child processes
    cached = try_to_load_from_cache(model, "config.json", revision=revision or "main")
    return "" if isinstance(cached, str) else f"it is not in the cache, and the hub cannot be reached ({reason})"
