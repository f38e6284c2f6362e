"""How a person calls this program in the shell that called it.

Messages name the next command: "next: gagpo view runs/x". ``make train`` installs into ``.venv``, which no shell has
activated, so there the same command is ``.venv/bin/gagpo view runs/x``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sysconfig
from pathlib import Path

from gagpo.cli.examples import EXAMPLES

_COMMAND = re.compile(rf"(?<![\w./-])gagpo(?= (?:{'|'.join(EXAMPLES)})\b)")


def typed(text: str) -> str:
    """The text with every ``gagpo COMMAND`` as it can be typed here."""
    name = program(is_relative="cd " not in text)
    return text if name == "gagpo" else _COMMAND.sub(lambda _: name, text)


def program(is_relative: bool = True) -> str:
    """``gagpo`` if the shell finds this installation by that name, else the path of its program.

    is_relative: whether the path may be relative to the working directory; not if a ``cd`` comes before it.
    """
    installed = Path(sysconfig.get_path("scripts")) / "gagpo"
    if not installed.is_file():
        return "gagpo"
    on_path = shutil.which("gagpo")
    if on_path is not None and Path(on_path).samefile(installed):
        return "gagpo"
    working_directory = Path.cwd()
    if is_relative and installed.is_relative_to(working_directory):
        installed = installed.relative_to(working_directory)
    return shlex.quote(os.fspath(installed))
