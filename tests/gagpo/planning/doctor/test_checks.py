"""The checks find every kind of fault; GPUs and second ranks are fakes."""

import types

import pytest
import torch
import torch.distributed as dist

from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.distributed.ranks import Ranks
from gagpo.planning import memory
from gagpo.planning.doctor import alone, together
from gagpo.planning.doctor.machine import CORRIDOR, LARGE, Machine, rank_device
from gagpo.settings import SettingsError


@pytest.fixture
def machine(tmp_path):
    return Machine("cpu", "transformers", "float32", tmp_path)


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def gpus(monkeypatch):
    """Two fake GPUs whose reports a test can change."""
    found = types.SimpleNamespace(count=2, free=79e9, major=9, uuids=["A", "B"])
    properties = lambda device: types.SimpleNamespace(  # noqa: E731
        name="H100", major=found.major, uuid=found.uuids[int(str(device)[-1])]
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found.count)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (found.free, 80e9))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(alone, "product_is_right", lambda device: True)
    return found


def test_an_engine_that_keeps_its_old_weights_is_found(machine, monkeypatch):
    class Stale(TransformersEngine):
        def __init__(self, model, tokenizer, max_length=None, *, dtype=None):
            import copy

            super().__init__(copy.deepcopy(model), tokenizer, max_length, dtype=dtype)

        def load_weights(self, tensors):
            self._forget()

    monkeypatch.setattr(alone, "make_engine", lambda name, *arguments, **options: Stale(*arguments, **options))
    finding = alone.check_log_probabilities(machine)
    assert finding.verdict == "failed" and finding.values["gap"] < 1e-3 < finding.values["gap_after_new_weights"]


def test_an_engine_that_samples_at_temperature_0_is_found(machine, monkeypatch):
    assert alone.check_greedy(machine).verdict == "ok"
    monkeypatch.setattr(alone, "Sampling", lambda temperature, most: types.SimpleNamespace())
    honest = TransformersEngine.generate
    hot = lambda self, requests, _: honest(self, requests, alone_sampling(1.0, 16))  # noqa: E731
    from gagpo.agents.engines.base import Sampling as alone_sampling

    monkeypatch.setattr(TransformersEngine, "generate", hot)
    assert alone.check_greedy(machine).verdict == "failed"


def test_memory_beyond_the_plan_is_found_on_a_gpu(machine, monkeypatch):
    assert alone.check_memory(machine).verdict == "skipped"
    small = {"hidden_size": 28, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 400}
    for key, value in small.items():
        monkeypatch.setitem(LARGE, key, value)
    monkeypatch.setattr(Machine, "on_gpu", property(lambda _: True))
    for name, value in {"reset_peak_memory_stats": 0, "max_memory_allocated": 10**6, "memory_allocated": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    finding = alone.check_memory(machine)
    assert finding.verdict == "failed" and finding.values["measured"] == 10**6 and "gagpo plan" in finding.advice
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: finding.values["planned"])
    assert alone.check_memory(machine).verdict == "ok"
    monkeypatch.setattr(memory, "layer_bytes", lambda *_: 1e9)
    assert alone.check_memory(machine).verdict == "failed"


def test_devices_are_counted_named_and_tested(machine, gpus, monkeypatch):
    machine.device, machine.processes = "cuda", 2
    found = alone.check_device(machine)
    assert (found.verdict, found.summary) == ("ok", "2 x H100, 80 GB")
    gpus.free, gpus.major = 60e9, 7
    found = alone.check_device(machine)
    assert found.verdict == "warning" and "20.0 GB of cuda:0, 20.0 GB of cuda:1" in found.advice
    assert "no bfloat16" in found.advice
    monkeypatch.setattr(alone, "product_is_right", lambda device: device != "cuda:1")
    assert "cuda:1 computes wrong products" in alone.check_device(machine).summary
    gpus.count = 1
    assert alone.check_device(machine).summary == "1 GPUs for 2 processes"


def test_a_device_that_is_not_there_is_named(gpus):
    with pytest.raises(RuntimeError, match="4 processes and 2 GPUs: say --processes 2"):
        rank_device("cuda", Ranks(1, 4, 1, 4))
    with pytest.raises(SettingsError):
        rank_device("none", Ranks())
    assert rank_device("cpu", Ranks()) == "cpu"


def test_a_host_with_few_resources_gets_advice(machine, monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text("500000000\n")
    monkeypatch.setattr(alone, "GROUP_LIMITS", (limit, tmp_path / "none"))
    monkeypatch.setattr(alone, "SHARED", tmp_path / "none")
    monkeypatch.setattr(alone.resource, "getrlimit", lambda _: (1024, 1024))
    machine.processes = 2
    found = alone.check_host(machine)
    assert found.verdict == "warning" and "0.5 GB of memory free" in found.summary
    assert all(word in found.advice for word in ("container's memory limit", "--shm-size", "ulimit -n"))


def test_a_disk_that_corrupts_bytes_is_found(machine, monkeypatch, tmp_path):
    machine.runs = tmp_path / "not" / "yet"
    assert alone.check_disk(machine).verdict in ("ok", "warning") and not list(tmp_path.glob(".gagpo*"))
    monkeypatch.setattr(alone, "DISK_GB", 1e9)
    assert "name a larger disk" in alone.check_disk(machine).advice
    honest = alone.tempfile.NamedTemporaryFile

    def lossy(**options):
        file = honest(**options)
        read = file.read
        file.read = lambda size: bytes(reversed(read(size)))
        return file

    monkeypatch.setattr(alone.tempfile, "NamedTemporaryFile", lossy)
    assert "reads back changed" in alone.check_disk(machine).summary


@pytest.mark.slow
def test_a_run_that_does_not_learn_is_found(machine, monkeypatch):
    monkeypatch.setitem(CORRIDOR, "optimizer", {"learning_rate": 1e-12})
    assert alone.check_learning(machine).verdict == "failed"


# Ranks ----------------------------------------------------------------------------------------------------------------


class FakeRanks(Ranks):
    """Rank 0 of two, given the answers of the other one."""

    def __new__(cls, *others):
        return object.__new__(cls)

    def __init__(self, *others):
        super().__init__(0, 2, 0, 2)
        object.__setattr__(self, "others", others)

    def gathered(self, mine):
        return [mine, *self.others]


def test_two_ranks_on_one_gpu_are_found(machine, gpus, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    machine.device, machine.ranks = "cuda:1", FakeRanks(["cuda:0", "A", 2])
    found = together.check_ranks(machine)
    assert (found.verdict, found.summary) == ("ok", "2 ranks over cpu:gloo,cuda:nccl, on cuda:1, cuda:0")
    gpus.uuids = ["A", "A"]
    assert "two of them are on the GPU A" in together.check_ranks(machine).summary
    machine.ranks = FakeRanks(["cuda:0", "B", 3])
    assert "disagree on their number" in together.check_ranks(machine).summary


@pytest.mark.parametrize("call", ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single"])
def test_an_exchange_that_changes_a_number_is_named(machine, group, monkeypatch, call):
    assert together.check_exchanges(machine).verdict == "ok"
    honest = getattr(dist, call)

    def changed(tensor, *others, **options):
        done = honest(tensor, *others, **options)
        tensor.view(-1)[3] += 1
        return done

    monkeypatch.setattr(dist, call, changed)
    found = together.check_exchanges(machine)
    assert found.verdict == "failed" and "NCCL_P2P_DISABLE" in found.advice
    assert call.removesuffix("_single").replace("_", "-") in found.summary


def test_diverging_sharded_updates_are_found(machine, monkeypatch):
    assert together.check_sharded_update(machine).verdict == "ok"
    honest, alone_ranks = together.updated_weights, machine.ranks

    def apart(machine, ranks, precision):
        weights = honest(machine, ranks, precision)
        return {name: 1.01 * tensor for name, tensor in weights.items()} if ranks is alone_ranks else weights

    monkeypatch.setattr(together, "updated_weights", apart)
    assert together.check_sharded_update(machine).verdict == "failed"
    monkeypatch.setattr(together, "updated_weights", honest)
    machine.ranks = FakeRanks(1.0)
    monkeypatch.setattr(together, "updated_weights", lambda *_: together.weights_of(alone.load(machine)))
    monkeypatch.setattr(alone, "load", lambda machine: machine.tiny()[0], raising=False)
    machine.__dict__["model"] = Machine("cpu", "", "float32", machine.folder).model
    assert "gather different weights" in together.check_sharded_update(machine).summary
