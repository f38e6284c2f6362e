"""What a benchmark needs beside the base installation."""

from __future__ import annotations

from importlib.util import find_spec


def require_package(module: str, extra: str) -> None:
    """End the program with one line that says what to install if ``module`` is missing.

    extra: of this package, which brings it.
    """
    if find_spec(module) is None:
        raise SystemExit(f"this benchmark needs {module}: pip install -c constraints.txt -e '.[{extra}]'")
