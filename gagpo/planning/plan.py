"""Predict the memory, tokens, hours and disk of a run from its settings and the model's config.

Sizes are in bytes; a GB is 10^9 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gagpo.agents.preview import make_with_expert, preview
from gagpo.agents.setup import make_context, tasks_of
from gagpo.base.errors import GagpoError, InvalidArgument, first_line
from gagpo.model import pretrained
from gagpo.model.loading import ModelError, load_tokenizer
from gagpo.model.shape import Shape, sizes
from gagpo.planning.known_shapes import known_config
from gagpo.planning.memory import (
    ITERATION,
    MOMENTS,
    PHASES,
    Part,
    adapter,
    engine_parts,
    file_parts,
    peak,
    sharded_note,
    state_parts,
    update_parts,
)
from gagpo.planning.rates import Rates
from gagpo.planning.traffic import Cluster, Traffic, experience_bytes, passes_of, traffic_of
from gagpo.planning.update_time import UpdateTime, Workload, time_of
from gagpo.settings import EnvironmentSettings, RunEnvironment, RunSettings
from gagpo.settings.derived import model_or_base
from gagpo.settings.machine import with_machine_formats
from gagpo.sft.small_model import config, shape_for

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


PROGRAM = 6e8  # bytes of Python and its libraries
MEASURED = ("mean_turns", "response_tokens", "tokens_per_second")
GUESSED_TURNS, GUESSED_RESPONSE = 0.5, 0.25  # typical turns and response tokens, as fractions of their limits


@dataclass(frozen=True)
class Guess:
    """Lengths and speed, which the settings do not determine.

    prompt: tokens that a turn adds to the prompt.
    turns: of a typical episode; None: half of the limit.
    response: tokens of a typical response; None: a quarter of the limit.
    tokens_per_second: response tokens per second of a whole iteration; None if unknown.
    """

    prompt: int = 300
    turns: float | None = None
    response: float | None = None
    tokens_per_second: float | None = None

    def usual(self, settings: RunSettings) -> tuple[float, float]:
        """Turns of a typical episode and tokens of a typical response."""
        turns = self.turns or max(1.0, GUESSED_TURNS * most_turns(settings))
        return turns, self.response or max(1.0, GUESSED_RESPONSE * settings.longest_response)


DEFAULT_GUESS = Guess()


def most_turns(settings: RunSettings) -> int:
    """The largest turn limit of all environments, from their arguments or defaults; builds no environment."""
    return max(_most_turns(env.environment) for env in settings.all_environments)


def _most_turns(environment: EnvironmentSettings) -> int:
    from gagpo.envs.lookup import turn_limit

    return turn_limit(environment.id, environment.kwargs) or 50


def row_tokens(settings: RunSettings, prompt: int, turns: float, response: float, context: int) -> int:
    """Tokens of a typical row: a turn with its window of earlier ones, or the whole conversation."""
    history = settings.context.history
    in_row = turns if history == "full" else min(turns, 1 + int(history))
    return int(min(context, prompt * in_row + response * (in_row - 1) + settings.longest_response))


def guess_of(settings: RunSettings) -> Guess:
    """Tokens of a turn in an expert's episode of each environment; the default guess if none can be run here."""
    model = pretrained.folder_of(pretrained.base_of(model_or_base(settings)))
    if Path(model).is_dir():
        with suppress(GagpoError):  # the tokenizer or the environment's data is missing
            tokenizer = load_tokenizer(model)
            return Guess(prompt=max(_turn_tokens(env, tokenizer) for env in settings.all_environments))
    return DEFAULT_GUESS


def _turn_tokens(env: RunEnvironment, tokenizer: Any) -> int:
    with closing(make_with_expert(env.environment.id, env.environment.kwargs)) as environment:
        context = make_context(tokenizer, environment, **dict(env.context))
        task = tasks_of(environment, env.environment.split).require().ids[0]
        *before, last = [turn for turn, _ in preview(environment, context, task)]
    window = len(before) if context.history == "full" else min(len(before), int(context.history))
    responses = sum(len(turn.response_ids) for turn in before[len(before) - window :])
    return -(-(len(last.prompt_ids) - responses) // (window + 1))


def measured_guess(rows: Sequence[Mapping[str, float]]) -> Guess:
    """The mean of a run's metrics over its last ten iterations."""
    latest = rows[-10:]
    if not latest:
        raise InvalidArgument("the run has no finished iteration")
    turns, response, speed = (sum(float(row[name]) for row in latest) / len(latest) for name in MEASURED)
    return Guess(turns=turns, response=response, tokens_per_second=speed)


@dataclass(frozen=True)
class MemoryPlan:
    """The prediction for a run.

    shape: sizes of the model.
    parts: of the memory.
    tokens: of an iteration: sampled (``guess`` and upper bound ``most``), ``trained_on``, and of one ``row``; also its
        ``turns``, and the bytes of its ``experience`` in a message.
    hours: of the whole run; None if the speed is unknown.
    disk: bytes of a ``checkpoint``, and ``most`` of all; number of checkpoints that are kept (``keep``, ``best``).
    """

    shape: Shape
    parts: list[Part]
    tokens: dict[str, float]
    hours: float | None
    disk: dict[str, float]

    def peak(self) -> tuple[float, str]:
        """Peak bytes on the device, and the phase of the peak."""
        return peak(self.parts)

    def on_host(self, processes: int = 1) -> float:
        """Peak bytes in the host memory of a machine with so many ranks of this run."""
        host_parts = [segment for segment in self.parts if segment.host]
        return max(
            sum(
                segment.bytes * (1 if segment.per_machine else processes)
                for segment in host_parts
                if phase in segment.phases
            )
            for phase in PHASES
        )

    def record(self) -> dict[str, object]:
        """Plain values for JSON."""
        highest, phase = self.peak()
        return {**asdict(self), "peak": highest, "peak_phase": phase}


def shape_of(settings: RunSettings) -> Shape:
    """Sizes from the model's config.json, without downloads; of a model that SFT will create, from section ``sft``.

    Raises:
        ModelError: for a folder without config, or a hub name that is not cached.
    """
    return sizes(_config(settings), settings.trust_remote_code)


def _config(settings: RunSettings) -> PreTrainedConfig:
    from transformers import AutoConfig

    model = pretrained.base_of(model_or_base(settings))  # whose config an adapter has
    if pretrained.is_missing(model):
        raise ModelError(
            f"{model} is not downloaded, and a plan downloads nothing", advice=f"run `gagpo models get {model}`"
        )
    name = pretrained.folder_of(model)
    folder = Path(name)
    if not folder.exists() and settings.sft is not None and settings.sft.base_model is None:
        shape = shape_for(settings.sft.model)
        return config(shape, shape.vocabulary)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ModelError(f"model folder {name} has no config.json", advice="is it a Hugging Face model folder?")
    try:
        revision = settings.revision or "main"
        model_config: PreTrainedConfig = AutoConfig.from_pretrained(
            name, local_files_only=True, revision=revision, trust_remote_code=settings.trust_remote_code
        )
        return model_config
    except (OSError, ValueError, KeyError) as error:
        packaged_config = known_config(name)
        if packaged_config is not None:
            return packaged_config
        if folder.exists() or name.startswith(os.sep):
            raise ModelError(f"the config of {name} cannot be read: {first_line(error)}") from None
        raise ModelError(
            f"the config of {name!r} is neither a folder nor cached, and a plan downloads nothing",
            advice=(f"run `hf download {name} config.json`, or name a model folder"),
        ) from None


def plan(
    settings: RunSettings,
    guess: Guess = DEFAULT_GUESS,
    shape: Shape | None = None,
    gigabytes: float | None = None,
    machines: int = 1,
) -> MemoryPlan:
    """Predict a run.

    gigabytes: memory of the GPU, of which vLLM allocates a fraction.
    machines: over which the processes are spread evenly.
    """
    shape = shape or shape_of(settings)
    settings = with_machine_formats(settings, shape.width)
    rollout = settings.rollout
    usual_turns, usual_response = guess.usual(settings)
    row = row_tokens(settings, guess.prompt, usual_turns, usual_response, shape.context)
    episodes = rollout.tasks * rollout.group_size
    dynamic = settings.algorithm.controllers.dynamic_sampling
    rounds = dynamic.rounds if dynamic else 1
    sampled = episodes * usual_turns * usual_response
    tokens = {
        "most": float(episodes * rounds * most_turns(settings) * rollout.max_tokens),
        "guess": sampled,
        "trained_on": episodes * row * (1.0 if settings.context.history == "full" else usual_turns),
        "row": float(row),
    }
    tokens["turns"] = episodes * usual_turns
    tokens["experience"] = _experience(settings, guess, tokens)
    rate = guess.tokens_per_second
    hours = sampled * settings.training.iterations / rate / 3600 if rate else None
    trained = adapter(settings, shape) or shape.parameters
    states = (4 + MOMENTS + 4 * settings.training.ema) * trained
    keep = settings.training.max_checkpoints
    best = float(settings.training.best_metric is not None)
    disk_total = states * (keep + 1 + best)  # a new checkpoint is complete before the oldest is removed
    disk = {"checkpoint": float(states), "keep": float(keep), "best": best, "most": disk_total}
    shards = settings.processes // Cluster(machines, settings.processes // machines).replicas(settings)
    sharded = settings.model_copy(update={"processes": shards})
    segments = [
        *state_parts(sharded, shape),
        *engine_parts(settings, shape, row, gigabytes),
        *update_parts(settings, shape, row, guess.prompt, usual_turns),
        *file_parts(settings, shape),
        Part(
            "checkpoint",
            states / shards,
            ITERATION,
            "a copy, written in the background" + sharded_note(sharded),
            host=settings.device != "cpu",
        ),
        Part("program", PROGRAM, PHASES, "Python and its libraries", host=settings.device != "cpu"),
    ]
    return MemoryPlan(shape, segments, tokens, hours, disk)


def _experience(settings: RunSettings, guess: Guess, tokens: Mapping[str, float]) -> float:
    """Bytes of all episodes of an iteration in a message."""
    _, response = guess.usual(settings)
    ids = guess.prompt + response if settings.context.history == "full" else tokens["row"]
    return experience_bytes(tokens["turns"], ids, response)


@dataclass(frozen=True)
class ClusterPlan:
    """What an iteration moves over the links of a cluster, and how long it takes by stated rates."""

    traffic: Traffic
    time: UpdateTime
    rates: Rates

    def record(self) -> dict[str, object]:
        """Plain values for JSON."""
        traffic = {**asdict(self.traffic), "link": self.traffic.link, "network": self.traffic.network}
        seconds = {**asdict(self.time), "total": self.time.total, "bottleneck": self.time.bottleneck()}
        return {"traffic": traffic, "seconds": seconds, "rates": asdict(self.rates)}


def cluster_plan(settings: RunSettings, memory_plan: MemoryPlan, cluster: Cluster, rates: Rates) -> ClusterPlan:
    """Traffic and time of an iteration of ``memory_plan`` on ``cluster``, whose ranks ``settings.processes`` counts."""
    tokens = memory_plan.tokens
    passes = passes_of(settings, tokens["trained_on"])
    traffic = traffic_of(settings, memory_plan.shape, cluster, passes, tokens["experience"])
    work = Workload(tokens["guess"], tokens["trained_on"], tokens["row"])
    return ClusterPlan(traffic, time_of(settings, memory_plan.shape, rates, work, passes, traffic), rates)
