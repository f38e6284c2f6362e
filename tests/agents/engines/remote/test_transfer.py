"""Weights are sent as files: complete or not at all, each tensor once, in the servers' precision, once per machine."""

import asyncio
import inspect
import json
import threading
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from gagpo.agents.engines.peers import NoPeers, from_first_on_machine
from gagpo.agents.engines.remote import engine, transfer
from gagpo.agents.engines.remote.adapter_transfer import AdapterTransfer
from gagpo.agents.engines.remote.client import ReplicaUnreachable
from gagpo.agents.engines.remote.nccl_transfer import NcclTransfer
from gagpo.agents.engines.remote.transfer import FileTransfer, Transfer
from gagpo.base.background import JobTimeout
from gagpo.distributed.errors import RankFailed
from gagpo.model.weights import WeightsError, named_tensors
from tests.agents.engines.remote.threads import as_ranks
from tests.rejections import rejects


class FakeClient:
    """Records its calls and the tensors of the files that it is told to load, and fails at one path."""

    def __init__(self, fails=""):
        self.url, self.orders, self.fails, self.loaded = "http://127.0.0.1:1", [], fails, {}

    async def post(self, path, body, deadline):
        if path == self.fails:
            raise ReplicaUnreachable("the peer is gone")
        self.orders.append((path, body))
        if path == "/update_weights":
            self.loaded |= load_file(body["update_info"]["path"])

    @property
    def files(self):
        return [body["update_info"]["path"] for path, body in self.orders if path == "/update_weights"]


def transfer_of(model, folder, dtype="float32", peers=None, deadline=5.0):
    return FileTransfer(model, dtype, folder, peers or NoPeers(), asyncio.run, deadline)


def test_a_server_gets_every_parameter_in_its_precision_and_the_files_are_removed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "FILE_BYTES", 10_000)
    way, client = transfer_of(tiny[0], tmp_path, "bfloat16"), FakeClient()
    assert way.update(named_tensors(tiny[0]), "run:1", [client]) == [None]
    assert len(client.files) > 2 and client.files == sorted(client.files)
    assert client.loaded.keys() == {name for name, _ in tiny[0].named_parameters()}
    assert way.bytes == sum(tensor.nbytes for tensor in client.loaded.values())
    for name, parameter in tiny[0].named_parameters():
        assert client.loaded[name].dtype == torch.bfloat16
        assert torch.equal(client.loaded[name], parameter.detach().bfloat16())
    assert client.orders[-1] == ("/finish_weight_update", {"weight_version": "run:1"})
    assert [path.name for path in tmp_path.iterdir()] == ["run-1"]
    way.release()
    assert not list(tmp_path.iterdir())
    assert way.update(named_tensors(tiny[0]), "run:2", [client, FakeClient()]) == [None, None]
    way.close()
    assert not list(tmp_path.iterdir())


def test_a_server_that_fails_finishes_no_update_and_the_others_do(tiny, tmp_path):
    broken, sound = FakeClient(fails="/update_weights"), FakeClient()
    first, second = transfer_of(tiny[0], tmp_path).update(named_tensors(tiny[0]), "run:1", [broken, sound])
    assert isinstance(first, ReplicaUnreachable) and second is None
    assert "/finish_weight_update" not in {path for path, _ in broken.orders}


def test_an_interrupted_write_leaves_nothing(tiny, tmp_path):
    def broken():
        yield next(iter(named_tensors(tiny[0])))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer_of(tiny[0], tmp_path).update(broken(), "run:2", [])
    assert not list(tmp_path.iterdir())


def test_a_disk_that_hangs_is_an_error_at_the_deadline(tiny, tmp_path, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(transfer, "save_file", lambda *_, **__: released.wait(30))
    with rejects(JobTimeout, "0.2", where="writing weights for the servers"):
        transfer_of(tiny[0], tmp_path, deadline=0.2).update(named_tensors(tiny[0]), "run:1", [])
    released.set()


def test_the_ranks_of_a_machine_name_the_same_files_which_its_first_rank_writes(tiny, tmp_path):
    """Four ranks on two machines: each machine has one copy, whoever its servers belong to."""
    clients = [FakeClient() for _ in range(4)]

    def update(peers):
        folder = tmp_path / f"machine-{peers.rank // 2}" if peers.local == 0 else None
        way = transfer_of(tiny[0], folder, peers=peers)
        assert way.update(named_tensors(tiny[0]), "run:1", [clients[peers.rank]]) == [None]
        return way.bytes

    (size,) = set(as_ranks(4, update, per_machine=2))
    assert clients[0].files == clients[1].files != clients[2].files == clients[3].files
    written = list(tmp_path.rglob("*.safetensors"))
    assert len(written) == 2 * len(clients[0].files) and size == sum(
        tensor.nbytes for tensor in clients[0].loaded.values()
    )


def test_a_rank_that_cannot_write_still_reads_all_tensors_and_ends_the_others(tiny, tmp_path):
    (tmp_path / "file").write_text("no folder")
    counts = []

    def update(peers):
        read = []
        way = transfer_of(tiny[0], tmp_path / "file" if peers.local == 0 else None, peers=peers)
        try:
            way.update((read.append(name) or (name, tensor) for name, tensor in named_tensors(tiny[0])), "run:1", [])
        finally:
            counts.append(len(read))

    errors = as_ranks(2, update, raises=True)
    assert isinstance(errors[0], OSError) and isinstance(errors[1], RankFailed)
    assert counts == [len(list(tiny[0].named_parameters()))] * 2


def test_tensors_of_another_model_are_refused(tiny, tmp_path):
    way, tensors = transfer_of(tiny[0], tmp_path), list(named_tensors(tiny[0]))
    for wrong, name in (
        (tensors[1:], "1 parameters"),
        ([tensors[0], *tensors], "came twice"),
        ([(tensors[0][0], tensors[0][1][:1]), *tensors[1:]], "has shape"),
    ):
        with rejects(WeightsError, name):
            way.update(wrong, "run:1", [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", [FileTransfer, NcclTransfer, AdapterTransfer])
def test_every_way_has_the_members_of_the_protocol(way):
    for name in ("update", "release", "close"):
        assert inspect.signature(getattr(way, name)) == inspect.signature(getattr(Transfer, name)), name
    assert hasattr(way, "has_base")


@pytest.mark.parametrize(("has_base", "path"), [(True, engine.SLEEP_KEEPING), (False, engine.SLEEP)])
def test_servers_keep_what_any_way_builds_on_while_they_sleep(has_base, path):
    calls = []
    asleep = SimpleNamespace(
        placement="colocated",
        _require_idle=lambda: None,
        _transfer=SimpleNamespace(has_base=has_base),
        _router=SimpleNamespace(post_to_all=calls.append),
    )
    engine.VLLMServerEngine.sleep(asleep)
    assert calls == [path]


def test_ranks_of_a_machine_take_the_value_of_its_first():
    class Pair(NoPeers):
        rank, world_size, local, local_world_size = 3, 4, 1, 2
        raised = None

        def gathered(self, value):
            return [[None, "elsewhere"], [None, "elsewhere"], [None, "first here"], json.loads(json.dumps(value))]

        def raise_together(self, error, names):
            self.raised = (error, list(names))

    pair, error = Pair(), ValueError("full")
    assert from_first_on_machine(pair, None, "mine") == "first here" and pair.raised == (None, [None] * 4)
    from_first_on_machine(pair, error, "mine")
    assert pair.raised == (error, [None, None, None, "ValueError"])
    with pytest.raises(ValueError, match="full"):
        from_first_on_machine(NoPeers(), error, "mine")
