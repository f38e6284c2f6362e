"""The recipe of a stage: a file of run settings, and what ``recipes.yaml`` adds to their section ``sft``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from gagpo.base.core_schema import read_mapping
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.envs.base import Kwargs
from gagpo.settings import RunSettings, load
from gagpo.sft.demonstrations import sft_of
from gagpo.sft.small_model import ModelShape

FOLDER = Path(__file__).parent


class Mixture(Options):
    """A share of the demonstrations, played with ``kwargs`` in place of the environment's own.

    renamed: whether things get other names (:mod:`benchmarks.starters.renaming`).
    """

    share: float = Field(gt=0)
    kwargs: Kwargs = Field({})
    renamed: bool = Field(False)


class Extras(Options):
    """What a recipe adds to a section ``sft``."""

    corrected: float = Field(
        0.0, ge=0, le=1, description="share of episodes played by the base, corrected by the expert"
    )
    takeover: float = Field(0.15, ge=0, le=1, description="probability that the expert takes over after a valid turn")
    takeover_refused: float = Field(0.35, ge=0, le=1, description="the same after a turn without effect")
    takeover_repeated: float | None = Field(
        None, ge=0, le=1, description="the same after a valid move made before in the episode; as takeover by default"
    )
    takeover_revisited: float | None = Field(
        None,
        ge=0,
        le=1,
        description="the same after a walk to a known receptacle while a listed one was never looked into",
    )
    read_strays: bool = Field(True, description="stray moves are predicted like observations; false: not at all")
    stubborn: float = Field(
        0.0, ge=0, le=1, description="probability that a slip without effect is followed by another"
    )
    lexicon: bool = Field(False, description="train the tokenizer on all names of ALFWorld")
    decay: float | None = Field(None, gt=0, le=1, description="share of the steps in which a constant rate falls to 0")
    shape: dict[str, int] = Field({}, description="heads, key_value_heads, feed_forward and context of a new model")
    mixtures: list[Mixture] = Field([])
    pages: bool = Field(False, description="draw the demonstrations as in web_pages.py instead of playing")


@dataclass(frozen=True)
class Variant:
    """A variant of the environment.

    kwargs: the environment's arguments.
    count: demonstrations to play in it.
    renamed: whether things get other names.
    """

    kwargs: Kwargs
    count: int
    renamed: bool


@dataclass(frozen=True)
class Recipe:
    """A stage.

    settings: of the run; ``sft`` is set.
    extras: of this stage.
    """

    settings: RunSettings
    extras: Extras

    @property
    def variants(self) -> list[Variant]:
        """The variants of the environment that demonstrations are played in."""
        shared_kwargs = self.settings.only_environment.environment.kwargs
        mixtures = self.extras.mixtures or [Mixture(share=1.0)]
        sft = sft_of(self.settings)
        total_share = sum(mixture.share for mixture in mixtures)
        return [
            Variant(shared_kwargs | mixture.kwargs, round(mixture.share / total_share * sft.episodes), mixture.renamed)
            for mixture in mixtures
        ]

    @property
    def shape(self) -> ModelShape:
        """The shape of a new model."""
        model = sft_of(self.settings).model
        sizes = {"layers": model.num_layers, "width": model.hidden_size, "vocabulary": model.vocab_size}
        chosen_sizes = {name: size for name, size in sizes.items() if size is not None}
        options = {"numbers": model.numbers, "marks": tuple(model.marks)}
        return ModelShape(**{**chosen_sizes, **options, **self.extras.shape})

    def rate(self, step: int) -> float:
        """The learning rate of a step with ``decay``: it rises, stays, and falls linearly at the end."""
        sft = sft_of(self.settings)
        steps = sft.steps or 1
        risen = min(1.0, (step + 1) / min(100, max(1, steps // 20)))
        return (sft.learning_rate or 0.0) * min(risen, (steps - step) / max(1.0, (self.extras.decay or 1.0) * steps))


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a stage's file; one without an entry in ``recipes.yaml`` adds nothing.

    Raises:
        InvalidArgument: the recipe cannot be played.
    """
    settings = load(path, overrides)
    known = read_mapping(FOLDER / "recipes.yaml")
    extras = Extras.model_validate(known.get(path.stem, {}))
    if settings.sft is None:
        raise InvalidArgument("has no section 'sft'", key="sft", where=path)
    if extras.corrected and settings.sft.base_model is None:
        raise InvalidArgument(
            "corrected episodes are played by sft.base_model, which is not set", key="sft.base_model", where=path
        )
    if extras.corrected + (settings.sft.mistake_rate or 0.0) > 1:
        raise InvalidArgument(
            "corrected and sft.mistake_rate are shares of one whole", key="sft.mistake_rate", where=path
        )
    unset = {"optimizer": "muon", "learning_rate": 4e-3, "observations": 0.3}  # what the stages were made with
    added = {key: value for key, value in unset.items() if getattr(settings.sft, key) is None}
    recipe = Recipe(settings.model_copy(update={"sft": settings.sft.model_copy(update=added)}), extras)
    if any(variant.renamed and variant.kwargs.get("texts", "template") != "template" for variant in recipe.variants):
        raise InvalidArgument("renamed things need texts: template, whose tasks name what is seen", where=path)
    return recipe
