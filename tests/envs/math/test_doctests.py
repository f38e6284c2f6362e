"""The examples in the docstrings of the maths package."""

import doctest
import importlib
import pkgutil

import pytest

import gagpo.envs.math

MODULES = [module.name for module in pkgutil.walk_packages(gagpo.envs.math.__path__, "gagpo.envs.math.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
