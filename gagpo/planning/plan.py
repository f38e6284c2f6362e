"""What a run will take, before anything is loaded: memory by part, tokens, hours and disk, from a model's config alone.

Every size is in bytes, and a GB is 10^9 of them. The formulas of activations hold for layers of the Llama kind (two
norms, grouped attention in a fused kernel, a gated feed-forward part); other families differ by some tens of percent.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gagpo.agents.model import ModelError
from gagpo.agents.shape import Shape, sizes
from gagpo.agents.starters import folder_of
from gagpo.envs.errors import InvalidArgument
from gagpo.settings import RunSettings, parse

GB = 1e9
CONTEXT = 1.0 * GB  # what CUDA and its libraries take of a card before the first tensor
FRAGMENTS = 0.05  # share of a card that the allocator cannot hand out
VLLM_SHARE, VLLM_CPU_CACHE = 0.4, 2**30  # the vLLM engine's defaults
MEASURED = ("mean_turns", "response_tokens", "tokens_per_second")  # metrics of a run that take the place of guesses
PHASES = ("sampling", "loss", "backward", "step")
GUESSED_TURNS, GUESSED_RESPONSE = 0.5, 0.25  # share of the upper bounds that a usual episode, a usual response takes


@dataclass(frozen=True)
class Part:
    """bytes: of one part of the memory; phases: when it is there."""

    name: str
    bytes: float
    phases: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Guess:
    """What the settings cannot say. prompt: tokens that a turn adds to what is read; turns and response: of a usual
    episode; None takes half of the turns, a quarter of the response limit.
    """

    prompt: int = 300
    turns: float | None = None
    response: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """The answer. tokens: response tokens of an iteration (``most``, ``guess``) and tokens read to train on them."""

    shape: Shape
    parts: list[Part]
    tokens: dict[str, float]
    hours: float | None
    disk: dict[str, float]

    def peak(self) -> tuple[float, str]:
        """Most bytes at a time, and the phase of the run in which that is."""
        sums = {phase: sum(part.bytes for part in self.parts if phase in part.phases) for phase in PHASES}
        worst = max(PHASES, key=lambda phase: sums[phase])
        return sums[worst], worst

    def record(self) -> dict[str, Any]:
        """Plain values."""
        peak, phase = self.peak()
        return {**asdict(self), "peak": peak, "peak_phase": phase}


@dataclass(frozen=True)
class MemoryVerdict:
    """Whether a plan fits a card; mends: the overrides after which it does, [] where none are needed or none help."""

    gigabytes: float
    available: float
    needed: float
    fits: bool
    mends: list[str]
    advice: str


def shape_of(settings: RunSettings) -> Shape:
    """Sizes from the model's config.json, the parameters counted on a module without storage. Nothing is downloaded.

    A model that a warm start has yet to make has the shape of that section. ModelError for a folder without config, and
    for a hub name that is not cached.
    """
    return sizes(_config(settings), settings.trust_remote_code)


def _config(settings: RunSettings) -> Any:
    from transformers import AutoConfig, LlamaConfig

    name = folder_of(settings.model)
    folder = Path(name)
    if not folder.exists() and settings.warm_start is not None:
        small = settings.warm_start.model
        return LlamaConfig(
            vocab_size=-(-small.vocabulary // 16) * 16,
            hidden_size=small.width,
            num_hidden_layers=small.layers,
            num_attention_heads=small.heads,
            num_key_value_heads=small.key_value_heads,
            intermediate_size=small.feed_forward,
            max_position_embeddings=small.context,
            tie_word_embeddings=True,
        )
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ModelError(f"model folder {name} holds no config.json; is it a Hugging Face model folder?")
    try:
        revision = settings.revision or "main"
        return AutoConfig.from_pretrained(
            name, local_files_only=True, revision=revision, trust_remote_code=settings.trust_remote_code
        )
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
    settings: RunSettings, guess: Guess = Guess(), shape: Shape | None = None, card: float | None = None
) -> MemoryPlan:
    """The plan of a run. card: GB of the device, of which an engine with its own memory takes a share."""
    shape = shape or shape_of(settings)
    turns = most_turns(settings)
    rolling = settings.rollout
    usual_turns = guess.turns or max(1.0, GUESSED_TURNS * turns)
    usual_response = guess.response or max(1.0, GUESSED_RESPONSE * rolling.max_tokens)
    row = row_tokens(settings, guess.prompt, usual_turns, usual_response, shape.context)
    episodes = rolling.tasks * rolling.samples
    dynamic = settings.algorithm.controllers.dynamic_sampling
    rounds = dynamic.rounds if dynamic else 1
    said = episodes * usual_turns * usual_response
    windowed = settings.context.history != "full"
    tokens = {
        "most": float(episodes * rounds * turns * rolling.max_tokens),
        "guess": said,
        "trained_on": episodes * row * (usual_turns if windowed else 1.0),
        "row": float(row),
    }
    rate = guess.tokens_per_second
    hours = said * settings.training.iterations / rate / 3600 if rate else None
    critic = settings.algorithm.critic
    trained = adapter(settings, shape) or shape.parameters
    states = 4 * trained + _moments(settings, shape, trained)[0]
    if critic is not None and critic.head == "separate":  # its file holds the frozen weights of an adapted one too
        states += 4 * shape.parameters + (states if settings.lora else states - 4 * trained)
    keep, best = settings.training.keep, float(settings.training.best is not None)
    disk = {"checkpoint": float(states), "keep": float(keep), "best": best, "most": states * (keep + 1 + best)}
    parts = [
        *_states(settings, shape),
        *_engine(settings, shape, row, card),
        *_update(settings, shape, row, guess.prompt, usual_turns),
    ]
    return MemoryPlan(shape, parts, tokens, hours, disk)


def most_turns(settings: RunSettings) -> int:
    """Most turns of an episode: of the environment's arguments, else its default; the world itself is not made."""
    from gymnasium.envs.registration import load_env_creator

    from gagpo.envs.lookup import find_spec

    spec = find_spec(settings.environment.id)
    given = {**spec.kwargs, **settings.environment.kwargs}.get("max_turns")
    if given is None and spec.entry_point is not None:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        parameter = inspect.signature(creator).parameters.get("max_turns")
        given = None if parameter is None else parameter.default
    return given if isinstance(given, int) and given > 0 else 50


def row_tokens(settings: RunSettings, prompt: int, turns: float, response: float, context: int) -> int:
    """Tokens of a usual row: a turn with its window of earlier ones, or the whole conversation."""
    history = settings.context.history
    shown = turns if history == "full" else min(turns, 1 + int(history))
    return int(min(context, prompt * shown + response * (shown - 1) + settings.rollout.max_tokens))


def _states(settings: RunSettings, shape: Shape) -> list[Part]:
    extra, every = adapter(settings, shape), PHASES
    count = extra or shape.parameters
    parts = [
        Part("weights", 4 * (shape.parameters + extra), every, "float32"),
        Part("gradients", 4 * count, ("loss", "backward", "step"), "float32; freed after each step"),
        Part("optimiser", *_moments(settings, shape, count)),
    ]
    if settings.device != "cpu" and settings.optimizer.name == "adamw":
        parts.append(Part("optimiser's step", 4 * count, ("step",), "the square root of a moment, of all weights"))
    if settings.algorithm.kl.coefficient > 0 and not extra:
        size = _size(settings.engine.dtype)
        parts.append(Part("reference", size * count, every, f"{settings.engine.dtype}, for algorithm.kl"))
    critic = settings.algorithm.critic
    if critic is not None and critic.head == "separate":
        own = 4 * (shape.parameters + extra) + _moments(settings, shape, count)[0]
        parts.append(Part("critic", own, every, "weights and optimiser of its own backbone"))
        parts.append(Part("critic's gradients", 4 * count, ("loss", "backward", "step")))
    return parts


def _moments(settings: RunSettings, shape: Shape, count: int) -> tuple[float, tuple[str, ...], str]:
    """Bytes, phases and what they are of Adam's moments of ``count`` parameters."""
    if settings.optimizer.name == "adamw":
        return 8 * count, PHASES, "Adam's two moments, float32"
    embedded = 0 if settings.lora is not None else min(count, shape.vocabulary * shape.width)
    held = 8 * embedded + (2 + 8 / 256) * (count - embedded)
    note = "Adam's two moments, 8 bits; those of the embeddings float32"
    paged = settings.optimizer.name == "paged_adamw8bit"
    return held, PHASES, note + ("; they leave a full card for the host" if paged else "")


def adapter(settings: RunSettings, shape: Shape) -> int:
    """Parameters of an adapter on every linear layer but the output, 0 where the weights themselves are trained."""
    if settings.lora is None:
        return 0
    query, key = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    attention = 4 * shape.width + 2 * query + 2 * key
    return shape.layers * settings.lora.rank * (attention + 3 * shape.experts * (shape.width + shape.feed_forward))


def _engine(settings: RunSettings, shape: Shape, row: int, card: float | None) -> list[Part]:
    """Engine weights and caches are there while it samples; in the update too where it does not sleep."""
    engine, rolling = settings.engine, settings.rollout
    held = ("sampling",) if engine.sleep and not rolling.ahead else PHASES
    size = _size(engine.dtype)
    token = 2 * shape.layers * shape.key_value_heads * shape.head_size * size
    if engine.name == "vllm-server" and engine.options.get("placement") != "colocated":
        return []  # on devices of its own
    if engine.name in ("vllm", "vllm-server"):
        if settings.device == "cpu":
            cache = max(VLLM_CPU_CACHE, token * row)
            return [
                Part("engine weights", size * shape.parameters, PHASES, f"vLLM's copy, {engine.dtype}"),
                Part("KV cache", cache, PHASES, "vLLM on a CPU"),
            ]
        share = engine.memory or VLLM_SHARE
        least = size * shape.parameters + token * row
        taken = max(least, share * card * GB) if card else least
        note = f"engine.memory={share:g} of the card; weights and one response need {least / GB:.1f} GB"
        return [Part("engine weights and KV cache", taken, held, note)]
    parts = []
    if engine.dtype != "float32" or rolling.ahead:
        parts.append(Part("engine weights", size * shape.parameters, held, f"a copy in {engine.dtype}"))
    if rolling.ahead:
        parts.append(Part("weights on their way", 4 * shape.parameters, PHASES, "a copy, until the engine has them"))
    sessions = min(rolling.concurrency, rolling.tasks * rolling.samples)
    capacity = -(-(row + 1) // 128) * 128
    if settings.device != "cpu" and engine.compile == "auto":  # graphs want sizes that are rarely outgrown
        from gagpo.agents.engines.slots import SHORTEST, bucket

        sessions, capacity = bucket(sessions), bucket(row + 1, SHORTEST)
    note = f"{sessions} sessions of {capacity} tokens, {engine.dtype}"
    parts.append(Part("KV cache", token * sessions * capacity, held, note))
    sampled = sessions * shape.vocabulary * (24 + (size if size < 4 else 0))
    parts.append(Part("sampling", sampled, ("sampling",), "logits, probabilities and their sums, 24 bytes a word"))
    return parts


def _update(settings: RunSettings, shape: Shape, row: int, prompt: int, turns: float) -> list[Part]:
    training = settings.training
    half = training.precision == "bfloat16"
    tokens = max(training.microbatch_tokens, row)
    layer = tokens * layer_bytes(shape, half)
    if settings.device == "cpu" and half:
        layer += _written_scores(shape, tokens, row)
    copies = 2 * shape.parameters if half else 0
    checkpointed = training.gradient_checkpointing
    ends = 12 * tokens * shape.width  # the last norm's input, what it gives, and the rows that are kept of it
    held = shape.layers * (tokens * 4 * shape.width if checkpointed else layer) + ends
    how = "the input of every layer" if checkpointed else "6 D + 4 F + 2 A + 2 C numbers a token and layer"
    parts = [Part("activations", held, ("loss", "backward"), f"{tokens} tokens; {how}")]
    if checkpointed:
        work = layer + 4 * 2 * tokens * shape.feed_forward * shape.experts
        parts.append(Part("one layer again", work, ("backward",), "its activations, computed a second time"))
    if half:
        phases = ("loss",) if checkpointed else ("loss", "backward")
        parts.append(Part("half-precision copies", copies, phases, "of the weights, for one pass"))
    said = row - prompt * turns if settings.context.history == "full" else settings.rollout.max_tokens
    share = min(1.0, max(said, settings.rollout.max_tokens) / row)
    logits = logits_bytes(shape, max(1, round(share * tokens)), half)
    parts.append(Part("logits", logits, ("loss",), "16 bytes each, in chunks; the output layer's gradient on its way"))
    return parts


def layer_bytes(shape: Shape, half: bool) -> float:
    """Bytes that one layer keeps of one token for its backward pass, fused attention assumed.

    With width D, feed-forward width F, query width A and key width C, float32 keeps 6 D (two norms: input, normed,
    scaled), 4 F (gate, its activation, up, product), 2 A + 2 C (query, output, key, value) numbers of 4 bytes. With
    autocast the norms keep 4 D in 4 bytes, and the rest is in 2: five inputs of matrices (5 D), 4 F, 2 A + 2 C.
    """
    query, key = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    inner = 4 * shape.feed_forward * shape.experts + 2 * query + 2 * key
    return 16 * shape.width + 2 * (5 * shape.width + inner) if half else 4 * (6 * shape.width + inner)


def logits_bytes(shape: Shape, tokens: int, half: bool) -> float:
    """Peak bytes around the output layer: logits, log-softmax and entropy of a chunk, or the gradients of these.

    tokens: those that are trained on, responses that is.
    """
    from gagpo.learning.logprobs import CHUNK

    chunk = min(tokens, max(1, CHUNK // shape.vocabulary))
    on_the_way = (1 if chunk == tokens else 2) * 4 * shape.vocabulary * shape.width
    each = chunk * shape.vocabulary
    return max(16 * each, 12 * each + on_the_way) + (2 * each if half else 0)


def _written_scores(shape: Shape, tokens: int, row: int) -> float:
    """Attention scores that a CPU keeps in half precision where they are few; see :mod:`agents.engines.attention`."""
    from gagpo.agents.engines.attention import SMALL_SCORES

    scores = tokens * shape.heads * min(row, tokens)
    return 2 * scores if scores <= SMALL_SCORES else 0


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def room(gigabytes: float, device: str) -> float:
    """Bytes of a card, or of a machine's memory, that tensors can have."""
    return gigabytes * GB * (1 - FRAGMENTS) - (CONTEXT if device != "cpu" else 0.0)


def judge(settings: RunSettings, guess: Guess, gigabytes: float, shape: Shape | None = None) -> MemoryVerdict:
    """Whether the run fits ``gigabytes``, and if not, the fewest changes of settings (tried in order) that make it fit.

    Those that leave the result as it is come first; the KL term and the number formats last.
    """
    if not gigabytes > 0:
        raise InvalidArgument(f"a card's memory is a positive number of GB, got {gigabytes}")
    shape = shape or shape_of(settings)
    available = room(gigabytes, settings.device)
    needed, phase = plan(settings, guess, shape, gigabytes).peak()
    if needed <= available:
        return MemoryVerdict(gigabytes, available, needed, True, [], f"fits; the most is needed in the {phase}")
    now, least = settings, needed
    taken: list[str] = []
    for key, value in _cures(settings, shape, guess):
        changed = with_value(now, key, value)
        after = plan(changed, guess, shape, gigabytes).peak()[0]
        if after < least:
            now, least = changed, after
            taken = [mend for mend in taken if not mend.startswith(f"{key}=")] + [f"{key}={json.dumps(value)}"]
        if least <= available:
            taken = _without_idle(settings, taken, guess, shape, gigabytes)
            advice = f"does not fit: {needed / GB:.1f} of {available / GB:.1f} GB; with {' '.join(taken)} it does"
            return MemoryVerdict(gigabytes, available, needed, False, taken, advice)
    advice = (
        f"does not fit: {needed / GB:.1f} of {available / GB:.1f} GB, and {least / GB:.1f} with every setting that "
        f"helps; weights, gradients and Adam alone take {16 * shape.parameters / GB:.1f}: "
        + ("take a smaller model" if settings.lora else "take a smaller model, or lora={rank: 32}")
    )
    return MemoryVerdict(gigabytes, available, needed, False, [], advice)


def _without_idle(settings: RunSettings, taken: list[str], guess: Guess, shape: Shape, gigabytes: float) -> list[str]:
    """The mends without those that the others make superfluous, the last ones (which change the result) first."""
    for mend in reversed(list(taken)):
        changed, rest = settings, [other for other in taken if other != mend]
        for other in rest:
            key, _, value = other.partition("=")
            changed = with_value(changed, key, json.loads(value))
        if plan(changed, guess, shape, gigabytes).peak()[0] <= room(gigabytes, settings.device):
            taken = rest
    return taken


def _cures(settings: RunSettings, shape: Shape, guess: Guess) -> list[tuple[str, Any]]:
    training, engine, rolling = settings.training, settings.engine, settings.rollout
    cures: list[tuple[str, Any]] = [] if engine.sleep else [("engine.sleep", True)]
    if not training.gradient_checkpointing:
        cures.append(("training.gradient_checkpointing", True))
    tokens = training.microbatch_tokens
    while tokens > 1024:
        tokens //= 2
        cures.append(("training.microbatch_tokens", tokens))
    if engine.name == "vllm" and settings.device != "cpu":
        cures += [("engine.memory", share) for share in (0.3, 0.2, 0.1) if share < (engine.memory or VLLM_SHARE)]
    sessions = min(rolling.concurrency, rolling.tasks * rolling.samples)
    while engine.name == "transformers" and sessions > 8:
        sessions //= 2
        cures.append(("rollout.concurrency", sessions))
    if engine.dtype == "float32" and settings.algorithm.kl.coefficient > 0:
        cures.append(("engine.dtype", "bfloat16"))
    if training.precision == "float32":
        cures.append(("training.precision", "bfloat16"))
    if settings.optimizer.name == "adamw":
        cures.append(("optimizer.name", "adamw8bit"))
    if settings.algorithm.kl.coefficient > 0:
        cures.append(("algorithm.kl.coefficient", 0.0))
    return cures


def with_value(settings: RunSettings, key: str, value: Any) -> RunSettings:
    """The settings with one dotted key changed."""
    values = settings.model_dump(mode="json")
    *path, last = key.split(".")
    place = values
    for part in path:
        place = place[part]
    place[last] = value
    return parse(values, "the plan")


def memory_here(device: str) -> float | None:
    """GB of the device that the settings name, of the machine's memory for a CPU; None if it is not here."""
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.device(device)).total_memory / GB
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    return None


def guess_from(rows: Sequence[dict[str, Any]], guess: Guess) -> Guess:
    """The guess with what a run's metrics measured in place of what was not stated: the mean of its last ten rows."""
    last = rows[-10:]
    if not last:
        raise InvalidArgument("the run has no finished iteration to measure")
    mean = {name: sum(float(row[name]) for row in last) / len(last) for name in MEASURED}
    return Guess(
        guess.prompt,
        guess.turns or mean["mean_turns"],
        guess.response or mean["response_tokens"],
        guess.tokens_per_second or mean["tokens_per_second"],
    )
