"""Data sets that are not part of the repository. Tests that need one are skipped where it is absent."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def outside_data(name: str) -> Path:
    """The file or folder ``name`` in ``$GAGPO_TEST_DATA``, by default ``shared/data`` next to the checkout."""
    folder = Path(os.environ.get("GAGPO_TEST_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / name).exists():
        pytest.skip(f"{name} is not in {folder}; set GAGPO_TEST_DATA to a folder that contains it")
    return folder / name
