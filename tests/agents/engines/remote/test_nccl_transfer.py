"""Weights by vLLM's transfer engine: its calls, one broadcast to all servers, and servers that fail.

The sending side of vLLM is imitated, because NCCL needs GPUs: tensors go through a file in place of a broadcast.
"""

import dataclasses
import json
import sys
import threading

import pytest
import torch
from safetensors.torch import save_file

from gagpo.agents.engines.remote import nccl_transfer
from gagpo.agents.engines.remote.client import Client
from gagpo.agents.engines.remote.nccl_transfer import NcclTransfer, VLLMClasses, address_towards
from gagpo.agents.engines.remote.options import VLLMOptions
from gagpo.agents.engines.remote.replicas import ReplicaRouter
from gagpo.agents.engines.remote.server import ServerPlan, arguments
from gagpo.base.errors import MissingPackage
from gagpo.model.weights import WeightsError, named_tensors
from tests.agents.engines.remote.fake_server import FakeServer, serving
from tests.rejections import rejects


@dataclasses.dataclass
class Meta:
    name: str
    dtype: torch.dtype
    shape: tuple


class Source:
    """vLLM's base class of what is sent."""


@dataclasses.dataclass
class Info:
    rank: int
    master_address: str
    master_port: int
    world_size: int


class Sender:
    """Does what vLLM's sender does: metadata, start, update while it broadcasts, finish.

    sent: the names of all tensors that were sent.
    """

    folder = None
    hangs = False
    sent = None
    on_its_way = staticmethod(lambda: None)

    def __init__(self, info, client, source):
        self.info, self.client, self.source, self.count = info, client, source, 0
        client.init_weight_transfer_engine({**dataclasses.asdict(info), "rank_offset": 1})

    def send_weights(self):
        metadata = self.source.metadata()
        self.client.start_weight_update()
        tensors = dict(self.source)
        self.sent.extend(tensors)
        self.on_its_way()
        if self.hangs:
            threading.Event().wait(30)
        assert [(meta.name, meta.dtype, meta.shape) for meta in metadata] == [
            (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()
        ]
        self.count += 1
        path = self.folder / f"{id(self)}-{self.count}.safetensors"
        save_file(tensors, str(path))
        self.client.update_weights({"path": str(path)})
        self.client.finish_weight_update()

    def shutdown(self):
        self.client.shutdown_weight_transfer_engine()


class Factory:
    @staticmethod
    def trainer_init(info, *, client, source):
        return Sender(info, client, source)


class NcclServer(FakeServer):
    """A server with two workers, which joins a group of processes in ``init``."""

    def look_up(self, path):
        return 200, json.dumps({"world_size": 2}) if path == "/get_world_size" else ""

    def order(self, path, body):
        if path == "/init_weight_transfer_engine":
            self.orders.append(path)
            self.info = body["init_info"]
            return 200, "{}"
        if path == "/finish_weight_update":
            self.orders.append(path)
            loading, self.loading = self.loading, None
            self.take(loading, self.version)
            return 200, "{}"
        return super().order(path, body)


@pytest.fixture
def servers(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Sender, "folder", tmp_path)
    monkeypatch.setattr(Sender, "sent", [])
    with serving(*tiny, count=2, kind=NcclServer) as running:
        yield running


@pytest.fixture
def router():
    router = ReplicaRouter({}, deadline=20, health_timeout=20)
    router.start()
    yield router
    router.close()


def transfer_of(model, router, deadline=20.0, dtype="float32"):
    classes = VLLMClasses(Source, Meta, Info, Factory)
    return NcclTransfer(model, dtype, torch.device("cpu"), router.run, deadline, classes)


@pytest.mark.parametrize("count", [1, 2])
def test_a_tensor_is_sent_once_to_all_servers_of_one_group(tiny, servers, router, count):
    way, clients = transfer_of(tiny[0], router), [Client(fake.url, 20) for fake in servers[:count]]
    for version in ("run:1", "run:2"):
        with torch.no_grad():
            tiny[0].lm_head.weight.add_(1.0)
        assert way.update(named_tensors(tiny[0]), version, clients) == [None] * count
        for fake in servers[:count]:
            assert fake.version == version
            for name, parameter in tiny[0].named_parameters():
                assert torch.equal(dict(fake.model.named_parameters())[name], parameter)
    assert way.bytes == sum(parameter.nbytes for parameter in tiny[0].parameters())
    assert Sender.sent == 2 * [name for name, _ in tiny[0].named_parameters()]
    for number, fake in enumerate(servers[:count]):
        assert fake.orders.count("/init_weight_transfer_engine") == 1 and fake.orders.count("/start_weight_update") == 2
        assert (fake.info["world_size"], fake.info["rank_offset"]) == (1 + 2 * count, 1 + 2 * number)
        assert fake.info["master_address"] == "127.0.0.1"
    assert len({fake.info["master_port"] for fake in servers[:count]}) == 1
    way.close()
    assert all(fake.orders[-1] == "/shutdown_weight_transfer_engine" for fake in servers[:count])


def test_a_dead_server_is_left_out_and_joins_a_later_group(tiny, servers, router):
    way, clients = transfer_of(tiny[0], router), [Client(fake.url, 20) for fake in servers]
    servers[0].silent = True
    servers[0].free.set()  # it drops every connection
    passed = []
    tensors = ((passed.append(name) or (name, tensor)) for name, tensor in named_tensors(tiny[0]))
    first, second = way.update(tensors, "run:1", clients)
    assert servers[0].url in str(first) and second is None and servers[1].version == "run:1"
    assert len(passed) == len(list(tiny[0].named_parameters())) and servers[1].info["world_size"] == 3
    servers[0].silent = False
    assert way.update(named_tensors(tiny[0]), "run:2", clients) == [None, None]
    assert [fake.orders.count("/init_weight_transfer_engine") for fake in servers] == [1, 2]
    assert servers[1].info["world_size"] == 5 and not any(client.hangs for client in clients)


def test_a_server_that_dies_on_the_way_takes_the_group_along_and_the_next_update_makes_another(
    tiny, servers, router, monkeypatch
):
    way, clients = transfer_of(tiny[0], router), [Client(fake.url, 20) for fake in servers]

    def die():
        servers[0].silent = True
        servers[0].free.set()

    monkeypatch.setattr(Sender, "on_its_way", staticmethod(die))
    first, second = way.update(named_tensors(tiny[0]), "run:1", clients)
    assert "lost a server" in str(second) and servers[0].url in str(first)
    assert all(client.hangs for client in clients) and servers[1].version == "default"
    monkeypatch.setattr(Sender, "on_its_way", staticmethod(lambda: None))
    servers[0].silent = False
    assert way.update(named_tensors(tiny[0]), "run:2", clients) == [None, None]
    assert [fake.version for fake in servers] == ["run:2"] * 2 and not any(client.hangs for client in clients)


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"world_size": true}', '{"world_size": 0}'])
def test_a_server_that_does_not_count_its_workers_is_left_out(tiny, servers, router, monkeypatch, answer):
    monkeypatch.setattr(servers[0], "look_up", lambda path: (200, answer))
    clients = [Client(fake.url, 20) for fake in servers]
    first, second = transfer_of(tiny[0], router).update(named_tensors(tiny[0]), "run:1", clients)
    assert "get_world_size: answers" in str(first) and second is None


def test_a_broadcast_that_hangs_ends_at_the_deadline(tiny, servers, router, monkeypatch):
    monkeypatch.setattr(Sender, "hangs", True)
    clients = [Client(fake.url, 20) for fake in servers]
    faults = transfer_of(tiny[0], router, deadline=1.0).update(named_tensors(tiny[0]), "run:1", clients)
    assert all("took more than 1 s" in str(fault) for fault in faults)
    assert all(client.hangs for client in clients)


def test_a_rank_that_updates_no_server_reads_all_tensors(tiny, router):
    passed = []
    tensors = ((passed.append(name) or (name, tensor)) for name, tensor in named_tensors(tiny[0]))
    assert transfer_of(tiny[0], router).update(tensors, "run:1", []) == []
    assert len(passed) == len(list(tiny[0].named_parameters()))
    with rejects(WeightsError, "not sent"):
        transfer_of(tiny[0], router).update([], "run:1", [])


def test_options_and_command_name_the_backend(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "num_hidden_layers": 1}')
    plan = ServerPlan(str(tmp_path), devices=(0,), backend="nccl")
    assert '{"backend": "nccl"}' in arguments(plan)
    assert VLLMOptions(transfer="nccl", gpus=[4]).transfer == "nccl"
    assert VLLMOptions(transfer="nccl", urls=["http://a:1"]).transfer == "nccl"
    with pytest.raises(ValueError, match="transfer=nccl connects different GPUs"):
        VLLMOptions(transfer="nccl")


def test_without_vllm_the_error_names_the_extra(tiny, router, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with rejects(
        MissingPackage,
        "vLLM",
        "pip install -c constraints.txt -e '.[vllm]'",
        "engine.options.transfer=files",
        key="engine.options.transfer",
    ):
        NcclTransfer(tiny[0], "float32", torch.device("cpu"), router.run, 5.0)


def test_the_address_towards_a_local_server_is_loopback():
    assert address_towards("http://127.0.0.1:8000") == "127.0.0.1"
    assert nccl_transfer.BACKEND == "nccl"
