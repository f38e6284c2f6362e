"""The steps of all ranks, every way in which they can end: in one process, whose channels are changed on the way."""

import threading
import types

import pytest
import torch
import torch.distributed as dist

from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import load_model
from gagpo.distributed.ranks import Ranks
from gagpo.planning.doctor import alone, sharded, together, transfer
from gagpo.planning.doctor.machine import Machine
from gagpo.runs.checkpoint import Saver, Snapshot


@pytest.fixture
def machine(tmp_path):
    return Machine("cpu", "transformers", "float32", tmp_path)


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class FakeRanks(Ranks):
    """Rank 0 of two, told what the other one says."""

    def __new__(cls, *others):
        return object.__new__(cls)

    def __init__(self, *others):
        super().__init__(0, 2, 0, 2)
        object.__setattr__(self, "others", others)

    def gathered(self, mine):
        return [mine, *self.others]


class FakeCards:
    """torch's current device, which each thread has for itself, and which is the first card where it was not set."""

    def __init__(self, monkeypatch, uuids=("A", "B"), claimable=True):
        self.local = threading.local()
        self.claimable = claimable
        monkeypatch.setattr(torch.cuda, "set_device", self.set_device)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(self.local, "index", 0))
        properties = {n: types.SimpleNamespace(uuid=uuid) for n, uuid in enumerate(uuids)}
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties[device.index])
        monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)

    def set_device(self, device):
        if self.claimable:
            self.local.index = getattr(device, "index", device)


def test_each_rank_has_a_card_of_its_own_in_every_thread(machine, monkeypatch):
    FakeCards(monkeypatch)
    machine.device, machine.ranks = "cuda:1", FakeRanks(["cuda:0", "A", 2])
    torch.cuda.set_device(1)
    found = together.check_ranks(machine)
    assert found.verdict == "ok" and found.summary == "2 ranks over cpu:gloo,cuda:nccl, on cuda:1, cuda:0"
    assert found.values["current"] == [1, 1]


def test_two_ranks_on_one_card_are_found(machine, monkeypatch):
    FakeCards(monkeypatch, ("A", "A"))
    machine.device, machine.ranks = "cuda:1", FakeRanks(["cuda:0", "A", 2])
    torch.cuda.set_device(1)
    found = together.check_ranks(machine)
    assert found.verdict == "failed" and "two of them are on the card A" in found.summary


def test_a_thread_that_stays_on_the_first_card_is_found(machine, monkeypatch):
    fake = FakeCards(monkeypatch)
    machine.device, machine.ranks = "cuda:1", FakeRanks(["cuda:0", "A", 2])
    torch.cuda.set_device(1)
    fake.claimable = False
    found = together.check_ranks(machine)
    assert found.verdict == "failed" and "the current device of its threads is [1, 0]" in found.summary


def test_ranks_that_count_differently_are_found(machine, group):
    machine.ranks = FakeRanks(["cpu", "", 3])
    assert "do not agree on how many" in together.check_ranks(machine).summary
    assert together.current_devices("cpu") == [None, None] and together.card_of("cpu") == ""


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(together, "BYTES", {True: 4096, False: 4096})
    monkeypatch.setattr(together, "HOST_BYTES", 100)


def test_exchanges_that_are_right_and_fast_are_well_and_slow_ones_a_warning(machine, group, quick, monkeypatch):
    monkeypatch.setattr(together, "SLOW", {True: -1.0, False: -1.0})
    assert together.check_collectives(machine).verdict == "ok"
    monkeypatch.setattr(together, "SLOW", {True: 1e9, False: 1e9})
    slow = together.check_collectives(machine)
    assert slow.verdict == "warning" and slow.advice.startswith("all-reduce, broadcast, all-gather slow: ")


@pytest.mark.parametrize("call", ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single"])
def test_an_exchange_that_changes_a_number_is_named(machine, group, quick, monkeypatch, call):
    honest = getattr(dist, call)

    def changed(tensor, *others, **options):
        done = honest(tensor, *others, **options)
        tensor.view(-1)[3] += 1
        return done

    monkeypatch.setattr(dist, call, changed)
    found = together.check_collectives(machine)
    name = {"all_gather_single": "all-gather", "reduce_scatter_single": "reduce-scatter"}.get(call)
    assert found.verdict == "failed" and (name or call.replace("_", "-")) in found.summary.partition(";")[0]
    assert "NCCL_P2P_DISABLE" in found.advice


def test_host_messages_that_change_are_named(machine, group, quick):
    class Lossy(Ranks):
        def gathered_bytes(self, mine):
            return [mine[1:] if mine else mine]

    machine.ranks = Lossy()
    assert together.check_collectives(machine).values["wrong"] == ["host messages"]


# Weights in parts -----------------------------------------------------------------------------------------------------


def test_updates_that_end_elsewhere_are_found(machine, monkeypatch):
    honest = sharded.trained
    assert sharded.check_float32(machine).verdict == "ok"

    def apart(machine, ranks, precision, offload=False):
        weights, held = honest(machine, ranks, precision, offload)
        return ({name: 1.01 * tensor for name, tensor in weights.items()} if ranks is machine.ranks else weights), held

    monkeypatch.setattr(sharded, "trained", apart)
    found = sharded.check_bfloat16(machine)
    assert found.verdict == "failed" and found.values["apart"] > 0.1 and found.name == "bfloat16 update"


def test_ranks_that_gather_different_weights_are_found(machine, monkeypatch):
    start = sharded._weights(machine.tiny()[0])
    monkeypatch.setattr(sharded, "trained", lambda *_: (start, 2_000_000))
    machine.ranks = FakeRanks(1.0)
    machine.__dict__["model"] = machine.model if "model" in machine.__dict__ else None
    found = sharded.check_offload(machine)
    assert found.verdict == "failed" and "gather different weights" in found.summary


def test_what_offloading_leaves_on_a_card_is_told(machine, monkeypatch):
    start = sharded._weights(machine.tiny()[0])
    monkeypatch.setattr(sharded, "trained", lambda *_: (start, 2_000_000))
    monkeypatch.setattr(Machine, "on_card", property(lambda _: True))
    assert "2.0 MB stay on the card" in sharded.check_offload(machine).summary


def test_weights_that_change_on_their_way_are_named(machine, group, monkeypatch):
    assert sharded.check_gathering(machine).verdict == "ok"
    honest = sharded.buckets

    def changed(buffer, tensors, dtype):
        for bucket in honest(buffer, tensors, dtype):
            buffer[0] += 1
            yield bucket

    monkeypatch.setattr(sharded, "buckets", changed)
    found = sharded.check_gathering(machine)
    assert found.verdict == "failed" and "differs from what was sharded" in found.summary


def test_a_checkpoint_that_is_read_otherwise_is_named(machine, tmp_path, monkeypatch):
    model, tokenizer = machine.tiny()
    optimizer = sharded._gentle(model)
    sharded._updated(machine, Ranks(), model, optimizer, "float32")
    saver = Saver(tmp_path / "checkpoints", tokenizer)
    saver.save(1, Snapshot.of(model, optimizer, {"iteration": 1}), keep=1)
    saver.wait()
    weights = {name: tensor.clone() for name, tensor in sharded._weights(model).items()}
    names = dict(model.named_parameters())
    states = {(n, "exp_avg"): optimizer.state[names[n]]["exp_avg"].clone() for n in list(weights)[:2]}
    assert sharded._read_alone(machine, tmp_path / "checkpoints", weights, states) == []
    first, second = list(weights)[:2]
    weights[first].view(-1)[0] += 1
    states[second, "exp_avg"].view(-1)[0] += 1
    assert sharded._read_alone(machine, tmp_path / "checkpoints", weights, states) == [first, f"exp_avg of {second}"]


# Engines --------------------------------------------------------------------------------------------------------------


class FakeEngine:
    """Notes what it is asked for."""

    def __init__(self):
        self.done, self.fail = [], None

    def load_weights(self, tensors):
        self.done.append(("load", len(list(tensors))))
        if self.fail:
            raise self.fail

    def __getattr__(self, name):
        return lambda: self.done.append(name)


WAYS = {
    "file": (transfer.check_files, {"gpus": [1], "placement": "separate"}),
    "nccl": (transfer.check_broadcast, {"gpus": [1], "placement": "separate"}),
    "ipc": (transfer.check_shared_memory, {"placement": "colocated"}),
}


@pytest.fixture
def served(machine, monkeypatch):
    """A card's machine with vLLM's package, and an engine that notes what it was made with."""
    engine, asked = FakeEngine(), {}

    def make_engine(name, model, tokenizer, **options):
        asked.update(options, name=name)
        return engine

    monkeypatch.setattr(transfer.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(transfer, "make_engine", make_engine)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(Machine, "on_card", property(lambda _: True))
    return engine, asked


@pytest.mark.parametrize("way", WAYS)
def test_weights_go_to_an_engine_on_its_own_card_each_way(machine, served, way):
    engine, asked = served
    check, wanted = WAYS[way]
    found = check(machine)
    assert found.verdict == "ok" and found.name == f"weights by {way}"
    assert asked["transfer"] == way and asked["replicas"] == 1 and asked["name"] == "vllm-server"
    assert {key: asked[key] for key in wanted} == wanted and asked["start_deadline"] < 300
    slept = ["sleep", "wake"] if way == "ipc" else []
    assert engine.done == [*slept, ("load", 38), "close"]


def test_a_server_is_closed_where_the_weights_do_not_arrive(machine, served):
    engine, _ = served
    engine.fail = RuntimeError("the copy is not the model")
    with pytest.raises(RuntimeError, match="not the model"):
        transfer.check_files(machine)
    assert engine.done[-1] == "close"


def test_ways_that_cannot_be_asked_here_are_left_out(machine, served, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert transfer.check_broadcast(machine).summary.startswith("one card")
    monkeypatch.setattr(Machine, "on_card", property(lambda _: False))
    assert transfer.check_shared_memory(machine).summary.startswith("this way is between cards")
    monkeypatch.setattr(transfer.importlib.util, "find_spec", lambda _: None)
    assert transfer.check_files(machine).summary.startswith("vLLM is not installed")


def test_an_engine_in_this_process_is_compared_with_the_policy_in_parts(machine, group, monkeypatch):
    """vLLM's, which reads the policy of all ranks and needs no numbers of its own."""
    made = {}

    class Reads:
        def __init__(self, model, read):
            self.model, self.read = model, read

        def load_weights(self, tensors):
            assert len(list(tensors)) == 38

        def close(self):
            made["closed"] = True

    def make_engine(name, model, tokenizer, dtype, read=None, **options):
        made.update(options, read=read, meta=next(model.parameters()).is_meta)
        return Reads(model, read)

    monkeypatch.setattr(alone, "make_engine", make_engine)
    monkeypatch.setattr(alone, "log_probability_gap", lambda model, engine, read: 0.25)
    machine.model  # noqa: B018  made while there is one rank
    machine.ranks, machine.engine, machine.dtype = FakeRanks(None), "vllm", "bfloat16"
    monkeypatch.setattr(alone, "shard", lambda model, ranks, *_: sharded.shard(model, Ranks(), "float32"))
    found = alone.check_parity(machine)
    assert found.verdict == "ok" and made["meta"] and made["closed"] and made["read"] is not None


def test_the_tiny_model_is_made_once_for_all(machine):
    first = dict(named_tensors(machine.tiny()[0]))
    again = dict(named_tensors(load_model(machine.model)))
    assert all(torch.equal(first[name], again[name]) for name in first)
