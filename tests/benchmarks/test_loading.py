"""The plan of loading is that of the ranks' real memory, and slices take less of it than whole models."""

import subprocess
import sys

import pytest
import torch

from benchmarks import loading


@pytest.mark.slow
def test_two_ranks_load_within_the_planned_memory_and_in_less_than_whole_models(tmp_path):
    """With glibc's own limits, as in a run: below 2.38 it kept what each gathered layer had taken."""
    loading.save_model(tmp_path / "small", small=True)
    loading.save_model(tmp_path / "model")
    expected = loading.planned(tmp_path / "model", "transformers", 2)
    slices, whole = (loading.measure(tmp_path, "transformers", 2, is_whole) for is_whole in (False, True))
    print([f"{peak / loading.GB:.2f} GB" for peak in (*slices, *whole, expected)])
    assert slices == pytest.approx([expected] * 2, rel=loading.TOLERANCE)
    assert max(slices) < min(whole)


def growth():
    """Bytes that this process holds more after 45 MB in blocks of 3 MB have been allocated and freed."""
    before = loading._own_bytes()
    blocks = [torch.ones(750_000) for _ in range(15)]
    blocks.clear()
    return loading._own_bytes() - before


def test_freed_blocks_return_at_once_and_are_kept_afterwards():
    """In a process of its own: where the heap has free memory from earlier tests, nothing has to grow."""
    code = f"""
from gagpo.base.memory import freed_at_once
from {__name__} import growth
with freed_at_once():
    freed = growth()
print(freed, growth())
"""
    freed, kept = map(float, subprocess.check_output([sys.executable, "-c", code], text=True, timeout=120).split())
    assert freed < 10e6
    assert kept > 30e6, "an update uses them again"
