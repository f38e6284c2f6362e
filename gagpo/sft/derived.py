"""Derive the size of a new model and the response length from demonstrations, and learning rates from the size.

Settings of the user take precedence. The values are saved with the model, see :mod:`gagpo.settings.derived`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gagpo.data.episodes import Episode
from gagpo.envs.base import TextEnv
from gagpo.settings import RunSettings
from gagpo.settings.derived import Value, is_set
from gagpo.sft.demonstrations import sft_of
from gagpo.sft.small_model import ModelShape, shape_for

HEADROOM = 1.5  # longest response in RL, relative to the longest demonstrated one
RATE, AT = 2e-4, 1e6  # learning rate of RL for a model of so many parameters; larger models take smaller steps
NEW, PRETRAINED, ADAPTER = 4e-3, 2e-4, 1e-3  # learning rates of SFT: of a new model, of weights and an adapter of ...
PRETRAINED_AT = 1.35e8  # ... so many parameters; larger models take smaller steps
COVERED = 0.995  # share of all words that are in the vocabulary
_WORD = re.compile(r"\w+|[^\w\s]+")


def vocabulary_of(texts: Sequence[str]) -> int:
    """A vocabulary size for nearly all words of ``texts`` and the pieces that they are merged from."""
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    covered, words = 0, 0
    for _, count in counts.most_common():
        if covered >= COVERED * counts.total():
            break
        covered, words = covered + count, words + 1
    return min(8192, max(384, _multiple(320 + 2 * words)))


@dataclass
class Lengths:
    """The greatest lengths in demonstrations, in tokens.

    answer: of a response.
    first: of an episode's first prompt.
    read: of what a later turn adds to the prompt.
    longest: of a prompt with its response.
    """

    answer: int = 1
    first: int = 1
    read: int = 0
    longest: int = 1

    def add(self, episode: Episode) -> None:
        turns = episode.turns
        self.first = max(self.first, len(turns[0].prompt_ids))
        for turn, later in itertools.pairwise(turns):
            self.read = max(self.read, len(later.prompt_ids) - len(turn.prompt_ids) - len(turn.response_ids))
        for turn in turns:
            self.answer = max(self.answer, len(turn.response_ids))
            self.longest = max(self.longest, len(turn.prompt_ids) + len(turn.response_ids))

    @property
    def response(self) -> int:
        """Most tokens of a response in RL."""
        return math.ceil(HEADROOM * self.answer)

    def context(self, settings: RunSettings, env: TextEnv) -> int:
        """Most tokens of an episode: the environment's most turns, each as long as the longest one seen."""
        response = settings.rollout.max_tokens if is_set(settings, "rollout.max_tokens") else self.response
        whole = self.first + int(getattr(env, "max_turns", 50)) * (self.read + response) + response
        return min(16384, max(1024, self.longest + response, _multiple(whole)))


def derived_shape(settings: RunSettings, vocabulary: int, lengths: Lengths, env: TextEnv) -> ModelShape:
    """The shape of a new model; longer texts and larger vocabularies get more than two layers."""
    few = vocabulary <= 512 and lengths.longest <= 256
    return shape_for(
        sft_of(settings).model,
        layers=2 if few else 3 if lengths.longest <= 1024 else 4,
        width=128 if vocabulary <= 1024 else 192,
        vocabulary=vocabulary,
        context=lengths.context(settings, env),
    )


def rate_of(parameters: int) -> float:
    """The learning rate of RL for a model of so many parameters."""
    return float(f"{RATE * (AT / parameters) ** 0.25:.1e}")


def resolved(settings: RunSettings, parameters: int) -> RunSettings:
    """``settings`` with the optimiser, the learning rate and the weight of observations that ``sft`` does not set.

    parameters: of the model.
    """
    sft = sft_of(settings)
    if sft.base_model is None:
        defaults: dict[str, object] = {"optimizer": "muon", "learning_rate": NEW, "observations": 0.3}
    else:
        rate = (ADAPTER if sft.lora else PRETRAINED) * (PRETRAINED_AT / parameters) ** 0.5
        defaults = {"optimizer": "adamw", "learning_rate": float(f"{rate:.1e}"), "observations": 0.0}
    unset = {name: value for name, value in defaults.items() if getattr(sft, name) is None}
    return settings.model_copy(update={"sft": sft.model_copy(update=unset)})


def words(derived: Mapping[str, Value]) -> str:
    """What was derived, in one line."""
    return "derived: " + ", ".join(f"{key}={value}" for key, value in derived.items())


def _multiple(count: int, of: int = 64) -> int:
    return -(-count // of) * of
