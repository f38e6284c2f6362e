"""Settings of supervised fine-tuning (SFT): the demonstrations, the training and the shape of a new model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options


class SftModelSettings(Options):
    """Shape of a new model. Sizes that are not set are derived from the texts of the environment."""

    layers: int | None = Field(None, ge=1, description="transformer blocks")
    width: int | None = Field(
        None, ge=32, multiple_of=32, description="size of the hidden states; one attention head per 32"
    )
    vocabulary: int | None = Field(None, ge=300, description="most tokens of the tokenizer")
    numbers: Literal["words", "digits", "names"] = Field(
        "words",
        description="tokens of numbers: like words, one per digit, or one with the name before (mug 1)",
    )
    marks: list[str] = Field([], description="texts that are one token each, such as ' [SEP] '")

    @model_validator(mode="after")
    def _marks_have_letters(self) -> SftModelSettings:
        if "" in self.marks:
            raise InvalidArgument("marks: a mark needs at least one character; remove the empty one")
        return self


class SftSettings(Options):
    """Supervised fine-tuning on demonstrations; `gagpo sft` writes the model to the folder that ``model`` names.

    Demonstrations come from the environment's expert. Where there is none, they are the random episodes with the
    highest reward.
    """

    base: str | None = Field(None, description="model to start from, with its tokenizer; absent: a new small model")
    episodes: int = Field(3000, ge=1, description="demonstrations")
    noise: float = Field(
        0.1, ge=0, le=1, description="share of the expert's moves that are replaced and not imitated; shows recovery"
    )
    mistakes: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of bad behaviour that is imitated too, so that RL has something to learn: episodes by the "
        "environment's hasty player, or random moves where it has none; absent: derived",
    )
    steps: int | None = Field(
        None, ge=1, description="optimizer steps; absent: until the model plays well enough on 16 training tasks"
    )
    batch: int = Field(16, ge=1, description="episodes of one step")
    learning_rate: float = Field(4e-3, gt=0, le=10, description="the highest rate")
    observations: float = Field(0.3, ge=0, description="weight of the loss on observations, relative to responses")
    seed: int = Field(1, description="of model, demonstrations and order")
    model: SftModelSettings = SftModelSettings()
