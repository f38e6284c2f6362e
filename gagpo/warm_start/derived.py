"""What of a run's settings follows from its world: who demonstrates, the model's shape, lengths and rates.

Nothing that a user has set is changed. What was derived lies beside the model, and a run from that
model begins with it (:mod:`gagpo.settings.derived`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gagpo.agents.episodes import Episode
from gagpo.agents.setup import tasks_of
from gagpo.envs.base import TextEnv
from gagpo.settings import RunSettings
from gagpo.settings.derived import Derived, Value, open_to
from gagpo.warm_start.players import has_expert, wandering

HASTY = 0.5  # share of the episodes by the hasty player of a world that has one
ROOM = 1.5  # an answer may become so much longer than the longest one seen
RATE, AT = 2e-4, 1e6  # of reinforcement, for a model of so many parameters; larger ones take smaller steps
COVERED = 0.995  # share of all words that the vocabulary is made for
_WORD = re.compile(r"\w+|[^\w\s]+")


def players_of(settings: RunSettings, world: TextEnv) -> Derived:
    """Who demonstrates, so that something is left to learn: as far as that is open, and only without ``steps``."""
    warm = settings.warm_start
    assert warm is not None
    if warm.steps is not None:
        return {}
    found: Derived = {}
    taught = warm.teacher is not None or warm.corrected > 0
    if warm.player is None and not taught and not has_expert(world):
        found["warm_start.player"] = "random"
    elif warm.player != "random" and not taught and not {"hasty", "wander"} & warm.model_fields_set:
        if getattr(world, "has_hasty", False):
            found["warm_start.hasty"] = HASTY
        else:
            tasks = tasks_of(world, settings.only_world.environment.split).require()
            found["warm_start.wander"] = wandering(
                settings, settings.only_world.environment.kwargs, tasks.ids, None
            ).wander
    if "batch" not in warm.model_fields_set:
        found["warm_start.batch"] = 16
    return found


def vocabulary_of(settings: RunSettings, texts: Sequence[str]) -> Derived:
    """Enough tokens for the words that make up nearly all of ``texts``, and for the pieces that lead to them."""
    if not _measured(settings):
        return {}
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    covered, words = 0, 0
    for _, count in counts.most_common():  # the most frequent first, until nearly everything is covered
        if covered >= COVERED * counts.total():
            break
        covered, words = covered + count, words + 1
    return {"warm_start.model.vocabulary": min(8192, max(384, _multiple(320 + 2 * words)))}


def shape_of(settings: RunSettings, vocabulary: int, longest: int) -> Derived:
    """Layers and widths for a world of so many tokens whose longest demonstration has ``longest``.

    Two layers can look something up; longer texts and richer languages get more. No width derived is above 192, but for
    what a set number of heads asks for.
    """
    if settings.warm_start is None or not _measured(settings):
        return {}
    small = settings.warm_start.model
    few = vocabulary <= 512 and longest <= 256
    width, heads = 128 if vocabulary <= 1024 else 192, small.heads
    if not open_to(settings, "warm_start.model.width"):
        width = small.width
    elif not open_to(settings, "warm_start.model.heads"):
        width = _multiple(width, heads)
    if open_to(settings, "warm_start.model.heads"):  # of 32 numbers each, or the next number of heads that divides
        shared = small.key_value_heads
        heads = next((n for n in range(width // 32, 0, -1) if width % n == 0 and n % shared == 0), shared)
    shape = {"layers": 2 if few else 3 if longest <= 1024 else 4, "width": width, "heads": heads}
    return {f"warm_start.model.{name}": value for name, value in {**shape, "feed_forward": 3 * width}.items()}


@dataclass
class Lengths:
    """The longest of everything in demonstrations with token ids: answer, first prompt, what a turn reads, episode."""

    answer: int = 1
    first: int = 1
    read: int = 0
    longest: int = 1

    def add(self, episode: Episode) -> None:
        """Look at one more episode."""
        turns = episode.turns
        self.first = max(self.first, len(turns[0].prompt_ids))
        for turn, later in itertools.pairwise(turns):
            self.read = max(self.read, len(later.prompt_ids) - len(turn.prompt_ids) - len(turn.response_ids))
        for turn in turns:
            self.answer = max(self.answer, len(turn.response_ids))
            self.longest = max(self.longest, len(turn.prompt_ids) + len(turn.response_ids))

    def derived(self, settings: RunSettings, world: TextEnv) -> Derived:
        """Most tokens of an answer, and of an episode: as many turns as the world allows, each as long as any seen."""
        answer = math.ceil(ROOM * self.answer)
        found: Derived = {"rollout.max_tokens": answer}
        if _measured(settings):
            said = answer if open_to(settings, "rollout.max_tokens") else settings.rollout.max_tokens
            whole = self.first + int(getattr(world, "max_turns", 50)) * (self.read + said) + said
            found["warm_start.model.context"] = min(16384, max(1024, self.longest + said, _multiple(whole)))
        return found


def rate_of(parameters: int) -> Derived:
    """The learning rate of reinforcement for a model of so many parameters that was made from nothing."""
    return {"optimizer.learning_rate": float(f"{RATE * (AT / parameters) ** 0.25:.1e}")}


def words(derived: Mapping[str, Value]) -> str:
    """What was derived, in one line."""
    return "derived from the world: " + ", ".join(f"{key}={value}" for key, value in derived.items())


def _measured(settings: RunSettings) -> bool:
    return settings.warm_start is not None and settings.warm_start.steps is None


def _multiple(count: int, of: int = 64) -> int:
    return -(-count // of) * of
