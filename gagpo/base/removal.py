"""Remove a folder that another program filled."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

REMOVE_SECONDS = 60.0


def remove(folder: str) -> None:
    """Remove a folder with everything in it, within a minute for each attempt; never raises.

    ``shutil.rmtree`` exceeds the recursion limit in a deep tree, and stops at a folder without permissions.
    """
    attempts = (["rm", "-rf", "--", folder], ["chmod", "-R", "u+rwx", "--", folder], ["rm", "-rf", "--", folder])
    for command in attempts:
        if not os.path.lexists(folder):
            return
        with suppress(OSError, subprocess.SubprocessError):
            nothing = subprocess.DEVNULL
            subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=REMOVE_SECONDS, check=False)
