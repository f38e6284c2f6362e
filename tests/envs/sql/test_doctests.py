"""The examples in docstrings."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["compare", "database", "literals", "structure", "tokens"])
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(f"gagpo.envs.sql.{name}"))
    assert outcome.attempted and not outcome.failed
