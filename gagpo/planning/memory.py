"""The parts of a run's memory, in bytes, with the phases that hold them: the loading, and those of an iteration.

The formulas of activations hold for Llama-like layers (two norms, fused grouped attention, gated feed-forward); other
families differ by some tens of percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gagpo.agents.engines.weight_files import weight_files
from gagpo.model.chosen_format import native_bfloat16
from gagpo.model.flat.kernels import BLOCK, KEPT_SCORES, SMALL_SCORES
from gagpo.model.logprobs import chunk_tokens
from gagpo.model.shape import Shape
from gagpo.settings import RunSettings

GB = 1e9

MOMENTS = 8  # bytes of Adam's two moments of a parameter, in float32
BFLOAT16_SAVING = 13  # bytes per token, layer and unit of width that a layer saves entirely in bfloat16
KEPT_SCORE = 12  # bytes of a stored attention score: after the cap, after the softmax, and one temporary
RECOMPUTED_SCORE = 16  # bytes of a score in a recomputed block: two stored values and their gradients
ITERATION = ("sampling", "loss", "backward", "step")
PHASES = ("loading", *ITERATION)


@dataclass(frozen=True)
class Part:
    """One part of the memory.

    phases: the loading, and the phases of an iteration, in which it is allocated.
    note: its contents, for the table.
    host: in host memory, not on the GPU.
    per_machine: once on each machine; else in each process.
    """

    name: str
    bytes: float
    phases: tuple[str, ...]
    note: str = ""
    host: bool = False
    per_machine: bool = False


def sharded_note(settings: RunSettings) -> str:
    """Appended to the note of a part that is divided by the ranks."""
    return f"; 1 of {settings.processes} parts" if settings.processes > 1 else ""


def peak(parts: Sequence[Part]) -> tuple[float, str]:
    """Peak bytes on the device, and the phase of the peak."""
    on_device = [segment for segment in parts if not segment.host]
    sums = {phase: sum(segment.bytes for segment in on_device if phase in segment.phases) for phase in PHASES}
    highest = max(PHASES, key=lambda phase: sums[phase])
    return sums[highest], highest


def state_parts(settings: RunSettings, shape: Shape) -> list[Part]:
    """One rank's part of weights, gradients and optimiser of policy and reference."""
    ranks = settings.processes
    adapted = adapter(settings, shape)
    count = adapted or shape.parameters  # of the trained parameters
    frozen, base_format = base_bytes(settings, shape)
    sharded = sharded_note(settings)
    segments = [
        Part("weights", (frozen + 4 * adapted) / ranks, PHASES, base_format + sharded),
        Part("gradients", 4 * count / ranks, ("loss", "backward", "step"), "float32; freed after each step" + sharded),
        Part("optimiser", MOMENTS * count / ranks, ITERATION, "Adam's two moments, float32" + sharded),
    ]
    if settings.device != "cpu":
        note = "the square root of a moment, of all weights"
        segments.append(Part("optimiser's step", 4 * count / ranks, ("step",), note))
    if settings.algorithm.kl.coefficient > 0 and not adapted:  # with an adapter the frozen weights are the reference
        note = f"{settings.engine.dtype}, for algorithm.kl" + sharded
        segments.append(Part("reference", _size(settings.engine.dtype) * count / ranks, PHASES, note))
    if ranks > 1:
        segments += gathered_parts(settings, shape)
    segments += loading_parts(settings, shape)
    if settings.training.ema:
        note = "moving average of the weights, float32" + sharded
        phases = PHASES if samples_from_copy(settings) else ITERATION  # made after the check, before the copy is filled
        segments.append(Part("ema", 4 * count / ranks, phases, note, host=settings.device != "cpu"))
    return segments


def loading_parts(settings: RunSettings, shape: Shape) -> list[Part]:
    """What only loading takes: a single process reads a whole model, in float32 on the host first.

    Ranks read their shards at once, and gather in the check of the model alone, see :func:`gathered_parts`.
    """
    frozen, base_format = base_bytes(settings, shape)
    if settings.processes > 1:
        return []
    if settings.device != "cpu":
        return [Part("model being loaded", 4 * shape.parameters, ("loading",), "float32, before its device", host=True)]
    return [Part("model being loaded", 4 * shape.parameters - frozen, ("loading",), f"float32, before {base_format}")]


def base_bytes(settings: RunSettings, shape: Shape) -> tuple[float, str]:
    """Bytes of all weights except an adapter's, and their format."""
    base = "float32" if settings.lora is None else settings.lora.base_dtype
    if base == "float32":
        return 4.0 * shape.parameters, "float32"
    # An untied output layer counts as an embedding, and is one of the linear layers that are halved.
    halved = shape.linear + max(0, shape.embeddings - shape.vocabulary * shape.width)
    return 4.0 * shape.parameters - 2 * halved, f"{base} matrices, else float32"


def gathered_parts(settings: RunSettings, shape: Shape) -> list[Part]:
    """Memory that ``fully_shard`` gathers: weights of two layers with their buffers, and gradients of trained layers.

    FSDP gathers the next layer while one is computed, so two layers are whole at a time. Embeddings and output layer
    belong to no layer and stay gathered for a whole pass.
    """
    size = _size(settings.training.dtype)
    layer = (shape.parameters - shape.embeddings) / shape.layers
    trained = settings.lora is None
    # Of a layer: its weights and the next one's, each with a buffer, while no gradient exists; or one copy less and a
    # gradient in float32.
    work = max(4 * size, 3 * size + 4) if trained else 4 * size
    ends = shape.embeddings * (2 * size + 4 if trained else size)
    parts = [
        Part("gathered ends", shape.embeddings * size, ("loss",), "embeddings and output layer, whole"),
        Part("gathered layers", 2 * size * layer, ("loss",), "one layer, and the next one in transfer"),
        Part("gathered", ends + work * layer, ("backward",), "the same, and gradients in transfer"),
    ]
    unsharded = settings.training.unsharded
    if unsharded in ("gradients", "all"):
        count = adapter(settings, shape) or shape.parameters
        note = "float32, of all weights, until the last micro-batch of a step"
        parts.append(Part("unsharded gradients", 4 * count, ("loss", "backward"), note))
    if unsharded == "all":
        note = f"all layers, {settings.training.dtype}, until the last micro-batch of a step"
        parts.append(Part("unsharded layers", size * layer * (shape.layers - 2), ("loss", "backward"), note))
    if not samples_from_copy(settings):  # the copy is filled after the check, and is larger than what that gathers
        check = 2 * size * (shape.embeddings + layer)
        parts.append(Part("gathered to check", check, ("loading",), "ends and a layer, with their buffers"))
    return parts


def samples_from_copy(settings: RunSettings) -> bool:
    """Whether a rank samples from a whole copy of the policy in its own process."""
    engine = settings.engine
    if engine.options.serves:
        return settings.rollout.ahead > 0 and settings.processes > 1
    return engine.dtype != "float32" or settings.rollout.ahead > 0 or settings.processes > 1


def adapter(settings: RunSettings, shape: Shape) -> int:
    """Parameters of an adapter on every linear layer except the output; 0 without an adapter."""
    if settings.lora is None:
        return 0
    query, key = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    attention = 4 * shape.width + 2 * query + 2 * key
    return shape.layers * settings.lora.rank * (attention + 3 * shape.experts * (shape.width + shape.feed_forward))


def engine_parts(settings: RunSettings, shape: Shape, row: int, gigabytes: float | None) -> list[Part]:
    """Engine weights and caches, held while sampling and, unless the engine sleeps, during the update.

    row: tokens of the longest row.
    gigabytes: memory of the GPU, of which vLLM allocates a fraction.
    """
    engine = settings.engine
    rollout = settings.rollout
    ranks = settings.processes
    # An engine that samples ahead works during updates too, so it cannot sleep.
    phases = ("sampling",) if engine.sleep and not rollout.ahead else ITERATION
    size = _size(engine.dtype)
    largest = shape.vocabulary * shape.width
    token = 2 * shape.layers * shape.key_value_heads * shape.head_size * size
    if engine.options.serves:
        if not engine.options.uses_device(settings.device):
            return _sending(settings, largest)  # the servers have their own devices
        if settings.device == "cpu":
            cache = max(engine.options.cpu_cache_bytes, token * row)
            return [
                Part("engine weights", size * shape.parameters, ITERATION, f"{engine.name}'s copy, {engine.dtype}"),
                Part("KV cache", cache, ITERATION, f"{engine.name} on a CPU"),
            ]
        share = engine.gpu_memory_utilization or engine.options.memory_fraction
        minimum = size * shape.parameters + token * row
        allocated = max(minimum, share * gigabytes * GB) if gigabytes else minimum
        note = f"engine.gpu_memory_utilization={share:g}; weights and one response need {minimum / GB:.1f} GB"
        return [Part("engine weights and KV cache", allocated, phases, note), *_sending(settings, largest)]
    segments = []
    if samples_from_copy(settings):
        if ranks > 1:
            note = "the largest, gathered from all ranks"
            segments.append(Part("a weight in transfer", 4 * largest, ("loading", "sampling"), note))
        loading = ("loading", *phases)
        segments.append(Part("engine weights", size * shape.parameters, loading, f"a copy in {engine.dtype}"))
    if rollout.ahead:
        segments.append(
            Part("weights in transfer", 4 * shape.parameters, ITERATION, "a copy, until the engine has them")
        )
    sessions = most_sessions(settings)
    capacity = -(-(row + 1) // 128) * 128  # the cache grows by blocks of 128 tokens
    note = f"{sessions} sessions of {capacity} tokens, {engine.dtype}"
    segments.append(Part("KV cache", token * sessions * capacity, phases, note))
    sampled = sessions * shape.vocabulary * (24 + (size if size < 4 else 0))
    segments.append(
        Part("sampling", sampled, ("sampling",), "logits, probabilities and their sums, 24 bytes per vocabulary entry")
    )
    return segments


def most_sessions(settings: RunSettings) -> int:
    """Maximum number of simultaneous episodes of one rank, in training or evaluation."""
    rollout, ranks = settings.rollout, settings.processes
    sizes = [-(-rollout.tasks // ranks) * rollout.group_size]
    for env in settings.all_environments:
        for split in env.evaluation.splits:
            tasks = env.evaluation.tasks or env.environment.kwargs.get("counts", {}).get(split)
            if tasks:
                sizes.append(-(-tasks // ranks) * env.evaluation.episodes_per_task)
            else:  # only the environment has the size of the split, and a plan builds no environment
                sizes.append(rollout.concurrency)
    return min(rollout.concurrency, max(sizes))


def _sending(settings: RunSettings, largest: int) -> list[Part]:
    """Memory on the trainer's device for an engine in other processes; weights are sent one by one."""
    if settings.device == "cpu" or not settings.engine.options.serves:
        return []
    return [Part("a weight in transfer", 4 * largest, ("sampling",), "the largest weight, whole")]


def file_parts(settings: RunSettings, shape: Shape) -> list[Part]:
    """Files in ``/dev/shm`` through which weights pass to servers: once on each machine."""
    options = settings.engine.options
    if not options.serves:
        return []
    adapted = adapter(settings, shape)
    files = weight_files(_size(settings.engine.dtype) * shape.parameters, 4 * adapted if adapted else None)
    if getattr(options, "folder", None) is not None:
        return []  # a disk, as far as the settings show
    note = "for the servers, in /dev/shm, or on a disk if it has no room"
    # With an adapter, only the first update brings the weights below it.
    on_host = settings.device != "cpu"
    return [Part("weight files", files.first_bytes, ("sampling",), note, host=on_host, per_machine=True)]


def update_parts(settings: RunSettings, shape: Shape, row: int, prompt: int, turns: float) -> list[Part]:
    """Memory of forward and backward passes; ``prompt * turns`` tokens of a row are not trained on."""
    training = settings.training
    half = training.dtype == "bfloat16"
    tokens = max(training.microbatch_tokens, row)
    sharded = settings.processes > 1
    width = 2 if half and sharded else 4  # bytes of a layer's output; all gathered weights are in bfloat16
    layer = tokens * layer_bytes(shape, half)
    if width == 2:
        layer -= tokens * BFLOAT16_SAVING * shape.width * (1.0 if settings.lora is None else 4 / 3)
    scores = tokens * shape.heads * min(row, tokens)
    if shape.materialized and scores <= KEPT_SCORES:
        layer += KEPT_SCORE * scores
    if settings.device == "cpu" and half and scores <= SMALL_SCORES and native_bfloat16("cpu")[0]:
        layer += 2 * scores  # where the CPU multiplies bfloat16, few attention scores are materialized and kept
    full_precision = settings.lora is None or settings.lora.base_dtype == "float32"
    copies = 0
    if half and not sharded:  # autocast keeps a bfloat16 copy of each float32 weight for a pass
        copies = 2 * (shape.parameters if full_precision else shape.embeddings)
    ends = 3 * width * tokens * shape.width  # input and output of the last norm, and its selected rows
    checkpointed = training.gradient_checkpointing
    stored, contents = layer, "6 D + 4 F + 2 A + 2 C numbers per token and layer"
    if checkpointed:
        stored, contents = tokens * width * shape.width, "the input of every layer"
    segments = [Part("activations", shape.layers * stored + ends, ("loss", "backward"), f"{tokens} tokens; {contents}")]
    if shape.materialized and scores > KEPT_SCORES:
        block = RECOMPUTED_SCORE * tokens * shape.heads * min(BLOCK, row)
        segments.append(Part("scores", block, ("loss", "backward"), f"of a block of {BLOCK} queries, materialized"))
    if checkpointed:
        work = layer + width * 2 * tokens * shape.feed_forward * shape.experts
        segments.append(
            Part("recomputed layer", work, ("backward",), "activations of one layer, computed a second time")
        )
    if copies:
        phases = ("loss",) if checkpointed else ("loss", "backward")
        segments.append(Part("half-precision copies", copies, phases, "of the weights, for one pass"))
    trained = row - prompt * turns if settings.context.history == "full" else 0.0
    fraction = min(1.0, max(trained, settings.rollout.max_tokens) / row)
    logits = logits_bytes(shape, max(1, round(fraction * tokens)), half, settings.device.partition(":")[0])
    segments.append(Part("logits", logits, ("loss",), "16 bytes each, in chunks; the output layer's gradient"))
    return segments


def layer_bytes(shape: Shape, half: bool) -> float:
    """Bytes per token that one layer keeps for its backward pass, with fused attention.

    With width D, feed-forward width F, query width A and key width C, float32 keeps 6 D (two norms: input, normed,
    scaled), 4 F (gate, its activation, up, product), 2 A + 2 C (query, output, key, value) numbers of 4 bytes. With
    autocast the norms keep 4 D in 4 bytes, and the rest is in 2: five inputs of matrices (5 D), 4 F, 2 A + 2 C.
    """
    query, key = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    inner = 4 * shape.feed_forward * shape.experts + 2 * query + 2 * key
    return 16 * shape.width + 2 * (5 * shape.width + inner) if half else 4 * (6 * shape.width + inner)


def logits_bytes(shape: Shape, tokens: int, half: bool, kind: str) -> float:
    """Peak bytes around the output layer: logits, log-softmax and entropy of a chunk, or their gradients.

    tokens: trained on, that is of responses.
    kind: type of device.
    """
    chunk = min(tokens, chunk_tokens(shape.vocabulary, kind))
    # Several chunks add to the output layer's gradient: the sum so far and the next chunk's are both there.
    gradients = (1 if chunk == tokens else 2) * 4 * shape.vocabulary * shape.width
    count = chunk * shape.vocabulary
    return max(16 * count, 12 * count + gradients) + (2 * count if half else 0)


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
