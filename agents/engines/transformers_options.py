"""The options of the engine ``transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from gagpo.agents.engines.options import EngineInputs, EngineOptions

if TYPE_CHECKING:
    from gagpo.agents.engines.base import Engine


class TransformersOptions(EngineOptions):
    """Options of the engine ``transformers``, which samples in the trainer's process."""

    same_numerics: ClassVar[bool] = True

    draft_tokens: int = Field(
        0,
        ge=0,
        le=64,
        description="maximum tokens that are guessed from the episode and read in one pass; changes only rounding and "
        "speed. Without effect on a GPU and outside the flat path",
    )

    @property
    def equal_logprobs(self) -> bool:
        """Only without drafts: sums round differently with the shape of a forward pass."""
        return self.draft_tokens == 0

    def build(self, inputs: EngineInputs) -> Engine:
        """The engine for the model's family."""
        from gagpo.agents.engines.general import transformers_engine

        return transformers_engine(
            inputs.model,
            inputs.tokenizer,
            inputs.max_length or self.max_length,
            dtype=inputs.dtype,
            own_weights=inputs.own_weights,
            draft_tokens=self.draft_tokens,
        )
