"""The examples in the shop's docstrings."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["catalogue", "pages", "published", "reward", "search", "texts"])
def test_the_examples_hold(name):
    result = doctest.testmod(importlib.import_module(f"gagpo.envs.webshop.{name}"))
    assert result.attempted and not result.failed
