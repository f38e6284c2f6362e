"""Examples in docstrings."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["state_keys", "turns"])
def test_examples_in_docstrings_are_true(module):
    results = doctest.testmod(importlib.import_module(f"gagpo.data.{module}"))
    assert results.attempted > 0 and results.failed == 0
