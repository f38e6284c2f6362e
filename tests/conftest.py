"""Shared by all tests: a model small enough for anything, without network, and no data outside the test's folder."""

import os
import sys
import textwrap
import urllib.request

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# As in a shell with the environment activated: messages then say `gagpo`, and not the path of the program.
os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"

import pytest
import torch

from gagpo.sft.small_model import ModelShape, build
from tests.folders import removed

pytest_plugins = ["tests.cpu_times"]

TEXTS = ["You stand at 12. Go to door 3.", "left", "right", "On the table 1, you see a mug 1 and a knife 2."] * 3


@pytest.fixture(scope="session", autouse=True)
def _few_threads():
    torch.set_num_threads(1)


TINY_MATRIX = 2**18  # numbers of a matrix; torch multiplies 1 to 9 billion a second in bfloat16 on CPUs without it


@pytest.fixture(autouse=True)
def _no_large_products_in_half(request, monkeypatch):
    """Fail a fast test that computes in bfloat16 with more than a tiny model: most CPUs would crawl through it."""
    if request.node.get_closest_marker("slow"):
        return
    linear = torch.nn.functional.linear

    def checked(x, weight, bias=None):
        in_half = weight.dtype == torch.bfloat16 or torch.is_autocast_enabled(weight.device.type)
        assert not in_half or weight.numel() <= TINY_MATRIX, f"a fast test multiplies {weight.shape} in bfloat16"
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", checked)


@pytest.fixture
def tiny():
    """A model with two layers and grouped heads, and its tokenizer."""
    settings = ModelShape(layers=2, width=32, heads=4, key_value_heads=2, feed_forward=48, context=512)
    model, tokenizer = build(settings, TEXTS, seed=0)
    with torch.no_grad():  # larger weights make a peaked, varied distribution: errors show
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model.eval(), tokenizer


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Makes a package that is installed in the test's folder offer things as entry points of a group."""

    def offer(package, group, **places):
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = "\n".join(f"{name} = {location}" for name, location in places.items())
        (about / "entry_points.txt").write_text(f"[{group}]\n{points}\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    return offer


OUTSIDE = '''
import numpy as np
from pydantic import Field
from gagpo.agents.engines.base import Response
from gagpo.agents.engines.options import EngineOptions

class ConstantOptions(EngineOptions):
    """Options of an engine that repeats one token."""

    token: int = Field(5, ge=0)

    def build(self, inputs):
        return Constant(inputs.tokenizer, self.token)

class Constant:
    """Always says the same token, with log-probability -1."""

    shares_weights = False
    dtype = "float32"

    def __init__(self, tokenizer, token):
        self.tokenizer, self.max_length, self.token = tokenizer, 128, token
        self.loaded, self.under_way = [], []

    def start(self): pass

    def generate(self, requests, sampling):
        ids = np.full(1, self.token, np.int32)
        return [Response(ids, np.full(1, -1.0, np.float32), True) for _ in requests]

    def submit(self, requests, sampling):
        self.under_way += requests

    def collect(self, timeout=None):
        requests, self.under_way = self.under_way, []
        return list(zip(requests, self.generate(requests, None)))

    def load_weights(self, tensors):
        self.loaded.append(sorted(name for name, _ in tensors))

    def release(self, session): pass
    def sleep(self): pass
    def wake(self): pass
    def close(self): pass
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(textwrap.dedent(OUTSIDE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("elsewhere", None)


@pytest.fixture
def dead_proxy(monkeypatch):
    """The environment names a proxy, and nobody listens there; urllib, which asks only once, forgets it afterwards."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)


@pytest.fixture
def serving():
    """Servers of the vLLM engine's protocol on tiny models; a test that asks for them needs that engine's folder."""
    return pytest.importorskip("tests.agents.engines.remote.fake_server").serving


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In a copy without one of the removable folders, skip a test that fails because something needs the folder."""
    report = yield
    if report.failed and any(message in report.longreprtext for message in removed()):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "Skipped: needs a folder that was removed")
    return report
