"""Whether a player of ALFWorld searches: its walks to known receptacles while a listed one was never looked into.

    gagpo eval starter:alfworld-household --env gagpo/ALFWorld-v0 -k size=alfred2 -k verb=released -k seed=73 \
        --split valid_unseen --prompt plain --episodes played.jsonl
    python -m benchmarks.starters.search played.jsonl

A player that loses by search never goes to a listed receptacle of an unusual type, or to the second or third of a type,
and circles between those it knows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gagpo.data import Episode, Turn
from gagpo.data.episode_file import episodes_in
from gagpo.envs.alfworld.expert.goal import HouseholdGoal, read_goal
from gagpo.envs.alfworld.expert.memory import Memory, kind_of
from gagpo.eval.units import percent


def revisits(turns: Sequence[Turn]) -> list[bool]:
    """Whether each turn walks to a receptacle that was looked into before, while another should be looked into.

    That is so while the observations have shown no wanted object, or no lamp to look at it with, and a receptacle of
    the room's listing was never looked into. All False where the task is not understood.
    """
    if not turns:
        return []
    memory = Memory(turns[0].observation)
    goal = read_goal(memory.task, {kind_of(name) for name in memory.receptacles})
    revisited = []
    for turn, answer in zip(turns, [*(turn.observation for turn in turns[1:]), None], strict=True):
        action = turn.action.strip()
        walks = action.startswith("go to ") and action.removeprefix("go to ") in memory.searched
        revisited.append(walks and _searches(memory, goal) and not memory.searched.issuperset(memory.receptacles))
        if answer is not None:
            memory.update(turn.action, answer)
    return revisited


def _searches(memory: Memory, goal: HouseholdGoal | None) -> bool:
    """Whether the next object that the goal needs has not been seen."""
    if goal is None:
        return False
    if memory.holding:
        needs_lamp = goal.operation == "light" and kind_of(memory.holding) == goal.object_type
        lamps = [goal.lamp] if goal.lamp not in ("", "lamp") else ["desklamp", "floorlamp"]
        return needs_lamp and not any(memory.objects_of(lamp) for lamp in lamps)
    objects = memory.objects_of(goal.object_type)
    if goal.count > 1:  # what was delivered is not looked for
        objects = [name for name in objects if kind_of(memory.place_of(name)) != goal.target]
    return not objects


@dataclass(frozen=True)
class SearchCounts:
    """Counts over episodes, and over the lost ones among them.

    losing_revisits: lost episodes in which a fourth of the turns or more are revisits.
    """

    episodes: int
    lost: int
    turns: int
    revisits: int
    turns_of_lost: int
    revisits_of_lost: int
    losing_revisits: int

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> SearchCounts:
        all_revisits = [revisits(episode.turns) for episode in episodes]
        of_lost = [row for row, episode in zip(all_revisits, episodes, strict=True) if not episode.success]
        return cls(
            episodes=len(all_revisits),
            lost=len(of_lost),
            turns=sum(map(len, all_revisits)),
            revisits=sum(map(sum, all_revisits)),
            turns_of_lost=sum(map(len, of_lost)),
            revisits_of_lost=sum(map(sum, of_lost)),
            losing_revisits=sum(4 * sum(row) >= len(row) > 0 for row in of_lost),
        )

    def line(self, name: str) -> str:
        """A row of the table that :func:`main` prints."""
        of_all = percent(self.revisits / self.turns) if self.turns else "-"
        of_lost = percent(self.revisits_of_lost / self.turns_of_lost) if self.turns_of_lost else "-"
        return f"| {name} | {self.episodes} | {self.lost} | {of_all} | {of_lost} | {self.losing_revisits} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Walks to known receptacles while a listed one was never looked into.")
    parser.add_argument("episodes", type=Path, nargs="+", help="files of gagpo eval --episodes")
    print("| episodes of | played | lost | revisits, % of turns | of lost episodes | lost with a fourth or more |")
    print("|---|---|---|---|---|---|")
    for path in parser.parse_args().episodes:
        print(SearchCounts.of(list(episodes_in(path))).line(path.stem))


if __name__ == "__main__":
    main()
