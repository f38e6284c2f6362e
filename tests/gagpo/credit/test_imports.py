"""What the research core imports, in a fresh interpreter."""

import subprocess
import sys

import pytest

PACKAGES = {
    "gagpo.data": ("gymnasium", "torch", "transformers", "pydantic"),
    "gagpo.credit": ("gymnasium", "torch", "transformers", "scipy"),
    "gagpo.objectives": ("gymnasium", "transformers"),
    "gagpo.controllers": ("gymnasium", "torch", "transformers"),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_core_loads_no_more_than_it_needs(package):
    code = f"""
import sys, {package}
rooms = {{name.split(".")[1] for name in sys.modules if name.startswith("gagpo.")}}
assert rooms <= {{"base", "data", "credit", "objectives", "controllers"}}, rooms
loaded = [name for name in {PACKAGES[package]} if name in sys.modules]
assert not loaded, loaded
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
