"""Engines are found by name, inside and outside the package."""

import subprocess
import sys

import torch

from gagpo.agents.engines.registry import ENGINES, engine_options
from gagpo.agents.setup import make_engine
from gagpo.base.errors import InvalidArgument
from tests.rejections import rejects


def test_a_package_offers_an_engine_by_an_entry_point(outside, offer, tiny):
    offer("elsewhere", "gagpo.engines", constant="elsewhere:ConstantOptions")
    assert ENGINES.places()["constant"] == "elsewhere:ConstantOptions"
    engine = make_engine(engine_options("constant", {"token": 9}), *tiny)
    engine.load_weights((name, torch.zeros(1)) for name in "ba")
    assert engine.token == 9 and engine.loaded == [["a", "b"]]


def test_wrong_names_and_options_are_named(tiny, outside):
    with rejects(InvalidArgument, "'transformer'", advice="transformers"):
        ENGINES.place("transformer")
    with rejects(InvalidArgument, "'nowhere_at_all'", where="engine nowhere_at_all:Engine"):
        ENGINES.find("nowhere_at_all:Engine")
    with rejects(InvalidArgument, "'Missing'", where="engine elsewhere:Missing"):
        ENGINES.find("elsewhere:Missing")
    with rejects(InvalidArgument, "elsewhere:Constant", advice="build(inputs)"):
        engine_options("elsewhere:Constant")
    with rejects(InvalidArgument, "options:EngineOptions", "build(inputs)", advice="add it"):
        engine_options("gagpo.agents.engines.options:EngineOptions")
    with rejects(InvalidArgument, "'qqq'", key="qqq", where="engine transformers", advice="max_length"):
        engine_options("transformers", {"qqq": 3})
    with rejects(InvalidArgument, "'gpu'", key="gpu", where="engine vllm", advice="gpus"):
        engine_options("vllm", {"gpu": [1]})
    with rejects(InvalidArgument, "0", "-1", key="token", where="ConstantOptions"):
        engine_options("elsewhere:ConstantOptions", {"token": -1})


def test_making_agents_imports_no_engine_library():
    code = "import sys, gagpo.agents.setup, gagpo.settings; sys.exit(any('vllm' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
