"""The columns of episodes, and the tasks of their groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gagpo.data.episode import Episode
from gagpo.data.errors import BadTurns
from gagpo.data.state_keys import StateKey, intern, state_ids
from gagpo.data.turns import Turns


def turns_from_episodes(
    episodes: Sequence[Episode],
    key: StateKey = "observation",
    penalty: float | Sequence[float] = 0.0,
    texts: bool = False,
) -> Turns:
    """The columns of ``episodes``. See :func:`votes` for ``vote_E``.

    key: definition of a state.
    penalty: cost of an invalid action, >= 0, one for all or one for each episode.
    texts: whether to give ``text_N``.

    Raises:
        BadTurns: there are no episodes, one failed or has no turns, or ``key="state"`` and a turn has no state.
    """
    penalty_E = [penalty] * len(episodes) if isinstance(penalty, int | float) else penalty
    if min(penalty_E, default=0.0) < 0:
        raise BadTurns(f"penalty must be at least 0, got {min(penalty_E)}", key="penalty")
    for number, episode in enumerate(episodes):
        if episode.outcome == "failed":
            raise BadTurns(
                "failed in its environment", where=f"episode {number} (task {episode.task!r})", advice="leave it out"
            )
        if not episode.turns:
            raise BadTurns("has no turns", where=f"episode {number} (task {episode.task!r})", advice="leave it out")
    turns = [turn for episode in episodes for turn in episode.turns]
    length_E = [len(episode.turns) for episode in episodes]
    penalty_N = np.repeat(np.asarray(penalty_E, np.float64), length_E)
    state_N, end_state_E = state_ids(episodes, key)
    names = [episode.environment for episode in episodes]
    return Turns.of(
        reward_N=np.array([turn.reward for turn in turns], np.float64),
        episode_N=np.repeat(np.arange(len(episodes)), length_E),
        group_E=np.array([episode.group for episode in episodes], np.int64),
        state_N=state_N,
        end_state_E=end_state_E,
        action_N=intern(turn.action for turn in turns),
        penalty_N=np.where([turn.valid for turn in turns], 0.0, penalty_N),
        tokens_N=np.array([len(turn.response_ids) for turn in turns], np.int64),
        truncated_E=np.array([episode.outcome == "truncated" for episode in episodes], np.bool_),
        success_E=np.array([episode.success for episode in episodes], np.bool_),
        vote_E=votes(episodes),
        env_E=intern(names) if len(set(names)) > 1 else None,
        # As objects: numpy's own strings drop trailing NUL characters.
        text_N=np.fromiter((turn.observation for turn in turns), np.object_) if texts else None,
    )


def votes(episodes: Sequence[Episode]) -> np.ndarray | None:
    """Id of each episode's vote, int64[E]; None where the successes are the votes of all groups.

    The vote is ``info["answer"]``, the environment's canonical form of the final answer, so wordings of one answer are
    one vote. In a task group with an episode without an answer it is the success.
    """
    answers = [str(episode.info.get("answer", "")).strip() for episode in episodes]
    unanswered = {episode.group for episode, answer in zip(episodes, answers, strict=True) if not answer}
    if all(episode.group in unanswered for episode in episodes):
        return None
    return intern(
        ("success", episode.success) if episode.group in unanswered else ("answer", answer)
        for episode, answer in zip(episodes, answers, strict=True)
    )


def tasks_of_groups(episodes: Sequence[Episode]) -> list[str]:
    """The task of each group, in the order of the groups' numbers."""
    return [task for _, task in sorted({episode.group: episode.task for episode in episodes}.items())]
