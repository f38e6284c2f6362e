"""Code that evaluating somebody else's run would start: its settings may name modules, functions and programs.

A run folder is data, and reading one runs nothing. An evaluation needs the run's environment, though, and may need its
engine. Those of gagpo and of installed packages are used; any other code needs the user's consent.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gagpo.base.errors import GagpoError
from gagpo.envs.lookup import maker
from gagpo.settings import EngineSettings

WITHOUT_MODULE = ("http://", "https://", "textarena:")
"""Beginnings of ids that have a colon and name a server, or a game of an installed package."""


class UntrustedCode(GagpoError, ValueError):
    """A run names code that the user has not allowed to run."""


def module_in(name: str) -> str:
    """The module that a name such as ``module:Name`` imports; empty for registered names and modules of gagpo.

    >>> module_in("guess:Guess-v0"), module_in("gagpo/Math-v0"), module_in("http://127.0.0.1:8000")
    ('guess', '', '')
    """
    module = "" if name.startswith(WITHOUT_MODULE) else name.rpartition(":")[0]
    return "" if module.partition(".")[0] == "gagpo" else module


def require_environment_trust(run: Path, environment: str, named: str | None, arguments: Collection[str]) -> None:
    """Raise :class:`UntrustedCode` if the environment of ``run`` is code of others, or an argument names such code.

    environment: id of the environment to evaluate on.
    named: the environment that the user names, if any.
    arguments: names of its arguments that the run sets and the user does not.
    """
    if environment != named and module_in(environment):
        raise untrusted(run, f"the environment {environment!r:.80}", f"name it with --env {environment:.80}")
    for name in sorted(getattr(maker(environment), "code_arguments", frozenset()) & set(arguments)):
        raise untrusted(run, f"a program or function in environment.kwargs.{name}", f"set it with -k {name}=...")


def require_engine_trust(run: Path, engine: EngineSettings) -> None:
    """Raise :class:`UntrustedCode` if the engine of ``run`` is code of others."""
    if module_in(engine.name):
        raise untrusted(run, f"the engine {engine.name!r:.80}")


def untrusted(run: Path, code: str, *otherwise: str) -> UntrustedCode:
    """The error about code that ``run`` names. otherwise: what the user may do instead of giving consent."""
    advice = ", or ".join(["read that code, then add --trust-remote-code", *otherwise])
    return UntrustedCode(f"the settings of {run} name {code}, which is not part of gagpo: {advice}")
