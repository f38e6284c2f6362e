"""The number of files and sockets that this process may open."""

from __future__ import annotations

import resource

ENOUGH = 65_536
"""Descriptors beyond which a higher limit is of no use: some programs loop over all of them."""


def raise_limit(enough: int = ENOUGH) -> int:
    """Raise the soft limit to the hard one, at most to ``enough``; returns the soft limit. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return enough if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # some systems have a lower maximum that they do not report
        return soft
    return target
