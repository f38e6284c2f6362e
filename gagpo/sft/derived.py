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

from gagpo.data import Episode
from gagpo.envs.base import TextEnv
from gagpo.settings import RunSettings
from gagpo.settings.derived import Value, is_set
from gagpo.sft.demonstrations import sft_of
from gagpo.sft.small_model import ModelShape, shape_for

HEADROOM = 1.5  # longest response in RL, relative to the longest demonstrated one
RL_RATE = 2e-4  # learning rate of RL for a model of RL_PARAMETERS; larger models take smaller steps
RL_PARAMETERS = 1e6
NEW_MODEL_RATE = 4e-3  # learning rates of SFT: for a new model,
PRETRAINED_RATE = 2e-4  # for all weights of a pretrained model of PRETRAINED_PARAMETERS,
ADAPTER_RATE = 1e-3  # and for an adapter of one; larger models take smaller steps
PRETRAINED_PARAMETERS = 1.35e8
COVERED_WORDS = 0.995  # fraction of all words that are in the vocabulary
POSITIONS = "max_position_embeddings"
"""In what was derived: the context of a new model, which no key sets."""
_WORD = re.compile(r"\w+|[^\w\s]+")


def vocabulary_of(texts: Sequence[str]) -> int:
    """A vocabulary size for nearly all words of ``texts`` and the pieces that they are merged from."""
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    num_covered = 0
    num_words = 0
    for _, count in counts.most_common():
        if num_covered >= COVERED_WORDS * counts.total():
            break
        num_covered += count
        num_words += 1
    return min(8192, max(384, _multiple(320 + 2 * num_words)))


@dataclass
class TokenLengths:
    """The greatest lengths in demonstrations, in tokens.

    demonstrated_response: of a response.
    first_prompt: of an episode's first prompt.
    added_prompt: of what a later turn adds to the prompt, without the previous response.
    sequence: of a prompt with its response.
    """

    demonstrated_response: int = 1
    first_prompt: int = 1
    added_prompt: int = 0
    sequence: int = 1

    def add(self, episode: Episode) -> None:
        turns = episode.turns
        self.first_prompt = max(self.first_prompt, len(turns[0].prompt_ids))
        for turn, following in itertools.pairwise(turns):
            added = len(following.prompt_ids) - len(turn.prompt_ids) - len(turn.response_ids)
            self.added_prompt = max(self.added_prompt, added)
        for turn in turns:
            self.demonstrated_response = max(self.demonstrated_response, len(turn.response_ids))
            self.sequence = max(self.sequence, len(turn.prompt_ids) + len(turn.response_ids))

    @property
    def response(self) -> int:
        """Maximum tokens of a response in RL."""
        return math.ceil(HEADROOM * self.demonstrated_response)

    def context(self, settings: RunSettings, env: TextEnv) -> int:
        """Maximum tokens of an episode: as many turns as the environment allows, each of the maximum length."""
        response = settings.rollout.max_tokens if is_set(settings, "rollout.max_tokens") else self.response
        max_turns = int(getattr(env, "max_turns", 50))
        episode = self.first_prompt + max_turns * (self.added_prompt + response) + response
        return min(16384, max(1024, self.sequence + response, _multiple(episode)))


def derived_shape(settings: RunSettings, vocabulary: int, lengths: TokenLengths, env: TextEnv) -> ModelShape:
    """The shape of a new model; longer texts and larger vocabularies get more than two layers."""
    if vocabulary <= 512 and lengths.sequence <= 256:
        layers = 2
    elif lengths.sequence <= 1024:
        layers = 3
    else:
        layers = 4
    return shape_for(
        sft_of(settings).model,
        layers=layers,
        width=128 if vocabulary <= 1024 else 192,
        vocabulary=vocabulary,
        context=lengths.context(settings, env),
    )


def rate_of(parameters: int) -> float:
    """The learning rate of RL for a model of so many parameters."""
    return float(f"{RL_RATE * (RL_PARAMETERS / parameters) ** 0.25:.1e}")


def resolved(settings: RunSettings, parameters: int) -> RunSettings:
    """``settings`` with the optimiser, the learning rate and the weight of observations that ``sft`` does not set.

    parameters: of the model.
    """
    sft = sft_of(settings)
    if sft.base_model is None:
        defaults: dict[str, object] = {"optimizer": "muon", "learning_rate": NEW_MODEL_RATE, "observations": 0.3}
    else:
        rate = ADAPTER_RATE if sft.lora else PRETRAINED_RATE
        rate *= (PRETRAINED_PARAMETERS / parameters) ** 0.5
        defaults = {"optimizer": "adamw", "learning_rate": float(f"{rate:.1e}"), "observations": 0.0}
    unset = {name: value for name, value in defaults.items() if getattr(sft, name) is None}
    return settings.model_copy(update={"sft": sft.model_copy(update=unset)})


def words(derived: Mapping[str, Value]) -> str:
    """What was derived, in one line: the keys as they are typed, then what has no key."""
    text = "derived: " + ", ".join(f"{key}={value}" for key, value in derived.items() if key != POSITIONS)
    return text + (f"; the model reads at most {derived[POSITIONS]} tokens" if POSITIONS in derived else "")


def _multiple(count: int, of: int = 64) -> int:
    return -(-count // of) * of
