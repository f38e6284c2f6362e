"""Finding environments by id, here and in other processes.

An id of the form ``module:Name-v0`` names a module to import first, and that module may lie in the working directory.
The working directory is looked at last: no file there can take the place of this project or of a library. An installed
package offers ids, without their module, as entry points of ``gagpo.environments``: ``"Guess-v0" = "guess"``. An
address, ``http://HOST:PORT``, is an environment on an OpenEnv server.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.registry import Registry
from gagpo.envs.base import Info, Kwargs, MarkovKey

ENVIRONMENTS: Registry[EnvSpec] = Registry("environment", "gagpo.environments", {})
"""What installed packages offer: the module that registers an id. Everything registered is in gymnasium's own."""

_REMOTE = ("gagpo/Remote-v0", "gagpo.envs.remote.env:RemoteEnv", "url")
_ELSEWHERE = {
    "http://": _REMOTE,
    "https://": _REMOTE,
    "verifiers://": ("gagpo/Verifiers-v0", "gagpo.interop.environments.verifiers:VerifiersEnv", "taskset"),
}
"""By how an id of an environment elsewhere begins: the registered id, the class, and the argument that takes the whole id."""


class UnknownEnvironment(GagpoError, ValueError):
    """An id under which no environment is registered."""


def find_spec(env_id: str) -> EnvSpec:
    """The registered ``EnvSpec`` of ``env_id``, which may name a module to import first (``"module:Name-v0"``).

    An id that an installed package offers has its module imported. Raises :class:`UnknownEnvironment` with advice when
    there is no such module or no such id.
    """
    if elsewhere := _ELSEWHERE.get(env_id.partition("://")[0] + "://"):
        name, made_by, argument = elsewhere
        return EnvSpec(name, made_by, order_enforce=False, disable_env_checker=True, kwargs={argument: env_id})
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            _import(module)
        elif name not in gymnasium.registry and (offer := ENVIRONMENTS.offered().get(name)):
            _import(offer.module)
        return gymnasium.spec(name)
    except ModuleNotFoundError as error:
        raise UnknownEnvironment(f"environment {env_id!r}: {error}; is its folder on PYTHONPATH?") from None
    except gymnasium.error.Error as error:
        ours = [name for name in gymnasium.registry if name.startswith("gagpo/")]
        known = ", ".join(sorted([*ours, *ENVIRONMENTS.offered()]))
        advice = f"known here: {known}, and module:Name-v0 for one of your own"
        raise UnknownEnvironment(f"environment {env_id!r}: {' '.join(str(error).split())[:200]} ({advice})") from None


def is_address(env_id: str) -> bool:
    """Whether ``env_id`` is the address of an OpenEnv server, and not a registered id."""
    return env_id.startswith(("http://", "https://"))


def playing(env_id: str, kwargs: Mapping[str, Any], split: str | None) -> dict[str, Any]:
    """``kwargs`` with ``split`` (None: the last one) as the environment's own: no other's tasks are looked for then.

    An environment that has no such split, or is told one already, is left as it is.
    """
    made_by = maker(env_id)
    splits = getattr(made_by, "splits", ())
    split = split or (splits[-1] if splits else None)
    takes_one = split in splits and "split" in inspect.signature(made_by).parameters
    return {"split": split, **kwargs} if takes_one else dict(kwargs)


def markov_key(env_id: str, info: Info | None = None) -> MarkovKey:
    """Which key of its answers is a Markov state of ``env_id``: equal keys, equal futures. Nothing is built for it.

    It is what the environment's class declares as ``markov_key``; of a class that does not say, ``state`` where the
    ``info`` of one of its answers carries one, else ``observation``.
    """
    declared = getattr(maker(env_id), "markov_key", None)
    if declared is not None:
        return cast(MarkovKey, declared)
    return "state" if info is not None and info.get("state") is not None else "observation"


def choosing(env_id: str) -> frozenset[str]:
    """The arguments of ``env_id`` that only choose tasks; none of an id that is not registered here.

    Ids of results are looked up here, and no file shall have a module imported: what ``module:`` names is left alone.
    """
    if env_id not in gymnasium.registry:
        return frozenset()
    try:
        return frozenset(getattr(maker(env_id), "choosing", ()))
    except ImportError:
        return frozenset()


def is_cheap(spec: EnvSpec, kwargs: Kwargs) -> bool:
    """Whether an environment built so may be stepped in the caller's own process: one of the suite's own that says so.

    Nobody else's declaration counts: an environment that hangs there takes the caller with it.
    """
    maker = _made_by(spec)
    ours = getattr(maker, "__module__", "").startswith("gagpo.envs.")
    return ours and bool(getattr(maker, "cheap", lambda _: False)(kwargs))


def maker(env_id: str) -> Callable[..., object]:
    """The class, or function, that builds ``env_id``."""
    return _made_by(find_spec(env_id))


def _made_by(spec: EnvSpec) -> Callable[..., object]:
    return spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))


def portable(spec: EnvSpec) -> str:
    """``spec`` as JSON that another process can build from; ValueError when its class cannot be found there."""
    spec = copy.deepcopy(spec)
    if callable(spec.entry_point):
        module = getattr(spec.entry_point, "__module__", "__main__")
        name = getattr(spec.entry_point, "__qualname__", "<")
        if module == "__main__" or "<" in name or "." in name:
            raise InvalidArgument(
                f"environment {spec.id!r} is made by {name} of {module}, which other processes cannot import; "
                "put it at the top level of a module, or use workers=0"
            )
        spec.entry_point = f"{module}:{name}"
    spec.vector_entry_point = None
    return spec.to_json()


def _import(module: str) -> None:
    """Import ``module``, from the working directory when it is found nowhere else; that stays on the path."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        missing_itself = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        if not missing_itself or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        importlib.import_module(module)
