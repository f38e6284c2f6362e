"""Code that evaluating somebody else's run would start: its settings may name modules, functions and programs.

A run folder is data, and reading one runs nothing. An evaluation needs the run's environment, though, and may need its
engine. Those of gagpo and of installed packages are used; any other code needs the user's consent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gagpo.base.errors import GagpoError
from gagpo.envs.lookup import maker
from gagpo.envs.offers import resolvers
from gagpo.envs.pool.worker import REWARD
from gagpo.settings import EngineSettings

_CODE = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""``module:Name``, also of a file with a dash in its name, which Python's own ``import`` cannot reach."""


class UntrustedCode(GagpoError, ValueError):
    """A run names code that the user has not allowed to run."""


def module_in(name: str) -> str:
    """The module that a name such as ``module:Name`` imports; empty for registered names and modules of gagpo.

    >>> module_in("guess:Guess-v0"), module_in("gagpo/Math-v0"), module_in("http://127.0.0.1:8000")
    ('guess', '', '')
    """
    is_offered = name.startswith(tuple(resolvers()))  # a server's address, or an environment of an installed package
    module = "" if is_offered else name.rpartition(":")[0]
    return "" if module.partition(".")[0] == "gagpo" else module


def require_environment_trust(run: Path, environment: str, named: str | None, arguments: Mapping[str, object]) -> None:
    """Raise :class:`UntrustedCode` if the environment of ``run`` is code of others, or an argument names such code.

    environment: id of the environment to evaluate on.
    named: the environment that the user names, if any.
    arguments: its arguments that the run sets and the user does not.
    """
    if environment != named and module_in(environment):
        raise untrusted(run, f"the environment {environment!r:.80}", f"name it with --env {environment:.80}")
    creator = maker(environment)
    programs: frozenset[str] = getattr(creator, "code_arguments", frozenset())
    names: frozenset[str] = getattr(creator, "code_names", frozenset())
    for name, value in sorted(arguments.items()):
        code = f"a program or function in environment.kwargs.{name}"
        is_imported = name in names or name == REWARD
        if name in programs or any(_names_code(text, is_imported) for text in _texts(value)):
            raise untrusted(run, code, f"set it with -k {name}=...")


def _names_code(text: str, is_imported: bool) -> bool:
    """Whether an argument is, or has, a name such as ``module:Name``.

    An environment of another package may import any of its arguments, so each that looks like code needs consent. Of an
    argument that is known to be imported, every text with a colon does: the import needs no valid name, and what
    begins like the address of a server is a module there.
    """
    if is_imported:
        module, colon, _ = text.partition(":")
        return bool(colon) and module.partition(".")[0] != "gagpo"
    return _CODE.fullmatch(text.strip()) is not None and bool(module_in(text))


def _texts(value: object) -> Iterator[str]:
    """The texts in an argument's value, also in lists and as keys and values of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def require_engine_trust(run: Path, engine: EngineSettings) -> None:
    """Raise :class:`UntrustedCode` if the engine of ``run`` is code of others."""
    if module_in(engine.name):
        raise untrusted(run, f"the engine {engine.name!r:.80}")


def untrusted(run: Path, code: str, *otherwise: str) -> UntrustedCode:
    """The error about code that ``run`` names. otherwise: what the user may do instead of giving consent."""
    advice = ", or ".join(["read that code, then add --trust-remote-code", *otherwise])
    return UntrustedCode(f"name {code}, which is not part of gagpo", where=f"the settings of {run}", advice=advice)
