"""A run names its engine, built-in or external. An engine of a file has every right that the built-in ones have."""

import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file

from gagpo.planning.memory import engine_parts
from gagpo.planning.plan import shape_of
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load, resolve
from gagpo.training.trainer import train
from tests.rejections import rejects

PLUGIN = '''
"""Two engines of a user: one that computes as the trainer does, and one with a process and weights of its own."""

import copy
import subprocess
import sys
from typing import ClassVar

from pydantic import Field

from gagpo.agents.engines.options import EngineOptions
from gagpo.agents.engines.transformers import TransformersEngine


class ExactOptions(EngineOptions):
    """Options of an engine that samples from the model in training."""

    same_numerics: ClassVar[bool] = True
    temperature_scale: float = Field(1.0, gt=0, description="factor of the temperature")

    def build(self, inputs):
        return TransformersEngine(inputs.model, inputs.tokenizer, dtype=inputs.dtype, own_weights=inputs.own_weights)


class ServedOptions(EngineOptions):
    """Options of an engine with a server."""

    serves: ClassVar[bool] = True
    needs_weights: ClassVar[bool] = False
    takes_memory: ClassVar[bool] = True
    addresses: list[str] = Field([], description="servers that exist")

    def build(self, inputs):
        return ServedEngine(inputs)

    def uses_device(self, device):
        return not self.addresses


class ServedEngine(TransformersEngine):
    servers = []

    def __init__(self, inputs):
        super().__init__(inputs.model, inputs.tokenizer, own_weights=True)
        self.server, self.updates = None, 0

    def start(self):
        self.server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.servers.append(self)

    def submit(self, requests, sampling):
        assert self.server is not None and self.server.poll() is None, "sampled before the start or after the end"
        super().submit(requests, sampling)

    def load_weights(self, tensors):
        self.updates += 1
        super().load_weights(tensors)

    def close(self):
        if self.server is not None:
            self.server.communicate(b"end")
        super().close()
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "my_engines.py").write_text(textwrap.dedent(PLUGIN))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_engines", None)


def weights_of(tmp_path, config, name, *overrides):
    """The weights of a run after two iterations."""
    folder = RunFolder.create(tmp_path / name, load(config, [*overrides, "evaluation.splits=[]"]))
    train(folder, quiet=True)
    return load_file(tmp_path / name / "checkpoints" / "iteration-000002" / "model" / "model.safetensors")


def test_an_engine_of_a_file_trains_as_the_built_in_one(corridor, plugin, tmp_path):
    config = corridor(rollout={"tasks": 2, "group_size": 4})
    expected = weights_of(tmp_path, config, "built-in")
    weights = weights_of(tmp_path, config, "plugin", "engine=my_engines:ExactOptions")
    assert expected.keys() == weights.keys()
    assert all(torch.equal(expected[name], weights[name]) for name in expected)


def test_an_engine_of_a_file_serves(corridor, plugin, tmp_path):
    config = corridor(rollout={"tasks": 2, "group_size": 4})
    weights_of(tmp_path, config, "served", "engine={name: 'my_engines:ServedOptions', gpu_memory_utilization: 0.5}")
    (engine,) = sys.modules["my_engines"].ServedEngine.servers
    assert engine.updates == 2
    assert engine.server.poll() == 0, "the trainer closes the engine that it started"


def test_settings_and_plans_ask_what_an_engine_can_do(corridor, plugin):
    exact = resolve(load(corridor(), ["engine=my_engines:ExactOptions"]))
    assert exact.algorithm.correction.name == resolve(load(corridor())).algorithm.correction.name
    served = resolve(load(corridor(), ["engine=my_engines:ServedOptions"]))
    assert served.algorithm.correction.name == "recompute"
    elsewhere = load(corridor(), ["engine={name: 'my_engines:ServedOptions', options: {addresses: ['http://a:1']}}"])
    segments = [engine_parts(settings, shape_of(settings), 64, None) for settings in (served, elsewhere)]
    assert [[segment.name for segment in engine] for engine in segments] == [["engine weights", "KV cache"], []]


@pytest.mark.parametrize(
    ("override", "key", "names"),
    [
        ("engine=vlm", "engine.name", ("'vlm'", "nearest: vllm")),
        ("engine={name: vllm, options: {gpu: [1]}}", "engine.options.gpu", ("engine vllm", "nearest: gpus")),
        ("engine.options={gpus: [1]}", "engine.options.gpus", ("engine transformers", "known: max_length")),
        ("engine.gpu_memory_utilization=0.5", "engine.gpu_memory_utilization", ("engine transformers",)),
        (
            "engine={name: 'my_engines:ServedOptions', options: {adress: []}}",
            "engine.options.adress",
            ("my_engines:ServedOptions", "nearest: addresses"),
        ),
        ("engine=my_engines:ServedEngine", "engine.options", ("my_engines:ServedEngine",)),
    ],
)
def test_wrong_names_and_options_are_errors_of_the_settings(corridor, plugin, override, key, names):
    with rejects(SettingsError, *names, key=key):
        load(corridor(), [override])


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_engine_outside_the_project_plays_a_whole_run(corridor, outside, tmp_path, deterministic):
    changes = {"iterations": 1}
    config = corridor(
        training=changes, rollout={"deterministic": deterministic}, evaluation={"tasks": 1, "before": False}
    )
    settings = load(config, ["engine.name=elsewhere:ConstantOptions", "engine.options.token=7"])
    folder = RunFolder.create(tmp_path / "run", settings)
    train(folder, quiet=True)
    (row,) = folder.metrics()
    assert row["response_tokens"] == 1.0
