"""Weights are sent as files: complete or not at all, each tensor once, in the servers' precision."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file

from gagpo.agents.engines.remote import transfer
from gagpo.agents.engines.remote.client import ReplicaUnreachable
from gagpo.agents.engines.remote.transfer import FileTransfer
from gagpo.model.weights import WeightsError, named_tensors


class FakeClient:
    """Records its calls, and fails at one path."""

    def __init__(self, fails=""):
        self.url, self.orders, self.fails = "http://127.0.0.1:1", [], fails

    async def post(self, path, body, deadline):
        if path == self.fails:
            raise ReplicaUnreachable("the peer is gone")
        self.orders.append((path, body))


def stored(folder):
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found |= load_file(str(path))
    return found


def test_files_hold_every_parameter_in_the_servers_precision(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "FILE_BYTES", 10_000)
    way, client = FileTransfer(tiny[0], "bfloat16", tmp_path), FakeClient()
    way.write(named_tensors(tiny[0]), "run:1")
    assert len(list(tmp_path.rglob("*.safetensors"))) > 2
    held = stored(tmp_path)
    assert held.keys() == {name for name, _ in tiny[0].named_parameters()}
    assert way.bytes == sum(tensor.nbytes for tensor in held.values())
    for name, parameter in tiny[0].named_parameters():
        assert held[name].dtype == torch.bfloat16 and torch.equal(held[name], parameter.detach().bfloat16())
    way.write(named_tensors(tiny[0]), "run:2")
    assert [path.name for path in tmp_path.iterdir()] == ["run-2"]
    asyncio.run(way.send(client, "run:2", 5))
    paths = [body["update_info"]["path"] for path, body in client.orders if path == "/update_weights"]
    assert paths == [str(path) for path in sorted(tmp_path.rglob("*.safetensors"))]
    assert client.orders[-1] == ("/finish_weight_update", {"weight_version": "run:2"})
    way.close()
    assert not list(tmp_path.iterdir())


def test_a_server_that_fails_finishes_no_update(tiny, tmp_path):
    broken = FakeClient(fails="/update_weights")
    way = FileTransfer(tiny[0], "float32", tmp_path)
    way.write(named_tensors(tiny[0]), "run:1")
    with pytest.raises(ReplicaUnreachable):
        asyncio.run(way.send(broken, "run:1", 5))
    assert "/finish_weight_update" not in {path for path, _ in broken.orders}


def test_an_interrupted_write_leaves_the_last_version(tiny, tmp_path):
    way = FileTransfer(tiny[0], "float32", tmp_path)
    way.write(named_tensors(tiny[0]), "run:1")

    def broken():
        yield next(iter(named_tensors(tiny[0])))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        way.write(broken(), "run:2")
    assert [path.name for path in tmp_path.iterdir()] == ["run-1"] and len(stored(tmp_path)) > 5


def test_tensors_of_another_model_are_refused(tiny, tmp_path):
    way, tensors = FileTransfer(tiny[0], "float32", tmp_path), list(named_tensors(tiny[0]))
    for wrong, message in (
        (tensors[1:], "1 parameters were not sent"),
        ([tensors[0], *tensors], "came twice"),
        ([(tensors[0][0], tensors[0][1][:1]), *tensors[1:]], "has shape"),
    ):
        with pytest.raises(WeightsError, match=message):
            way.write(wrong, "run:1")
