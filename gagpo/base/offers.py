"""What the folders of this package offer: each describes itself in a file ``registration.py``, and nothing names it.

A folder that is deleted takes its ids, options and checks with it. The file imports only what its description needs,
because every command that looks for a name reads it.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

REGISTRATION = "registration"


@cache
def offers(package: str) -> dict[str, Any]:
    """The ``OFFER`` of each folder in the imported ``package`` that has a file ``registration.py``, by folder."""
    root = Path(str(importlib.import_module(package).__file__)).parent
    # A deleted folder may leave compiled files behind, which Python would still take for a package.
    folders = sorted(path.parent.name for path in root.glob(f"*/{REGISTRATION}.py"))
    return {folder: importlib.import_module(f"{package}.{folder}.{REGISTRATION}").OFFER for folder in folders}
