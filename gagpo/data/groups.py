"""Task groups of a batch of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from gagpo.data.episodes import Episode


def tasks_of_groups(episodes: Sequence[Episode]) -> list[str]:
    """The task of each group, in the order of the groups' numbers."""
    return [task for _, task in sorted({episode.group: episode.task for episode in episodes}.items())]
