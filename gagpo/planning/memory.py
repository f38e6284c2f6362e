"""Bytes of the parts of a run's memory, each by the phases of an iteration in which it is there.

The formulas of activations hold for layers of the Llama kind (two norms, grouped attention in a fused kernel, a gated
feed-forward part); other families differ by some tens of percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gagpo.agents.engines.flat.kernels import BLOCK, KEPT_SCORES, SMALL_SCORES
from gagpo.agents.engines.registry import SERVERS
from gagpo.agents.shape import Shape
from gagpo.learning.logprobs import chunk_tokens
from gagpo.settings import RunSettings

GB = 1e9
VLLM_SHARE, VLLM_CPU_CACHE = 0.4, 2**30  # the vLLM engine's defaults

HANDED_ON = 13  # bytes a token, layer and number of its width that a layer keeps less where all of it is in bfloat16
WRITTEN = 12  # bytes of a score that is written out and kept: after its cap, after its softmax, and one on its way
AGAIN = 16  # bytes of a score of the block that is made again: the two that are kept, and the gradient of each
PHASES = ("sampling", "loss", "backward", "step")


@dataclass(frozen=True)
class Part:
    """One part of the memory.

    name: what the table calls it.
    bytes: its size.
    phases: of an iteration in which it is there.
    note: what it holds.
    host: it lies in the host's memory, not the GPU's.
    """

    name: str
    bytes: float
    phases: tuple[str, ...]
    note: str = ""
    host: bool = False


def peak(parts: Sequence[Part]) -> tuple[float, str]:
    """Most bytes of the device at a time, and the phase in which that is."""
    sums = {phase: sum(one.bytes for one in parts if phase in one.phases and not one.host) for phase in PHASES}
    worst = max(PHASES, key=lambda phase: sums[phase])
    return sums[worst], worst


def state_parts(settings: RunSettings, shape: Shape) -> list[Part]:
    """Weights, gradients and optimiser of policy, reference and a critic of its own: one rank's part of each."""
    extra, every, ranks = adapter(settings, shape), PHASES, settings.processes
    count = extra or shape.parameters
    frozen, held_in = base_bytes(settings, shape)
    shares = f"; 1 of {ranks} parts" if ranks > 1 else ""
    state, phases, note = moments(settings, shape, count)
    parts = [
        Part("weights", (frozen + 4 * extra) / ranks, every, held_in + shares),
        Part("gradients", 4 * count / ranks, ("loss", "backward", "step"), "float32; freed after each step" + shares),
        Part("optimiser", state / ranks, phases, note + shares),
    ]
    if settings.device != "cpu" and settings.optimizer.name == "adamw":
        parts.append(
            Part("optimiser's step", 4 * count / ranks, ("step",), "the square root of a moment, of all weights")
        )
    if settings.algorithm.kl.coefficient > 0 and not extra:
        size = _size(settings.engine.dtype)
        parts.append(
            Part("reference", size * count / ranks, every, f"{settings.engine.dtype}, for algorithm.kl" + shares)
        )
    critic = settings.algorithm.critic
    if critic is not None and critic.head == "separate":
        own = frozen + 4 * extra + state
        parts.append(Part("critic", own / ranks, every, "weights and optimiser of its own backbone" + shares))
        parts.append(Part("critic's gradients", 4 * count / ranks, ("loss", "backward", "step")))
    if ranks > 1:
        away = _leaves(settings, "weights")
        parts = [replace(part, host=away) for part in parts] + gathered_parts(settings, shape)
    if settings.training.average:
        note = "of the weights, float32" + shares
        parts.append(Part("average", 4 * count / ranks, every, note, host=settings.device != "cpu"))
    taught = settings.algorithm.distillation
    if taught is not None and taught.teacher != "self":
        size = _size(settings.engine.dtype)
        parts.append(
            Part("teacher", size * shape.parameters, every, f"{settings.engine.dtype}, as large as the policy")
        )
    return parts


def _leaves(settings: RunSettings, what: Literal["activations", "weights"]) -> bool:
    """Whether a card hands ``what`` over to the host meanwhile (``training.offload``)."""
    return settings.device != "cpu" and what in settings.training.offload


def base_bytes(settings: RunSettings, shape: Shape) -> tuple[float, str]:
    """Bytes of all weights but an adapter's, and what they are in. See :mod:`gagpo.agents.engines.frozen`."""
    base = "float32" if settings.lora is None else settings.lora.base
    if base == "float32":
        return 4.0 * shape.parameters, "float32"
    # An output layer that is no embedding is in bfloat16 with either; a block of 64 has a scale of 8 bits and a bit.
    out = max(0, shape.embeddings - shape.vocabulary * shape.width)
    small = (2.0 if base == "bfloat16" else 0.5 + (1 + 4 / 256) / 64) * shape.linear + 2 * out
    return 4 * (shape.parameters - shape.linear - out) + small, f"{base} matrices, else float32"


def gathered_parts(settings: RunSettings, shape: Shape) -> list[Part]:
    """What ``fully_shard`` gathers and scatters: a layer's weights with the next one's, each with the buffer that it is
    sent through; of trained ones the gradients too. Embeddings and output layer stay gathered through a pass.
    """
    size = _size(settings.training.precision)
    layer = (shape.parameters - shape.embeddings) / shape.layers
    trained = settings.lora is None
    work = max(4 * size, 3 * size + 4) if trained else 4 * size
    ends = shape.embeddings * (2 * size + 4 if trained else size)
    return [
        Part("gathered ends", shape.embeddings * size, ("loss",), "embeddings and output layer, whole"),
        Part("gathered layers", 2 * size * layer, ("loss",), "of one layer, and the next one's on their way"),
        Part("gathered", ends + work * layer, ("backward",), "the same, and gradients on their way"),
    ]


def moments(settings: RunSettings, shape: Shape, count: int) -> tuple[float, tuple[str, ...], str]:
    """Bytes, phases and what they are, of the optimiser's moments of ``count`` parameters."""
    if settings.optimizer.name == "adamw":
        return 8 * count, PHASES, "Adam's two moments, float32"
    return (2 + 8 / 256) * count, PHASES, "Adam's two moments, 8 bits"


def adapter(settings: RunSettings, shape: Shape) -> int:
    """Parameters of an adapter on every linear layer but the output, 0 where the weights themselves are trained."""
    if settings.lora is None:
        return 0
    query, key = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    attention = 4 * shape.width + 2 * query + 2 * key
    return shape.layers * settings.lora.rank * (attention + 3 * shape.experts * (shape.width + shape.feed_forward))


def engine_parts(settings: RunSettings, shape: Shape, row: int, gigabytes: float | None) -> list[Part]:
    """Engine weights and caches: there while it samples; in the update too where it does not sleep.

    row: tokens of the longest row. gigabytes: of the GPU, of which vLLM takes a share.
    """
    engine, rolling = settings.engine, settings.rollout
    held = ("sampling",) if engine.sleep and not rolling.ahead else PHASES
    size, ranks = _size(engine.dtype), settings.processes
    largest = shape.vocabulary * shape.width
    token = 2 * shape.layers * shape.key_value_heads * shape.head_size * size
    if engine.name in SERVERS and engine.options.get("placement") != "colocated":
        return _sending(settings, largest)  # its engines are on devices of their own
    if engine.name in ("vllm", *SERVERS):
        if settings.device == "cpu":
            cache = max(VLLM_CPU_CACHE, token * row)
            return [
                Part("engine weights", size * shape.parameters, PHASES, f"vLLM's copy, {engine.dtype}"),
                Part("KV cache", cache, PHASES, "vLLM on a CPU"),
            ]
        share = engine.memory or VLLM_SHARE
        least = size * shape.parameters + token * row
        taken = max(least, share * gigabytes * GB) if gigabytes else least
        note = f"engine.memory={share:g} of the GPU; weights and one response need {least / GB:.1f} GB"
        return [Part("engine weights and KV cache", taken, held, note), *_sending(settings, largest)]
    parts = []
    if engine.dtype != "float32" or rolling.ahead or ranks > 1:
        if ranks > 1:
            parts.append(
                Part("a weight on its way", 4 * largest, ("sampling",), "the largest, gathered from all ranks")
            )
        parts.append(Part("engine weights", size * shape.parameters, held, f"a copy in {engine.dtype}"))
    if rolling.ahead:
        parts.append(Part("weights on their way", 4 * shape.parameters, PHASES, "a copy, until the engine has them"))
    sessions = min(rolling.concurrency, -(-rolling.tasks // ranks) * rolling.samples)
    capacity = -(-(row + 1) // 128) * 128
    note = f"{sessions} sessions of {capacity} tokens, {engine.dtype}"
    parts.append(Part("KV cache", token * sessions * capacity, held, note))
    sampled = sessions * shape.vocabulary * (24 + (size if size < 4 else 0))
    parts.append(Part("sampling", sampled, ("sampling",), "logits, probabilities and their sums, 24 bytes a word"))
    return parts


def _sending(settings: RunSettings, largest: int) -> list[Part]:
    """What an engine in other processes takes of the trainer's device: weights pass through files one by one."""
    if settings.device == "cpu" or settings.engine.name not in SERVERS:
        return []
    return [Part("a weight on its way", 4 * largest, ("sampling",), "the largest weight, whole")]


def update_parts(settings: RunSettings, shape: Shape, row: int, prompt: int, turns: float) -> list[Part]:
    """What forward and backward passes take; of a row, ``prompt * turns`` tokens are read and not trained on."""
    training = settings.training
    half = training.precision == "bfloat16"
    tokens = max(training.microbatch_tokens, row)
    sharded = settings.processes > 1
    width = (
        2 if half and sharded else 4
    )  # of a number that layers hand on: gathered weights are in bfloat16 all of them
    layer = tokens * layer_bytes(shape, half)
    if width == 2:
        layer -= tokens * HANDED_ON * shape.width * (1.0 if settings.lora is None else 4 / 3)
    scores = tokens * shape.heads * min(row, tokens)
    if shape.materialized and scores <= KEPT_SCORES:
        layer += WRITTEN * scores
    if settings.device == "cpu" and half:
        layer += _written_scores(shape, tokens, row)
    whole = settings.lora is None or settings.lora.base == "float32"
    copies = 2 * (shape.parameters if whole else shape.embeddings) if half and not sharded else 0
    checkpointed = training.gradient_checkpointing
    ends = 3 * width * tokens * shape.width  # the last norm's input, what it gives, and the rows that are kept of it
    one = tokens * width * shape.width if checkpointed else layer
    how = "the input of every layer" if checkpointed else "6 D + 4 F + 2 A + 2 C numbers a token and layer"
    if _leaves(settings, "activations"):
        parts = [
            Part("activations", one + ends, ("loss", "backward"), f"{tokens} tokens; the input of one layer"),
            Part("activations of the others", shape.layers * one, ("loss", "backward"), how, host=True),
        ]
    else:
        parts = [Part("activations", shape.layers * one + ends, ("loss", "backward"), f"{tokens} tokens; {how}")]
    if shape.materialized and scores > KEPT_SCORES:
        block = AGAIN * tokens * shape.heads * min(BLOCK, row)
        parts.append(Part("scores", block, ("loss", "backward"), f"of a block of {BLOCK} queries, written out"))
    if checkpointed:
        work = layer + width * 2 * tokens * shape.feed_forward * shape.experts
        parts.append(Part("one layer again", work, ("backward",), "its activations, computed a second time"))
    if copies:
        phases = ("loss",) if checkpointed else ("loss", "backward")
        parts.append(Part("half-precision copies", copies, phases, "of the weights, for one pass"))
    trained = row - prompt * turns if settings.context.history == "full" else 0.0
    share = min(1.0, max(trained, settings.rollout.max_tokens) / row)
    logits = logits_bytes(shape, max(1, round(share * tokens)), half, settings.device.partition(":")[0])
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


def logits_bytes(shape: Shape, tokens: int, half: bool, kind: str) -> float:
    """Peak bytes around the output layer: logits, log-softmax and entropy of a chunk, or the gradients of these.

    tokens: those that are trained on, responses that is. kind: of device.
    """
    chunk = min(tokens, chunk_tokens(shape.vocabulary, kind))
    on_the_way = (1 if chunk == tokens else 2) * 4 * shape.vocabulary * shape.width
    each = chunk * shape.vocabulary
    return max(16 * each, 12 * each + on_the_way) + (2 * each if half else 0)


def _written_scores(shape: Shape, tokens: int, row: int) -> float:
    """Attention scores that a CPU keeps in half precision, where they are few."""
    scores = tokens * shape.heads * min(row, tokens)
    return 2 * scores if scores <= SMALL_SCORES else 0


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
