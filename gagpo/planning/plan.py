"""What a run will take, before anything is loaded: memory by part, tokens, hours and disk, from a model's config alone.

Every size is in bytes, and a GB is 10^9 of them.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.agents.model import ModelError
from gagpo.agents.shape import Shape, sizes
from gagpo.agents.starters import folder_of
from gagpo.planning.lengths import DEFAULT_GUESS, Guess, most_turns, row_tokens
from gagpo.planning.memory import Part, adapter, engine_parts, moments, peak, state_parts, update_parts
from gagpo.settings import RunSettings
from gagpo.sft.small_model import config, shape_for

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class MemoryPlan:
    """What a run takes.

    shape: sizes of the model.
    parts: of the memory.
    tokens: of an iteration: ``guess`` and at ``most`` sampled, ``trained_on`` read in training, ``row`` in a row.
    hours: of the whole run; None where the speed is unknown.
    disk: bytes of a ``checkpoint`` and at ``most`` of all, and how many are kept (``keep``, ``best``).
    """

    shape: Shape
    parts: list[Part]
    tokens: dict[str, float]
    hours: float | None
    disk: dict[str, float]

    def peak(self) -> tuple[float, str]:
        """Most bytes at a time, and the phase of the run in which that is."""
        return peak(self.parts)

    def on_host(self) -> float:
        """Bytes that a process hands over to the host's memory."""
        return sum(part.bytes for part in self.parts if part.host)

    def record(self) -> dict[str, object]:
        """Plain values."""
        most, phase = self.peak()
        return {**asdict(self), "peak": most, "peak_phase": phase}


def shape_of(settings: RunSettings) -> Shape:
    """Sizes from the model's config.json, the parameters counted on a module without storage. Nothing is downloaded.

    A model that SFT has yet to make has the shape of the section ``sft``. ModelError for a folder without config, and
    for a hub name that is not cached.
    """
    return sizes(_config(settings), settings.trust_remote_code)


def _config(settings: RunSettings) -> PreTrainedConfig:
    from transformers import AutoConfig

    name = folder_of(settings.model)
    folder = Path(name)
    if not folder.exists() and settings.sft is not None:
        shape = shape_for(settings.sft.model)
        return config(shape, shape.vocabulary)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ModelError(f"model folder {name} holds no config.json; is it a Hugging Face model folder?")
    try:
        revision = settings.revision or "main"
        found: PreTrainedConfig = AutoConfig.from_pretrained(
            name, local_files_only=True, revision=revision, trust_remote_code=settings.trust_remote_code
        )
        return found
    except (OSError, ValueError, KeyError) as error:
        if folder.exists() or name.startswith(os.sep):
            raise ModelError(
                f"the config of {name} cannot be read: {str(error).strip().splitlines()[0][:200]}"
            ) from None
        raise ModelError(
            f"the config of {name!r} is neither a folder nor cached, and a plan downloads nothing; fetch it with "
            f"`hf download {name} config.json`, or name a model folder"
        ) from None


def plan(
    settings: RunSettings, guess: Guess = DEFAULT_GUESS, shape: Shape | None = None, gigabytes: float | None = None
) -> MemoryPlan:
    """The plan of a run. gigabytes: of the GPU, of which an engine with its own memory takes a share."""
    shape = shape or shape_of(settings)
    turns = most_turns(settings)
    rollout = settings.rollout
    usual_turns, usual_response = guess.usual(settings)
    row = row_tokens(settings, guess.prompt, usual_turns, usual_response, shape.context)
    episodes = rollout.tasks * rollout.samples
    dynamic = settings.algorithm.controllers.dynamic_sampling
    rounds = dynamic.rounds if dynamic else 1
    sampled = episodes * usual_turns * usual_response
    windowed = settings.context.history != "full"
    tokens = {
        "most": float(episodes * rounds * turns * rollout.max_tokens),
        "guess": sampled,
        "trained_on": episodes * row * (usual_turns if windowed else 1.0),
        "row": float(row),
    }
    rate = guess.tokens_per_second
    hours = sampled * settings.training.iterations / rate / 3600 if rate else None
    critic = settings.algorithm.critic
    trained = adapter(settings, shape) or shape.parameters
    states = 4 * trained + moments(settings, shape, trained)[0]
    if critic is not None and critic.head == "separate":  # its file holds the frozen weights of an adapted one too
        states += 4 * shape.parameters + (states if settings.lora else states - 4 * trained)
    if settings.training.average:
        states += 4 * trained
    keep, best = settings.training.keep, float(settings.training.best is not None)
    disk = {"checkpoint": float(states), "keep": float(keep), "best": best, "most": states * (keep + 1 + best)}
    parts = [
        *state_parts(settings, shape),
        *engine_parts(settings, shape, row, gigabytes),
        *update_parts(settings, shape, row, guess.prompt, usual_turns),
    ]
    return MemoryPlan(shape, parts, tokens, hours, disk)
