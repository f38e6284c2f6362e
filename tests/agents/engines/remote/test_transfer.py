"""Weights on their way: whole or not at all as files, and by vLLM's own trainer side where devices carry them."""

import sys
import threading
import types
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file

from gagpo.agents.engines.remote import transfer as transfer_file
from gagpo.agents.engines.remote.transfer import DeviceTransfer, FileTransfer, make_transfer
from gagpo.agents.engines.remote.wire import ReplicaUnreachable
from gagpo.agents.engines.weights import WeightsError, named_tensors
from gagpo.envs.errors import InvalidArgument, MissingPackage


def stored(folder):
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found |= load_file(str(path))
    return found


def test_files_hold_every_parameter_once_in_the_servers_precision(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer_file, "FILE_BYTES", 10_000)
    way = FileTransfer(tiny[0], "bfloat16", tmp_path)
    way.take(named_tensors(tiny[0]), "run:1")
    assert len(list(tmp_path.rglob("*.safetensors"))) > 2
    held = stored(tmp_path)
    assert held.keys() == {name for name, _ in tiny[0].named_parameters()}
    for name, parameter in tiny[0].named_parameters():
        assert held[name].dtype == torch.bfloat16 and torch.equal(held[name], parameter.detach().bfloat16())
    way.take(named_tensors(tiny[0]), "run:2")
    assert [path.name for path in tmp_path.iterdir()] == ["run-2"]
    way.close()
    assert not list(tmp_path.iterdir())


def test_an_interrupted_write_leaves_the_last_version(tiny, tmp_path):
    way = FileTransfer(tiny[0], "float32", tmp_path)
    way.take(named_tensors(tiny[0]), "run:1")

    def broken():
        yield next(iter(named_tensors(tiny[0])))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        way.take(broken(), "run:2")
    assert [path.name for path in tmp_path.iterdir()] == ["run-1"] and len(stored(tmp_path)) > 5


def test_ways_that_the_device_does_not_have_are_refused(tiny, tmp_path):
    for kind in ("nccl", "ipc"):
        with pytest.raises(InvalidArgument, match="needs a model on a GPU"):
            make_transfer(kind, tiny[0], "float32", tmp_path)


def test_a_trainer_without_vllm_is_told(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingPackage, match=r"needs vLLM in the trainer's environment too.*or use transfer=file"):
        DeviceTransfer(tiny[0], "float32", "nccl")


class FakeVLLM:
    """The classes of vLLM's trainer side that are used, which note what they are told."""

    def __init__(self, monkeypatch):
        self.sent, self.connected, self.hang, self.failing = [], [], threading.Event(), False
        self.hanging = False
        names = ("base", "clients", "factory", "ipc_engine", "nccl_engine")
        package = "vllm.distributed.weight_transfer"
        modules = {name: types.ModuleType(f"{package}.{name}") for name in names}
        for path in ("vllm", "vllm.distributed", package):
            monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, f"{package}.{name}", module)
            setattr(sys.modules[package], name, module)
        fake = self

        @dataclass(frozen=True)
        class ParamMeta:
            name: str
            dtype: torch.dtype
            shape: tuple

        @dataclass
        class Init:
            rank: int
            packed: bool = True
            master_address: str = ""
            master_port: int = 0
            world_size: int = 0

        class Client:
            def __init__(self, url, timeout):
                self.url, self.timeout = url, timeout

        class Engine:
            def __init__(self, source, client):
                self.source, self.client = source, client

            def send_weights(self):
                if fake.failing:
                    raise RuntimeError("the peer is gone")
                if fake.hanging:
                    fake.hang.wait(60)
                meta = [(one.name, one.dtype, one.shape) for one in self.source.metadata()]
                pairs = [(name, tensor) for name, tensor in self.source]
                assert meta == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in pairs]
                fake.sent.append((self.client.url, {name: tensor.clone() for name, tensor in pairs}))

            def shutdown(self):
                fake.connected.append(("shutdown", self.client.url))

        class Factory:
            @staticmethod
            def trainer_init(info, *, client, source):
                fake.connected.append((info, client.url))
                return Engine(source, client)

        modules["base"].ParamMeta, modules["base"].WeightSource = ParamMeta, object
        modules["clients"].HTTPVLLMWeightSyncClient = Client
        modules["factory"].WeightTransferTrainerFactory = Factory
        modules["ipc_engine"].IPCTrainerInitInfo = modules["nccl_engine"].NCCLTrainerInitInfo = Init


class FakeClient:
    def __init__(self, url):
        self.url, self.orders = url, []

    def order(self, path, body, deadline):
        self.orders.append((path, body))

    def look_up(self, path, deadline):
        return {"world_size": 4}


def run(result):
    return result


def test_a_broadcast_goes_to_each_server_by_vllms_own_calls(tiny, monkeypatch):
    fake = FakeVLLM(monkeypatch)
    way = DeviceTransfer(tiny[0], "bfloat16", "nccl")
    clients = [FakeClient("http://127.0.0.1:1"), FakeClient("http://127.0.0.1:2")]
    for version in ("run:1", "run:2"):
        way.take(named_tensors(tiny[0]), version)
        assert way.send(clients, run, 10) == [None, None]
        for client in clients:
            assert client.orders[-1] == ("/update_weight_version", {"new_version": version})
    assert [url for url, _ in fake.sent] == [client.url for client in clients] * 2
    assert [url for _, url in fake.connected] == [client.url for client in clients]  # once each
    info = fake.connected[0][0]
    assert info.world_size == 5 and info.master_address == "127.0.0.1" and 0 < info.master_port < 2**16
    for name, parameter in tiny[0].named_parameters():
        assert torch.equal(fake.sent[-1][1][name], parameter.detach().bfloat16())
    way.close()
    assert [what for what, _ in fake.connected[2:]] == ["shutdown", "shutdown"]


def test_a_broadcast_that_hangs_or_fails_costs_that_server_alone(tiny, monkeypatch):
    fake = FakeVLLM(monkeypatch)
    way = DeviceTransfer(tiny[0], "float32", "ipc")
    way.take(named_tensors(tiny[0]), "run:1")
    clients = [FakeClient("http://127.0.0.1:1"), FakeClient("http://127.0.0.1:2")]
    fake.hanging = True
    (fault,) = way.send(clients[:1], run, 0.2)
    assert isinstance(fault, ReplicaUnreachable) and "took more than 0.2 s" in str(fault)
    fake.hanging, fake.failing = False, True
    (fault,) = way.send(clients[:1], run, 5)
    assert "failed: the peer is gone" in str(fault) and not clients[0].orders
    fake.failing = False
    assert way.send(clients, run, 5) == [None, None]
    assert clients[1].orders and fake.sent[-1][0] == clients[1].url
    fake.hang.set()


def test_tensors_of_another_model_are_refused(tiny, monkeypatch):
    FakeVLLM(monkeypatch)
    way = DeviceTransfer(tiny[0], "float32", "ipc")
    with pytest.raises(WeightsError, match="not the parameters of the engine's model"):
        way.take(list(named_tensors(tiny[0]))[1:], "run:1")
