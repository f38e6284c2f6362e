"""Imports the scripts of ``.ci``, which is no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / ".ci"


def tool(name: str) -> ModuleType:
    """The script ``.ci/NAME.py`` as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
