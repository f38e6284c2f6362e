"""Settings of supervised fine-tuning (SFT): the demonstrations, the training and the shape of a new model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.base.row_files import checked_columns


class SftModelSettings(Options):
    """Shape of a new model. Sizes are derived from demonstrations unless they are set."""

    num_layers: int | None = Field(None, ge=1, description="transformer blocks")
    hidden_size: int | None = Field(
        None, ge=32, multiple_of=32, description="size of the hidden states; one attention head per 32"
    )
    vocab_size: int | None = Field(None, ge=300, description="maximum number of tokens of the tokenizer")
    numbers: Literal["words", "digits", "names", "apart"] = Field(
        "words",
        description="tokens of numbers: like words, one per digit, or one with the preceding name (mug 1); apart: "
        "words and spaces are separate, so that a word has the same tokens wherever it stands",
    )
    marks: list[str] = Field([], description="texts that are one token each, such as ' [SEP] '")

    @model_validator(mode="after")
    def _require_letters(self) -> SftModelSettings:
        if "" in self.marks:
            raise InvalidArgument("marks: remove the empty text", key="marks")
        return self


DATA_FIELDS = ("messages", "prompt", "completion", "system", "tools")
"""What a column of a file of demonstrations can hold."""


def _data_file(value: str | dict[str, Any]) -> str | dict[str, Any]:
    """Check the path and the columns of a file of demonstrations."""
    if isinstance(value, str):
        return value
    unknown = next((key for key in value if key not in ("path", "columns")), None)
    if unknown is not None:
        raise InvalidArgument(f"unknown key {unknown!r:.80}", advice="choose path or columns")
    if not isinstance(value.get("path"), str):
        raise InvalidArgument(f"path must be the name of a file (got {value.get('path')!r:.80})", key="path")
    return {**value, "columns": checked_columns(value.get("columns"), DATA_FIELDS)}


class SftSettings(Options):
    """Supervised fine-tuning on demonstrations: the expert's, those of a file, or the best random episodes."""

    base_model: str | None = Field(
        None, description="model to start from, with its tokenizer; absent: a new small model"
    )
    data: Annotated[str | dict[str, Any], AfterValidator(_data_file)] | None = Field(
        None,
        description="file of demonstrations: episodes, of which the successful ones are imitated, or conversations "
        "(JSONL, CSV or Parquet); {path: FILE, columns: {prompt: NAME, completion: NAME}} names its columns; absent: "
        "run the environment's expert",
    )
    episodes: int = Field(3000, ge=1, description="maximum number of demonstrations")
    noise: float = Field(
        0.1,
        ge=0,
        le=1,
        description="fraction of the expert's actions that are random and not imitated, to show recovery",
    )
    mistake_rate: float | None = Field(
        None,
        ge=0,
        le=1,
        description="fraction of mistakes that are imitated, so that RL has something to learn: episodes by the "
        "environment's imperfect expert, or random actions if it has none; absent: derived",
    )
    steps: int | None = Field(
        None, ge=1, description="optimizer steps; absent: until the model is good enough on 16 training tasks"
    )
    every: int | None = Field(
        None, ge=1, description="steps between evaluations on 16 training tasks; the best model is kept"
    )
    batch: int = Field(16, ge=1, description="episodes of one step")
    optimizer: Literal["adamw", "muon"] | None = Field(
        None, description="muon: for the matrices between layers; absent: adamw with a base, muon for a new model"
    )
    learning_rate: float | None = Field(None, gt=0, le=10, description="the highest rate; absent: by the model's size")
    observations: float | None = Field(
        None,
        ge=0,
        description="weight of the loss on observations, relative to responses; absent: 0 with a base, 0.3 for a new "
        "model",
    )
    lora: int | None = Field(
        None,
        ge=1,
        le=16384,
        description="rank of an adapter to train and merge; requires a base, whose own adapter of this rank is trained "
        "further; absent: all weights",
    )
    seed: int = Field(1, description="seed of the model, the demonstrations and their order")
    model: SftModelSettings = SftModelSettings()

    @property
    def data_path(self) -> Path | None:
        """The file of demonstrations."""
        if self.data is None:
            return None
        return Path(self.data if isinstance(self.data, str) else self.data["path"])

    @property
    def data_columns(self) -> dict[str, str]:
        """Fields of a conversation, each with the name of its column."""
        return {} if self.data is None or isinstance(self.data, str) else self.data["columns"]

    @model_validator(mode="after")
    def _require_consistent(self) -> SftSettings:
        if self.every is not None and self.steps is None:
            raise InvalidArgument("every: set steps too", advice="without steps, evaluations come at growing intervals")
        if self.lora is not None and self.base_model is None:
            raise InvalidArgument(
                "lora: a new model has nothing to adapt", key="lora", advice="set base, or remove lora"
            )
        return self
