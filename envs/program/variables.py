"""The environment variables of a program: a short list, and those that the user names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from gagpo.base.errors import InvalidArgument
from gagpo.envs.command import LONGEST_WORD, fits

PASSED = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"}
    | {"CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "VIRTUAL_ENV"}
    | {"MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    | {"ALFWORLD_DATA", "GAGPO_DATA", "SQL_DATA", "WEBSHOP_DATA"}  # where this package's environments find theirs
)
PASSED_PREFIXES = ("LC_", "PYTHON")
SET_HERE = frozenset(
    {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "GAGPO_REWARD_URL", "GAGPO_SEED", "GAGPO_TASK", "GAGPO_TASK_FILE"}
    | {"NO_PROXY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "TMPDIR", "no_proxy"}
)
"""Variables that every episode gets with a value of its own."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def named(names: str | Sequence[str], argument: str = "environment") -> list[str]:
    """The names of variables that an ``argument`` lists, as a list or as one text with commas.

    Raises: InvalidArgument for what cannot be the name of a variable, or is set by gagpo.
    """
    variables = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    for name in variables:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgument(f"{argument} lists names of environment variables, got {name!r:.80}", key=argument)
        if name in SET_HERE:
            raise InvalidArgument(
                f"{argument}: gagpo sets {name} for each episode", key=argument, advice="remove it from the list"
            )
    return variables


def passed(names: Iterable[str]) -> dict[str, str]:
    """The variables of this process that programs get: the usual ones and those of these ``names``.

    Raises: InvalidArgument for a name that is not set, and for a value that no program can be started with.
    """
    usual = [name for name in os.environ if name in PASSED or name.startswith(PASSED_PREFIXES)]
    variables = {}
    for name in (*usual, *names):
        if name not in os.environ:
            raise InvalidArgument(
                f"environment: ${name} is not set", key="environment", advice="set it, or remove it from the list"
            )
        value = os.environ[name]
        if not fits(f"{name}={value}"):
            raise InvalidArgument(
                f"environment: ${name} is too long: a program gets at most {LONGEST_WORD} bytes", key="environment"
            )
        variables[name] = value
    return variables
