"""Half precision on a CPU compiles few kernels."""

import os
import subprocess
import sys

import pytest
import torch

from gagpo.agents.precision import KERNELS, bound_kernels

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
