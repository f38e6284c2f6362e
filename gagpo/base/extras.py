"""What to type to install a package that a feature needs."""

from __future__ import annotations

import re

OWN = re.compile(r"gagpo\[([a-z-]+)\]")
UNPINNED = ("openenv",)
"""Extras that need other versions of packages than ``constraints.txt`` has."""


def pip_install(requirement: str) -> str:
    """The command that installs a requirement; an extra of this package is installed from its clone.

    >>> pip_install("gagpo[web]"), pip_install("textarena")
    ("pip install -c constraints.txt -e '.[web]'", "pip install 'textarena'")
    """
    extra = OWN.fullmatch(requirement)
    if extra is None:
        return f"pip install '{requirement}'"
    pinned = "" if extra[1] in UNPINNED else "-c constraints.txt "
    return f"pip install {pinned}-e '.[{extra[1]}]'"
