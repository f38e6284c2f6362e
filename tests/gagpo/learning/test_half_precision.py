"""Half precision: gradients as in float32, and few compiled kernels on a CPU."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks.half_precision import make_rows
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.dtypes import KERNELS, autocast, bound_kernels
from gagpo.model.networks import Networks

UPDATES = """
import sys
sys.argv = ["half_precision.py", "--run", sys.argv[1], "--updates", "6"]
sys.path.insert(0, "benchmarks")
import half_precision
from gagpo.sft.small_model import ModelShape
tiny = ModelShape(layers=1, width=32, heads=2, feed_forward=32)
half_precision.ModelShape = lambda: tiny
half_precision.main()
"""


def compiled(way):
    """Kernels that six updates of ever other rows had to make."""
    env = {**os.environ, "ONEDNN_VERBOSE": "profile_create", **dict.fromkeys(KERNELS, "100000")}
    result = subprocess.run(
        [sys.executable, "-c", UPDATES, way], capture_output=True, text=True, env=env, timeout=300, check=True
    )
    return sum("create:cache_miss" in line for line in result.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
def test_rounded_sizes_need_less_than_half_of_the_kernels():
    exact, rounded = compiled("bounded"), compiled("rounded")
    if not exact:
        pytest.skip("this processor computes half precision without oneDNN's kernels")
    assert rounded < exact / 2


def test_attention_that_compiles_a_kernel_for_every_length_is_off():
    torch.backends.cuda.enable_cudnn_sdp(True)
    bound_kernels()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_what_the_user_has_set_is_left(monkeypatch):
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    bound_kernels()
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == KERNELS["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")


def gradient_of(model, rows, advantage, precision):
    """The gradient of one update, and its norm as it is logged."""
    gradients = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(parameter.grad.flatten() for parameter in model.parameters())
    )
    half = precision == "bfloat16"
    updater = Updater(
        Networks(model, autocast=lambda: autocast("cpu", precision)),
        optimizer,
        load_algorithm("dr_grpo"),
        UpdateSettings(packing=Packing(1024, trees=True, rounded=half), max_grad_norm=1e9),
    )
    metrics = updater.update(rows, Credit(advantage, np.full(len(advantage), 4)), np.random.default_rng(0))
    return torch.cat(gradients), metrics["grad_norm"]


def test_the_gradient_of_the_same_rows_is_that_of_float32(tiny):
    """Runs in bfloat16 have other gradients because they sample other tokens, not because of the update."""
    model, tokenizer = tiny
    rng = np.random.default_rng(0)
    rows = make_rows(len(tokenizer), rng)[:16]
    advantage = rng.standard_normal(1 + int(rows[-1].turn_K[-1]))
    full, norm = gradient_of(model, rows, advantage, "float32")
    half, half_norm = gradient_of(model, rows, advantage, "bfloat16")
    assert half_norm == pytest.approx(norm, rel=0.01) and norm > 0
    assert torch.cosine_similarity(full, half, dim=0) > 0.999
