"""The error of an iteration without a single turn."""

from __future__ import annotations

from collections.abc import Sequence

from gagpo.base.errors import GagpoError
from gagpo.data import Episode


class NothingToLearn(GagpoError, RuntimeError):
    """An iteration without a single turn."""


def require_turns(episodes: Sequence[Episode], iteration: int) -> None:
    """Raise :class:`NothingToLearn` if no episode of an iteration had a turn."""
    if any(episode.turns and episode.outcome != "failed" for episode in episodes):
        return
    errors = [episode.info["error"] for episode in episodes if "error" in episode.info]
    if errors:
        raise NothingToLearn(
            "every episode failed in its environment",
            where=f"iteration {iteration}",
            advice=f"the first error: {errors[0]}",
        )
    raise NothingToLearn(
        "no prompt left room for a response",
        where=f"iteration {iteration}",
        advice=("lower rollout.max_tokens or context.history, or use a model with a longer context"),
    )
