"""Engines are found by name, inside and outside the package."""

import subprocess
import sys

import pytest
import torch

from gagpo.agents.engines.registry import ENGINES, engine_options
from gagpo.agents.setup import make_engine
from gagpo.base.errors import InvalidArgument


def test_a_package_offers_an_engine_by_an_entry_point(outside, offer, tiny):
    offer("elsewhere", "gagpo.engines", constant="elsewhere:ConstantOptions")
    assert ENGINES.places()["constant"] == "elsewhere:ConstantOptions"
    engine = make_engine(engine_options("constant", {"token": 9}), *tiny)
    engine.load_weights((name, torch.zeros(1)) for name in "ba")
    assert engine.token == 9 and engine.loaded == [["a", "b"]]


def test_wrong_names_and_options_are_named(tiny, outside):
    with pytest.raises(InvalidArgument, match=r"no engine 'transformer'; nearest: transformers"):
        ENGINES.place("transformer")
    with pytest.raises(InvalidArgument, match="no module 'nowhere_at_all'"):
        ENGINES.find("nowhere_at_all:Engine")
    with pytest.raises(InvalidArgument, match="has no 'Missing'"):
        ENGINES.find("elsewhere:Missing")
    with pytest.raises(InvalidArgument, match=r"elsewhere:Constant is not a class of options: derive one from .*build"):
        engine_options("elsewhere:Constant")
    with pytest.raises(
        InvalidArgument, match=r"options:EngineOptions has no method build\(inputs\) .*add it to the class"
    ):
        engine_options("gagpo.agents.engines.options:EngineOptions")
    with pytest.raises(InvalidArgument, match=r"engine transformers has no option 'qqq'; known: .*max_length"):
        engine_options("transformers", {"qqq": 3})
    with pytest.raises(InvalidArgument, match=r"engine vllm has no option 'gpu'; nearest: gpus"):
        engine_options("vllm", {"gpu": [1]})
    with pytest.raises(InvalidArgument, match=r"ConstantOptions: token must be at least 0 \(got -1\)"):
        engine_options("elsewhere:ConstantOptions", {"token": -1})


def test_making_agents_imports_no_engine_library():
    code = "import sys, gagpo.agents.setup, gagpo.settings; sys.exit(any('vllm' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
