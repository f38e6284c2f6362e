"""Weights on their way: whole or not at all as files, bucket by bucket where devices carry them, and never kept."""

import asyncio
import base64
import pickle
import sys
import threading
import types
import weakref
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file

from gagpo.agents.engines.remote import device_transfer, transfer
from gagpo.agents.engines.remote.device_transfer import BroadcastTransfer, SharedMemoryTransfer
from gagpo.agents.engines.remote.kinds.vllm import VLLMServers
from gagpo.agents.engines.remote.transfer import FileTransfer
from gagpo.agents.engines.remote.wire import ReplicaError, ReplicaUnreachable
from gagpo.agents.engines.weights import WeightsError, named_tensors
from gagpo.base.errors import InvalidArgument, MissingPackage

CPU = torch.device("cpu")


class FakeClient:
    """A server as the transfers see it, which notes what it is told; it fails at the path that it is told to."""

    def __init__(self, url="http://127.0.0.1:1", fails=""):
        self.url, self.orders, self.fails = url, [], fails
        self.taken = {}
        self.heard = lambda path, body: None

    async def order(self, path, body, deadline):
        if path == self.fails:
            raise ReplicaUnreachable("the peer is gone")
        self.orders.append((path, body))
        self.heard(path, body)

    async def look_up(self, path, deadline):
        return {"world_size": 4}


def stored(folder):
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found |= load_file(str(path))
    return found


def test_files_hold_every_parameter_once_in_the_servers_precision(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "FILE_BYTES", 10_000)
    way, client = FileTransfer(tiny[0], "bfloat16", tmp_path), FakeClient()
    assert way.send(named_tensors(tiny[0]), "run:1", [client], asyncio.run, 5) == [None]
    assert len(list(tmp_path.rglob("*.safetensors"))) > 2
    held = stored(tmp_path)
    assert held.keys() == {name for name, _ in tiny[0].named_parameters()}
    for name, parameter in tiny[0].named_parameters():
        assert held[name].dtype == torch.bfloat16 and torch.equal(held[name], parameter.detach().bfloat16())
    way.send(named_tensors(tiny[0]), "run:2", [], asyncio.run, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["run-2"]
    client.orders.clear()
    assert way.send(None, "run:2", [client], asyncio.run, 5) == [None]  # once more, for one that came back
    paths = [body["update_info"]["path"] for path, body in client.orders if path == "/update_weights"]
    assert paths == [str(path) for path in sorted(tmp_path.rglob("*.safetensors"))]
    way.close()
    assert not list(tmp_path.iterdir())


def test_an_interrupted_write_leaves_the_last_version(tiny, tmp_path):
    way = FileTransfer(tiny[0], "float32", tmp_path)
    way.send(named_tensors(tiny[0]), "run:1", [], asyncio.run, 5)

    def broken():
        yield next(iter(named_tensors(tiny[0])))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        way.send(broken(), "run:2", [], asyncio.run, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["run-1"] and len(stored(tmp_path)) > 5


def test_ways_that_the_device_does_not_have_are_refused(tiny, tmp_path):
    for kind in ("nccl", "ipc"):
        with pytest.raises(InvalidArgument, match="needs a model on a GPU"):
            VLLMServers().make_transfer(kind, tiny[0], "float32", CPU, tmp_path)


def test_each_way_is_made_on_the_device_of_the_rank(tiny, tmp_path, monkeypatch):
    FakeVLLM(monkeypatch)
    for kind, made in (("nccl", BroadcastTransfer), ("ipc", SharedMemoryTransfer)):
        way = VLLMServers().make_transfer(kind, tiny[0], "float32", torch.device("cuda:3"), tmp_path)
        assert type(way) is made and way._device == torch.device("cuda:3")


def test_a_trainer_without_vllm_is_told(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingPackage, match=r"needs vLLM in the trainer's environment too.*or use transfer=file"):
        BroadcastTransfer(tiny[0], "float32", CPU)


class Gathered:
    """Tensors as ranks gather them: new ones each, whose memory is counted for as long as anybody holds them."""

    def __init__(self, model):
        self.model, self.alive, self.most, self.read = model, 0, 0, 0

    def __iter__(self):
        for name, parameter in self.model.named_parameters():
            tensor = parameter.detach().clone()
            size = tensor.nbytes
            self.alive += size
            self.most = max(self.most, self.alive)
            weakref.finalize(tensor, self.freed, size)
            self.read += 1
            yield name, tensor
            del tensor

    def freed(self, size):
        self.alive -= size


def largest(model):
    return max(parameter.nbytes for parameter in model.parameters())


class SharedMemory:
    """Buffers that another process could open, and a server that reads them as vLLM does: at once, and a copy."""

    def __init__(self):
        self.buffers = {}

    def export(self, buffer):
        self.buffers["handle"] = weakref.ref(buffer)
        return "GPU-of-this-rank", ("handle",)

    def server(self, **more):
        client = FakeClient(**more)

        def heard(path, body):
            if path != "/update_weights":
                return
            info = body["update_info"]
            ((uuid, (handle,)),) = pickle.loads(base64.b64decode(info["ipc_handles_pickled"])).items()
            assert uuid == "GPU-of-this-rank" and len(info["names"]) == len(info["dtype_names"])
            at, buffer = 0, self.buffers[handle]()
            for name, dtype, shape, size in zip(
                info["names"], info["dtype_names"], info["shapes"], info["tensor_sizes"], strict=True
            ):
                client.taken[name] = buffer[at : at + size].clone().view(getattr(torch, dtype)).view(shape)
                at += size

        client.heard = heard
        return client


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shared_memory_is_one_buffer_filled_again_and_again(tiny, monkeypatch, dtype):
    monkeypatch.setattr(device_transfer, "BUCKET_BYTES", 3000)
    shared, model = SharedMemory(), tiny[0]
    way = SharedMemoryTransfer(model, dtype, CPU, shared.export)
    for version in ("run:1", "run:2"):
        gathered, server = Gathered(model), shared.server()
        assert way.send(gathered, version, [server], asyncio.run, 5) == [None]
        for name, parameter in model.named_parameters():
            assert torch.equal(server.taken[name], parameter.detach().to(getattr(torch, dtype)))
        paths = [path for path, _ in server.orders]
        assert (
            paths[:2] == ["/init_weight_transfer_engine", "/start_weight_update"] and paths.count("/update_weights") > 2
        )
        assert server.orders[-1] == ("/finish_weight_update", {"weight_version": version})
        assert gathered.most <= 2 * largest(model) and gathered.alive == 0  # one, and the next that is gathered
        assert shared.buffers["handle"]() is None  # nothing of the model stays on the card


def test_a_server_that_fails_costs_no_other_and_no_rank_its_gathering(tiny, monkeypatch):
    monkeypatch.setattr(device_transfer, "BUCKET_BYTES", 3000)
    shared, gathered = SharedMemory(), Gathered(tiny[0])
    servers = [shared.server(fails="/update_weights"), shared.server()]
    faults = SharedMemoryTransfer(tiny[0], "float32", CPU, shared.export).send(
        gathered, "run:1", servers, asyncio.run, 5
    )
    assert isinstance(faults[0], ReplicaUnreachable) and faults[1] is None
    assert len(servers[1].taken) == gathered.read == len(list(tiny[0].named_parameters()))
    alone = Gathered(tiny[0])
    SharedMemoryTransfer(tiny[0], "float32", CPU, shared.export).send(alone, "run:2", [], asyncio.run, 5)
    assert alone.read == gathered.read  # a rank without servers takes part


def test_what_was_gathered_cannot_be_sent_again(tiny, monkeypatch):
    FakeVLLM(monkeypatch)
    for way in (SharedMemoryTransfer(tiny[0], "float32", CPU), BroadcastTransfer(tiny[0], "float32", CPU)):
        (fault,) = way.send(None, "run:1", [FakeClient()], asyncio.run, 5)
        assert isinstance(fault, ReplicaError) and "at the next update" in str(fault) and not way.keeps


class CurrentDevices:
    """torch's current device, which each thread has for itself and which is the first GPU where it was not set."""

    def __init__(self, monkeypatch):
        self.local = threading.local()
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(self.local, "index", device.index))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(self.local, "index", 0))


class FakeVLLM:
    """The classes of vLLM's trainer side that are used, which note what they are told."""

    def __init__(self, monkeypatch):
        self.sent, self.connected, self.hang, self.failing = [], [], threading.Event(), False
        self.hanging, self.devices = False, []
        CurrentDevices(monkeypatch)
        names = ("base", "factory", "nccl_engine")
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

        class Engine:
            def __init__(self, source, client):
                self.source, self.client = source, client

            def send_weights(self):
                if fake.failing:
                    raise RuntimeError("the peer is gone")
                if fake.hanging:
                    fake.hang.wait(60)
                fake.devices.append(torch.cuda.current_device())
                meta = [(one.name, one.dtype, one.shape) for one in self.source.metadata()]
                held = {}
                for place, (name, tensor) in enumerate(self.source):  # as vLLM's producer: read, and let go
                    assert meta[place] == (name, tensor.dtype, tuple(tensor.shape))
                    held[name] = tensor.clone()
                    del tensor
                assert len(held) == len(meta)
                self.client.start_weight_update()
                self.client.update_weights({"names": list(held)})
                self.client.finish_weight_update()
                fake.sent.append(held)

            def shutdown(self):
                self.client.shutdown_weight_transfer_engine()

        class Factory:
            @staticmethod
            def trainer_init(info, *, client, source):
                fake.connected.append(info)
                client.init_weight_transfer_engine({"port": info.master_port})
                return Engine(source, client)

        modules["base"].ParamMeta, modules["base"].WeightSource = ParamMeta, object
        modules["factory"].WeightTransferTrainerFactory = Factory
        modules["nccl_engine"].NCCLTrainerInitInfo = Init


def test_a_broadcast_goes_to_each_server_by_vllms_own_calls(tiny, monkeypatch):
    """They are asked by our client, which heeds no proxy."""
    fake = FakeVLLM(monkeypatch)
    way = BroadcastTransfer(tiny[0], "bfloat16", CPU)
    clients = [FakeClient("http://127.0.0.1:1"), FakeClient("http://127.0.0.1:2")]
    for version in ("run:1", "run:2"):
        assert way.send(named_tensors(tiny[0]), version, clients, asyncio.run, 10) == [None, None]
        for client in clients:
            assert client.orders[-1] == ("/update_weight_version", {"new_version": version})
    update = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/update_weight_version"]
    for client in clients:  # connected once each
        assert [path for path, _ in client.orders] == ["/init_weight_transfer_engine", *update, *update]
    assert len(fake.sent) == 4 and len(fake.connected) == 2
    assert clients[0].orders[2][1] == {"update_info": {"names": [name for name, _ in tiny[0].named_parameters()]}}
    info = fake.connected[0]
    assert info.world_size == 5 and info.master_address == "127.0.0.1" and 0 < info.master_port < 2**16
    for name, parameter in tiny[0].named_parameters():
        assert torch.equal(fake.sent[-1][name], parameter.detach().bfloat16())
    way.close()
    assert [client.orders[-1][0] for client in clients] == ["/shutdown_weight_transfer_engine"] * 2


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_the_thread_of_a_broadcast_is_on_the_device_of_its_rank(tiny, monkeypatch, rank):
    fake = FakeVLLM(monkeypatch)
    way = BroadcastTransfer(tiny[0], "float32", CPU)
    begun = device_transfer.Broadcast.begin

    def on_the_rank(self, deadline):  # the thread's device alone: there is no GPU to hold a tensor
        self.device = torch.device("cuda", rank)
        begun(self, deadline)

    monkeypatch.setattr(device_transfer.Broadcast, "begin", on_the_rank)
    assert way.send(named_tensors(tiny[0]), "run:1", [FakeClient()], asyncio.run, 5) == [None]
    assert fake.devices == [rank]


def test_a_broadcast_that_hangs_or_fails_costs_that_server_alone(tiny, monkeypatch):
    fake = FakeVLLM(monkeypatch)
    way = BroadcastTransfer(tiny[0], "float32", CPU)
    clients = [FakeClient("http://127.0.0.1:1"), FakeClient("http://127.0.0.1:2")]
    fake.hanging, gathered = True, Gathered(tiny[0])
    (fault,) = way.send(gathered, "run:1", clients[:1], asyncio.run, 0.2)
    assert isinstance(fault, ReplicaUnreachable) and "took more than 0.2 s" in str(fault)
    assert gathered.read == len(list(tiny[0].named_parameters()))  # other ranks gather with this one
    fake.hanging, fake.failing = False, True
    (fault,) = way.send(named_tensors(tiny[0]), "run:2", clients[:1], asyncio.run, 5)
    assert "failed: the peer is gone" in str(fault)
    assert "/update_weights" not in {path for path, _ in clients[0].orders}
    fake.failing = False
    assert way.send(named_tensors(tiny[0]), "run:3", clients, asyncio.run, 5) == [None, None]
    assert all("/update_weights" in {path for path, _ in client.orders} for client in clients)
    fake.hang.set()


def test_a_broadcast_holds_a_few_tensors_and_keeps_none(tiny, monkeypatch):
    FakeVLLM(monkeypatch)
    gathered, clients = Gathered(tiny[0]), [FakeClient(f"http://127.0.0.1:{n}") for n in (1, 2)]
    way = BroadcastTransfer(tiny[0], "float32", CPU)
    assert way.send(gathered, "run:1", clients, asyncio.run, 10) == [None, None]
    assert gathered.most <= (device_transfer.HELD + 3) * largest(tiny[0]) and gathered.alive == 0


@pytest.mark.parametrize("kind", ["file", "ipc", "nccl"])
def test_tensors_of_another_model_are_refused(tiny, monkeypatch, tmp_path, kind):
    FakeVLLM(monkeypatch)
    way = {
        "file": lambda: FileTransfer(tiny[0], "float32", tmp_path),
        "ipc": lambda: SharedMemoryTransfer(tiny[0], "float32", CPU, SharedMemory().export),
        "nccl": lambda: BroadcastTransfer(tiny[0], "float32", CPU),
    }[kind]()
    with pytest.raises(WeightsError, match="1 parameters were not sent to the engine"):
        way.send(list(named_tensors(tiny[0]))[1:], "run:1", [], asyncio.run, 5)
    odd = [(name, tensor[:1]) for name, tensor in named_tensors(tiny[0])]
    with pytest.raises(WeightsError, match="in the engine"):
        way.send(odd, "run:1", [], asyncio.run, 5)
