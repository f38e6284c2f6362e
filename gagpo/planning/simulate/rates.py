"""How fast things are: stated for a GPU from its data sheet, read from a file, or measured (see ``measure``)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import yaml

from gagpo.agents.shape import Shape
from gagpo.envs.nearest import hint
from gagpo.planning.lengths import row_tokens
from gagpo.settings import RunSettings, SettingsError


@dataclass(frozen=True)
class DataSheet:
    """A GPU by its maker's numbers, each per second. flops: dense bfloat16; memory, link and network: bytes.

    link: to the GPUs of one node, one way; network: to other nodes, per GPU.
    """

    flops: float
    flops_float32: float
    memory: float
    link: float
    network: float
    per_node: int = 8


H100 = DataSheet(flops=989e12, flops_float32=67e12, memory=3.35e12, link=450e9, network=50e9)
"""NVIDIA's data sheet of the H100 SXM: 989 TFLOP/s, 67 TFLOP/s, 3.35 TB/s, NVLink 900 GB/s both ways; NDR 400 Gb/s."""

# What of a data sheet is reached: assumptions, and none of them measured here.
TRAINING, READING, DECODING, SENDING = 0.4, 0.5, 0.6, 0.7
PASS_SECONDS = 3e-3  # of an engine's own work between two forward passes
LATENCY = 30e-6  # seconds of one step of a ring


@dataclass(frozen=True)
class Rates:
    """Seconds that things take on one processor (a GPU, or a process on a CPU); 0 is infinitely fast.

    A forward pass of the engine takes ``pass_seconds``, ``sequence_seconds`` more for every response it continues and
    ``read_seconds`` for every new token of a prompt: so few responses at a time are slow, and many are cheap.
    train_seconds: for a token forward and backward; score_share: of it, what a forward pass alone takes.
    step_seconds: for a step of the optimiser; update_seconds: for the rest of an update (credit, rows).
    gather_bytes: that a micro-batch moves between the ranks; link, network: bytes per second within a node and
    between nodes; latency: seconds of one of the ring's steps; per_node: processors of a node.
    transfer_seconds: from the last step until the engine samples with the new weights.
    environment_seconds, reset_seconds: of a worker, for a step and for the beginning of an episode; environment_spread:
    standard deviation of the logarithm of a step's time.
    source: where the numbers are from, in words.
    """

    pass_seconds: float = 0.0
    sequence_seconds: float = 0.0
    read_seconds: float = 0.0
    train_seconds: float = 0.0
    score_share: float = 1 / 3
    step_seconds: float = 0.0
    update_seconds: float = 0.0
    gather_bytes: float = 0.0
    link: float = math.inf
    network: float = math.inf
    latency: float = 0.0
    per_node: int = 8
    transfer_seconds: float = 0.0
    environment_seconds: float = 0.0
    environment_spread: float = 0.0
    reset_seconds: float = 0.0
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
    training = settings.training
    flops = gpu.flops if training.precision == "bfloat16" else gpu.flops_float32
    operations = (8 if training.gradient_checkpointing else 6) * parameters
    context = max(1.0, row_tokens(settings, prompt, turns, response, shape.context) - settings.rollout.max_tokens / 2)
    cache = 2 * shape.layers * shape.key_value_heads * shape.head_size * 2 * context
    memory = DECODING * gpu.memory
    return Rates(
        pass_seconds=PASS_SECONDS + 2 * parameters / memory,
        sequence_seconds=cache / memory + 2 * parameters / (READING * gpu.flops),
        read_seconds=2 * parameters / (READING * gpu.flops),
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
        source="stated: H100 data sheet, 40 % of its operations in training and 50 % in reading, 60 % of its memory's "
        "speed in decoding, 70 % of its links'; not measured",
    )


def load(path: Path) -> Rates:
    """Rates of a YAML or JSON file with the fields of :class:`Rates`; SettingsError names what is wrong in it."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read as rates: {str(error).splitlines()[0][:200]}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} holds no rates: one `name: seconds` a line is wanted")
    known = {field.name for field in fields(Rates)}
    # A file is somebody's: names, kinds and ranges are looked at before anything is computed from it.
    for name, value in values.items():
        if name not in known:
            raise SettingsError(f"{path}: there is no rate {name!r}; {hint(str(name), sorted(known))}")
        number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        if name != "source" and not number:
            raise SettingsError(f"{path}: {name} is a number >= 0, got {value!r}")
    if values.get("per_node", 1) < 1 or values.get("link", 1) == 0 or values.get("network", 1) == 0:
        raise SettingsError(f"{path}: per_node, link and network are above 0")
    return Rates(**{"source": str(path), **values})


def dump(rates: Rates) -> str:
    """The file that :func:`load` reads."""
    return yaml.safe_dump(rates.record(), sort_keys=False)
