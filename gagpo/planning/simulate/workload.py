"""What is to be done: how many turns episodes have, and how many tokens those read and sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gagpo.planning.lengths import Guess, most_turns, row_tokens
from gagpo.settings import RunSettings


@dataclass(frozen=True)
class TurnLengths:
    """Tokens of a turn. read: new ones of the prompt; context: all of the prompt; response: sampled."""

    read: int
    context: int
    response: int


@dataclass(frozen=True)
class Workload:
    """Episodes to draw from, each a list of turns. windowed: every turn is a row of its own when it is trained on."""

    episodes: Sequence[Sequence[TurnLengths]]
    windowed: bool
    source: str

    def draw(self, rng: np.random.Generator) -> Sequence[TurnLengths]:
        """One of the episodes, all of them equally likely."""
        return self.episodes[int(rng.integers(len(self.episodes)))]

    def rows(self, episode: Sequence[TurnLengths]) -> list[int]:
        """Tokens of the rows that an episode is trained on as."""
        if self.windowed:
            return [turn.context + turn.response for turn in episode]
        return [episode[-1].context + episode[-1].response] if episode else []

    @property
    def mean_turns(self) -> float:
        return float(np.mean([len(episode) for episode in self.episodes]))

    @property
    def mean_response(self) -> float:
        return float(np.mean([turn.response for episode in self.episodes for turn in episode]))


def guessed(settings: RunSettings, guess: Guess, count: int = 512, seed: int = 0, context: int = 32768) -> Workload:
    """Episodes as :mod:`gagpo.planning.lengths` guesses them, with a spread that is stated and not measured.

    Responses are geometric around the guessed mean, cut at the limit. Turns are uniform between 1 and twice the guessed
    mean less one, cut at the most: agents that succeed early stop early.
    """
    rng = np.random.default_rng(seed)
    limit, most = settings.rollout.max_tokens, most_turns(settings)
    turns, mean_response = guess.usual(settings)
    windowed = settings.context.history != "full"
    episodes = []
    for _ in range(count):
        # With a window every turn reads its prompt anew; else a prompt grows by what was sampled and what came back.
        length = min(most, int(rng.integers(1, max(2, round(2 * turns)))))
        responses = np.minimum(rng.geometric(1 / mean_response, length), limit)
        made, held = [], 0
        for number, response in enumerate(responses.tolist(), 1):
            if windowed:
                prompt = row_tokens(settings, guess.prompt, number, mean_response, context + limit) - limit
                prompt = max(1, min(prompt, context))
                made.append(TurnLengths(prompt, prompt, response))
            else:
                made.append(TurnLengths(guess.prompt, held + guess.prompt, response))
                held += guess.prompt + response
        episodes.append(made)
    return Workload(episodes, windowed, "guessed: uniform turns, geometric responses; not measured")
