"""Credit of saved episodes: the advantages that GAGPO and GRPO give them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gagpo.credit import CreditSettings, Turns, advantages, intern
from gagpo.credit.episode import Grpo
from gagpo.credit.gagpo import Gagpo
from gagpo.eval.episode_files import EpisodeRecord
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError


@dataclass(frozen=True)
class EpisodeCredit:
    """Credit of one episode, one number per turn: advantages by algorithm, state values, state numbers."""

    advantages: dict[str, list[float]]
    values: list[float]
    states: list[int]


@dataclass(frozen=True)
class CreditCalculator:
    """Computes GAGPO's and GRPO's credit of saved episodes.

    penalty: penalty of an invalid turn by environment, ``""`` in a run of one.
    success_only: environments whose training reward is success only.
    """

    gagpo: Gagpo = field(default_factory=Gagpo)
    penalty: Mapping[str, float] = field(default_factory=dict)
    success_only: Collection[str] = ()

    def __call__(self, episodes: Sequence[EpisodeRecord]) -> list[EpisodeCredit]:
        turns = columns(episodes, self.gagpo.state_key, self.penalty)
        turns = turns.with_success_reward([(episode.environment or "") in self.success_only for episode in episodes])
        credits: dict[str, CreditSettings] = {"gagpo": self.gagpo, "grpo": Grpo()}
        rows = {name: advantages(turns, credit).advantage_N for name, credit in credits.items()}
        value_N = Gagpo(gamma=self.gagpo.gamma).value(turns)
        state_N = turns.states()
        episode_credits = []
        start = 0
        for episode in episodes:
            span = slice(start, start + len(episode.turns))
            episode_advantages = {name: row[span].tolist() for name, row in rows.items()}
            episode_credits.append(EpisodeCredit(episode_advantages, value_N[span].tolist(), state_N[span].tolist()))
            start += len(episode.turns)
        return episode_credits


def credit_of_run(folder: Path) -> CreditCalculator:
    """Credit with the run's own options if it uses GAGPO; nothing that the run names is imported."""
    try:
        settings = RunFolder.open(folder).stored_settings()
    except SettingsError:
        return CreditCalculator()
    credit = settings.algorithm.credit
    return CreditCalculator(
        credit if isinstance(credit, Gagpo) else Gagpo(),
        {env.name: settings.invalid_action_penalty for env in settings.all_environments},
        {env.name for env in settings.all_environments if settings.reward == "success"},
    )


def columns(episodes: Sequence[EpisodeRecord], key: str, penalty: Mapping[str, float]) -> Turns:
    """Saved episodes as columns for credit; environments without states use observations as states."""
    pairs = [(episode.environment or "", turn) for episode in episodes for turn in episode.turns]
    stateless = {env for env, turn in pairs if turn.state is None}
    keyed = {env for env, _ in pairs if key in ("auto", "state")} - stateless
    return Turns.of(
        reward_N=np.array([turn.reward for _, turn in pairs], np.float64),
        episode_N=np.repeat(np.arange(len(episodes)), [len(episode.turns) for episode in episodes]),
        group_E=intern((episode.group, episode.task) for episode in episodes),
        state_N=intern((env, turn.state if env in keyed else turn.observation) for env, turn in pairs),
        penalty_N=np.array([0.0 if turn.valid else penalty.get(env, 0.0) for env, turn in pairs]),
        tokens_N=np.ones(len(pairs), np.int64),
        truncated_E=np.array([episode.outcome == "truncated" for episode in episodes], np.bool_),
        success_E=np.array([episode.won for episode in episodes], np.bool_),
        env_E=intern(episode.environment for episode in episodes) if len({env for env, _ in pairs}) > 1 else None,
    )
