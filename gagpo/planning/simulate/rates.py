"""How fast things are: stated for a GPU from its data sheet, read from a file, or measured (see ``measure``)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gagpo.agents.engines.flat.kernels import bucket
from gagpo.agents.engines.flat.slots import SHORTEST
from gagpo.agents.engines.registry import SERVERS
from gagpo.agents.shape import Shape
from gagpo.base.options import explain
from gagpo.planning.lengths import row_tokens
from gagpo.planning.memory import VLLM_SHARE
from gagpo.settings import RunSettings, SettingsError
from gagpo.settings.core_schema import write_yaml
from gagpo.settings.files import read_mapping


@dataclass(frozen=True)
class DataSheet:
    """A GPU by its maker's numbers, each per second. flops: dense bfloat16; memory, link and network: bytes.

    size: bytes of memory. link: to the GPUs of one node, one way; network: to other nodes, per GPU.
    """

    name: str
    flops: float
    flops_float32: float
    size: float
    memory: float
    link: float
    network: float
    per_node: int = 8


H100 = DataSheet("H100", 989e12, 67e12, 80e9, 3.35e12, link=450e9, network=50e9)
"""NVIDIA's data sheet of the H100 SXM: 989 TFLOP/s, 67 TFLOP/s, 3.35 TB/s, NVLink 900 GB/s both ways; NDR 400 Gb/s."""

SHEETS = {
    "H100": H100,
    "A100": DataSheet("A100", 312e12, 19.5e12, 80e9, 2.04e12, link=300e9, network=25e9),
    "RTX 4090": DataSheet("RTX 4090", 165e12, 82.6e12, 24e9, 1.01e12, link=32e9, network=12.5e9),
}
"""Those that can be named; an RTX 4090 has no link but PCIe 4."""

# What of a data sheet is reached: assumptions, and none of them measured here.
TRAINING, READING, DECODING, SENDING = 0.4, 0.5, 0.6, 0.7
PASS_SECONDS = 3e-3  # of an engine's own work between two forward passes, where a graph holds all kernels of one
LAUNCH_SECONDS = 0.3e-3  # of a layer whose kernels are launched one by one
LATENCY = 30e-6  # seconds of one step of a ring


Amount = Annotated[float, Field(ge=0, strict=True)]
Rate = Annotated[float, Field(gt=0, strict=True)]


@dataclass(frozen=True)
class Rates:
    """Seconds that things take on one processor (a GPU, or a process on a CPU); 0 is infinitely fast.

    A forward pass of the engine takes ``pass_seconds``, ``sequence_seconds`` more for every response it continues and
    ``read_seconds`` for every new token of a prompt: so few responses at a time are slow, and many are cheap.
    train_seconds: for a token forward and backward; score_share: of it, what a forward pass alone takes.
    step_seconds: for a step of the optimiser; update_seconds: for the rest of an update (credit, rows).
    gather_bytes: that a micro-batch moves between the ranks; link, network: bytes per second within a node and
    between nodes; latency: seconds of one of the ring's steps; per_node: processors of a node.
    mixed: whether prompts are read by the passes that decode, ``chunk`` tokens of them at a time, or by passes of their
    own that decoding waits for. cache_tokens: that a replica's cache holds of all responses under way together.
    transfer_seconds: from the last step until the engine samples with the new weights.
    environment_seconds, reset_seconds: of a worker, for a step and for the beginning of an episode; environment_spread:
    standard deviation of the logarithm of a step's time.
    source: where the numbers are from, in words.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # for files; what is computed is not looked at

    pass_seconds: Amount = 0.0
    sequence_seconds: Amount = 0.0
    read_seconds: Amount = 0.0
    mixed: bool = False
    chunk: Annotated[int, Field(ge=1, strict=True)] = 8192
    cache_tokens: Rate = math.inf
    train_seconds: Amount = 0.0
    score_share: Amount = 1 / 3
    step_seconds: Amount = 0.0
    update_seconds: Amount = 0.0
    gather_bytes: Amount = 0.0
    link: Rate = math.inf
    network: Rate = math.inf
    latency: Amount = 0.0
    per_node: Annotated[int, Field(ge=1, strict=True)] = 8
    transfer_seconds: Amount = 0.0
    environment_seconds: Amount = 0.0
    environment_spread: Amount = 0.0
    reset_seconds: Amount = 0.0
    source: str = ""

    def decode_seconds(self, batch: int) -> float:
        """One token for each of ``batch`` responses."""
        return self.pass_seconds + self.sequence_seconds * batch

    def exchange_seconds(self, ranks: int) -> float:
        """What one micro-batch takes to gather weights twice and to scatter gradients, over a ring of ``ranks``."""
        if ranks == 1:
            return 0.0
        bandwidth = self.link if ranks <= self.per_node else self.network
        return self.gather_bytes * (ranks - 1) / ranks / bandwidth + 3 * (ranks - 1) * self.latency

    def record(self) -> dict[str, object]:
        """Plain values that :func:`load` reads."""
        return asdict(self)


def stated(
    settings: RunSettings, shape: Shape, prompt: int, turns: float, response: float, gpu: DataSheet = H100
) -> Rates:
    """Rates of a model on a GPU that nobody measured: floating-point operations and bytes over a share of its sheet.

    With P parameters, a token costs 2 P operations forward and 4 P backward (Kaplan et al. 2020, arXiv 2001.08361), 2 P
    more where activations are computed twice. A decoding pass reads 2 P bytes of weights, and for each response the
    keys and values of its context. A micro-batch gathers bfloat16 weights twice and scatters float32 gradients.
    """
    parameters = shape.parameters
    training, engine = settings.training, settings.engine
    flops = gpu.flops if training.precision == "bfloat16" else gpu.flops_float32
    operations = (8 if training.gradient_checkpointing else 6) * parameters
    row = row_tokens(settings, prompt, turns, response, shape.context)
    token = 2 * shape.layers * shape.key_value_heads * shape.head_size * 2
    paged = engine.name in ("vllm", *SERVERS)
    if paged:
        # Pages are read as far as they are filled, and graphs hold whatever number of responses there is.
        read, own = max(1.0, row - settings.rollout.max_tokens / 2), PASS_SECONDS
        share = (engine.memory or VLLM_SHARE) if engine.name == "vllm" else 0.9
        room = max(float(row), (share * gpu.size - 2 * parameters) / token)
    else:
        # Every response has a slot as long as the longest; a graph cannot be captured beside a thread that trains.
        graphs = engine.compile == "auto" and not settings.rollout.ahead
        read, own = float(bucket(row + 1, SHORTEST)), PASS_SECONDS if graphs else LAUNCH_SECONDS * shape.layers
        room = math.inf
    memory = DECODING * gpu.memory
    return Rates(
        pass_seconds=own + 2 * parameters / memory,
        sequence_seconds=token * read / memory + 2 * parameters / (READING * gpu.flops),
        read_seconds=2 * parameters / (READING * gpu.flops),
        mixed=paged,
        cache_tokens=room,
        train_seconds=operations / (TRAINING * flops),
        score_share=2 * parameters / operations,
        step_seconds=28 * parameters / gpu.memory,
        gather_bytes=8.0 * parameters,
        link=SENDING * gpu.link,
        network=SENDING * gpu.network,
        latency=LATENCY,
        per_node=gpu.per_node,
        transfer_seconds=2 * parameters / (SENDING * gpu.network),
        environment_seconds=1e-3,
        reset_seconds=10e-3,
        source=f"stated: {gpu.name} data sheet, 40 % of its operations in training and 50 % in reading, 60 % of its "
        f"memory's speed in decoding, 70 % of its links'; engine {engine.name}; not measured",
    )


def load(path: Path) -> Rates:
    """Rates of a YAML or JSON file with the fields of :class:`Rates`; SettingsError names what is wrong in it."""
    try:
        return TypeAdapter(Rates).validate_python({"source": str(path), **read_mapping(path)})
    except ValidationError as error:
        raise SettingsError(explain(error, [field.name for field in fields(Rates)], str(path))) from None


def dump(rates: Rates) -> str:
    """The file that :func:`load` reads."""
    return write_yaml(rates.record())
