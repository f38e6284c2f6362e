"""Which removable folders this checkout has: a test that needs one is skipped in a copy without it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def present(folder: str) -> bool:
    """Whether the checkout has ``folder``, such as ``envs/web``."""
    return any((ROOT / folder).glob("*.py"))


def needs(folder: str) -> pytest.MarkDecorator:
    """Skip a test where ``folder`` was removed."""
    return pytest.mark.skipif(not present(folder), reason=f"without {folder}")
