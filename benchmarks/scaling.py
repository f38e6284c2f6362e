"""What grows with the number of GPUs: replicated and sharded memory, bytes on each link, the first bottleneck.

    python -m benchmarks.scaling                 # the table of docs/scale.md, from formulas
    python -m benchmarks.scaling --measure       # the formulas compared with 1 and 2 gloo ranks on this machine

The table is computed, not measured: full-weight training of Qwen2.5-7B by the recipe alfworld-8x80gb on machines of
eight H100s, with two task groups for each GPU (sixteen at least), so that each GPU has the same work. Rates and
formulas are those of `gagpo plan` (gagpo/planning/rates.py, traffic.py, update_time.py).

--measure trains a small model for one update in each number of ranks, counts the bytes of every collective call, and
prints them next to the formulas. More than 5 % of difference fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gathering import episodes as make_episodes
from gagpo.algorithms import load as load_algorithm
from gagpo.base.child import free_port
from gagpo.base.interpreter import module_command
from gagpo.base.rank import REQUIRED, Rank
from gagpo.base.tables import Table
from gagpo.collecting.packing import packed
from gagpo.credit import Credit
from gagpo.data import Row
from gagpo.distributed.ranks import Ranks, joined
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.networks import Networks
from gagpo.model.shape import Shape, sizes
from gagpo.model.sharding import Unsharded, shard
from gagpo.planning.fitting import with_chosen_unsharded
from gagpo.planning.known_shapes import known_config
from gagpo.planning.plan import DEFAULT_GUESS, ClusterPlan, MemoryPlan, cluster_plan
from gagpo.planning.plan import plan as memory_plan
from gagpo.planning.rates import rates_of
from gagpo.planning.traffic import Cluster, Passes, experience_bytes, traffic_of
from gagpo.settings import RunSettings, load
from gagpo.settings.machine import with_machine_formats
from gagpo.settings.resolve import resolve
from gagpo.sft.small_model import ModelShape, create, train_tokenizer

RECIPE, GPU = "alfworld-8x80gb", "h100"
GPUS = (1, 8, 64, 512)
MACHINE = 8  # GPUs of a machine
GROUPS = 2  # task groups of each GPU
SHARDED = ("weights", "gradients", "optimiser", "optimiser's step", "reference")
GB = 1e9
UNSHARDED = ("layers", "gradients", "all")

# The measured model and batch: small, so that two ranks on one machine take seconds.
SMALL = ModelShape(layers=3, width=128, heads=4, key_value_heads=2, feed_forward=256, context=512)
ROWS, LENGTH, RESPONSE = 24, 64, 16
MINIBATCHES, MICROBATCHES = 2, 3  # micro-batches of each rank and mini-batch
TOLERANCE = 0.05
RANK_SECONDS = 600.0  # of a rank, which takes a few
TURNS, TURN_TOKENS = 400, 500  # of the exchanged episodes


# The table ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A number of GPUs, and what an iteration takes there."""

    cluster: Cluster
    settings: RunSettings
    memory: MemoryPlan
    plan: ClusterPlan

    @property
    def sharded(self) -> float:
        """Bytes of one GPU in weights, gradients and optimiser."""
        return sum(part.bytes for part in self.memory.parts if part.name in SHARDED)

    @property
    def replicated(self) -> float:
        """Bytes of the whole batch of episodes, which every rank holds in host memory."""
        return self.memory.tokens["experience"]


def size_of(gpus: int) -> Size:
    """The recipe on so many GPUs."""
    cluster = Cluster(max(1, gpus // MACHINE), min(gpus, MACHINE))
    tasks = max(16, GROUPS * gpus)
    settings = with_machine_formats(resolve(load(RECIPE, [f"processes={gpus}", f"rollout.tasks={tasks}"])))
    config = known_config(settings.model)
    assert config is not None
    shape = sizes(config)
    rates = rates_of(GPU)
    settings = with_chosen_unsharded(settings, DEFAULT_GUESS, rates.gigabytes, shape, cluster.machines)
    memory = memory_plan(settings, shape=shape, gigabytes=rates.gigabytes, machines=cluster.machines)
    return Size(cluster, settings, memory, cluster_plan(settings, memory, cluster, rates))


def table() -> Table:
    """One column for each number of GPUs."""
    columns = [size_of(gpus) for gpus in GPUS]
    fits = [size.memory.peak()[0] <= 0.95 * size.plan.rates.gigabytes * GB - GB for size in columns]
    rows = [
        ["task groups of an iteration", *(f"{size.settings.rollout.tasks:,}" for size in columns)],
        ["sharded: weights, gradients, optimiser, reference, GB of a GPU", *(_gb(size.sharded) for size in columns)],
        ["replicated: engine's weights, GB of a GPU", *(_gb(2.0 * size.memory.shape.parameters) for size in columns)],
        ["replicated: episodes, GB of a rank's host memory", *(f"{size.replicated / GB:.2f}" for size in columns)],
        ["peak of a GPU, GB", *(_gb(size.memory.peak()[0]) for size in columns)],
        ["GPU to GPU, GB received by a GPU", *(_gb(size.plan.traffic.link) for size in columns)],
        ["network, GB received by a machine", *(_gb(size.plan.traffic.network) for size in columns)],
        ["files of weights, GB written and read on a machine", *(_gb(_files(size)) for size in columns)],
        ["update: arithmetic, s", *(f"{size.plan.time.arithmetic:.0f}" for size in columns)],
        ["update: GPU to GPU, s", *(f"{size.plan.time.links:.1f}" for size in columns)],
        ["update: network, s", *(f"{size.plan.time.network:.1f}" for size in columns)],
        ["iteration, s", *(f"{size.plan.time.total:.0f}" for size in columns)],
        ["first bottleneck", *map(_bottleneck, columns, fits)],
    ]
    return Table(["GPUs", *map(str, GPUS)], rows, words=(0,))


def _gb(number: float) -> str:
    return f"{number / GB:,.1f}"


def _files(size: Size) -> float:
    return size.plan.traffic.files + size.plan.traffic.read


def _bottleneck(size: Size, fits: bool) -> str:
    if not fits:
        return "memory of a GPU"
    return size.plan.time.bottleneck().replace("forward and backward passes (arithmetic)", "arithmetic")


# Measurements -------------------------------------------------------------------------------------------------------


class CollectiveBytes(TorchDispatchMode):
    """Counts what collective calls of tensors move: bytes received in gathering, and sent in reducing."""

    def __init__(self, ranks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.received = (ranks - 1) / ranks
        self.gathered = self.reduced = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if "c10d._allgather_base_" in name:
            self.gathered += self.received * args[0].nbytes
        elif "c10d._reduce_scatter_base_" in name:
            self.reduced += self.received * args[1].nbytes
        return func(*args, **(kwargs or {}))


def small_rows(vocabulary: int) -> list[Row]:
    """Rows of equal length, the same on all ranks."""
    rng = np.random.default_rng(0)
    position_K = np.arange(LENGTH - RESPONSE, LENGTH)
    old_K = np.full(RESPONSE, -5.0, np.float32)
    return [
        Row(
            rng.integers(5, vocabulary, LENGTH).astype(np.int32),
            position_K,
            np.full(RESPONSE, i),
            i * RESPONSE + np.arange(RESPONSE),
            old_K,
            1.0,
            i,
        )
        for i in range(ROWS)
    ]


def measured(ranks: Ranks, unsharded: Unsharded) -> dict[str, float]:
    """Bytes of one update's collective calls and of an exchange of episodes, on this rank, and the formulas' counts."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(["You stand at 12."], 300)
    model = create(SMALL, tokenizer, 0)
    shape = sizes(model.config)
    if not ranks.alone:
        shard(model, ranks.mesh(), "float32", unsharded=unsharded)
    optimizer = torch.optim.AdamW(model.parameters())
    # Rows are of one length, so the number of micro-batches is known.
    packing = Packing(ROWS * LENGTH // (MINIBATCHES * MICROBATCHES * ranks.world_size))
    settings = UpdateSettings(minibatches=MINIBATCHES, packing=packing, unsharded=unsharded)
    updater = Updater(Networks(model), optimizer, load_algorithm("cispo"), settings, ranks)
    credit = Credit(np.linspace(-1.0, 1.0, ROWS), np.full(ROWS, RESPONSE))
    with CollectiveBytes(ranks.world_size) as counted:
        updater.update(small_rows(250), credit, np.random.default_rng(0))
    message = packed(make_episodes(TURNS // ranks.world_size, TURN_TOKENS, RESPONSE, 1000 * ranks.rank), {})
    messages = ranks.gathered_bytes(message) if not ranks.alone else [message]
    from_others = sum(map(len, messages)) - len(message)
    expected = _expected(shape, ranks.world_size, unsharded)
    return {
        "gathered": counted.gathered,
        "gathered_expected": expected[0],
        "reduced": counted.reduced,
        "reduced_expected": expected[1],
        "episodes": float(from_others),
        "episodes_expected": expected[2],
    }


def _expected(shape: Shape, count: int, unsharded: Unsharded) -> tuple[float, float, float]:
    """The formulas for the measured update: gathered, reduced, episodes received."""
    changes = [f"training.minibatches={MINIBATCHES}", f"training.unsharded={unsharded}", "training.dtype=float32"]
    settings = resolve(load(RECIPE, [f"processes={count}", "engine.dtype=bfloat16", *changes]))
    experience = experience_bytes(TURNS, TURN_TOKENS, RESPONSE)
    traffic = traffic_of(settings, shape, Cluster(1, count), Passes(MINIBATCHES * MICROBATCHES, 0), experience)
    return traffic.gathered, traffic.reduced, traffic.episodes


def measure(counts: tuple[int, ...] = (1, 2)) -> list[dict[str, Any]]:
    """The first rank's measurement for each number of gloo ranks, of several for each ``training.unsharded``."""
    results = []
    for count, unsharded in [(ranks, how) for ranks in counts for how in (UNSHARDED if ranks > 1 else UNSHARDED[:1])]:
        port = free_port()
        processes = []
        for rank in range(count):
            variables = Rank(rank, count, rank, count).variables("127.0.0.1", port) if count > 1 else {}
            environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
            command = module_command("benchmarks.scaling", "--rank", unsharded)
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        try:
            outputs = [process.communicate(timeout=RANK_SECONDS)[0] for process in processes]
        finally:  # a rank that hangs, or waits for one that failed
            for process in processes:
                process.kill()
        if any(process.returncode for process in processes):
            raise SystemExit("a rank failed")
        results.append({"ranks": f"{count}, {unsharded}", **json.loads(outputs[0].splitlines()[-1])})
    return results


def differences(results: list[dict[str, Any]]) -> Table:
    """Measured and expected bytes of each number of ranks."""
    rows = []
    for result in results:
        for name in ("gathered", "reduced", "episodes"):
            expected, number = result[f"{name}_expected"], result[name]
            off = f"{number / expected - 1:+.1%}" if expected else "equal" if number == 0.0 else "differs"
            rows.append([f"{result['ranks']}", name, f"{number:,.0f}", f"{expected:,.0f}", off])
    return Table(["ranks", "bytes", "measured", "formula", "difference"], rows, words=(1,))


def is_within(results: list[dict[str, Any]]) -> bool:
    """Whether every measurement is within the tolerance of its formula."""
    return all(
        abs(result[name] - result[f"{name}_expected"]) <= TOLERANCE * result[f"{name}_expected"]
        for result in results
        for name in ("gathered", "reduced", "episodes")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="compare the formulas with 1 and 2 ranks here")
    parser.add_argument("--rank", choices=UNSHARDED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        if all(name in os.environ for name in REQUIRED):
            with joined(120) as ranks:
                print(json.dumps(measured(ranks, options.rank)))
        else:
            print(json.dumps(measured(Ranks(), options.rank)))
        return 0
    if options.measure:
        results = measure()
        print("\n".join(differences(results).lines()))
        return int(not is_within(results))
    print("\n".join(table().markdown()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
