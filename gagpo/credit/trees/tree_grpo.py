"""Tree-GRPO: an episode against its task group, and against the episodes of its own tree (arXiv 2509.21240)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns.columns import Coding, Turns
from gagpo.credit.turns.grouping import standardise
from gagpo.credit.turns.tree import mean_of_paths, tree_E


class TreeGrpo(CreditSettings):
    """``(R - mean)/(std + 1e-6)`` over the task group, plus the same over the episode's tree (arXiv 2509.21240).

    A tree is a try from the start with all that branches from it; one without branches adds nothing. A turn that
    several episodes share has the mean of theirs. reward: as in :class:`gagpo.credit.episode.Grpo`.

    >>> turns = Turns([0, 1, 0, 0], [0, 0, 1, 2], [0, 0, 0], parent_E=[-1, 0, -1])
    >>> TreeGrpo().advantage(turns).round(3).tolist()
    [0.289, 1.862, -1.284, -0.577]
    """

    level: ClassVar[Level] = "turn"
    takes_trees: ClassVar[bool] = True
    name: Literal["tree_grpo"] = "tree_grpo"
    reward: Coding = "sum"

    def advantage(self, turns: Turns) -> np.ndarray:
        return_E = turns.coded_return_E(self.reward)
        among_group_E = standardise(return_E, turns.group_index_E, turns.groups)
        among_tree_E = standardise(return_E, tree_E(turns), turns.episodes)
        return mean_of_paths(among_group_E + among_tree_E, turns)
