"""The arguments of an environment, checked before it is built, and errors that name the nearest valid one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec as find_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from gagpo.base import renamed
from gagpo.base.errors import GagpoError, InvalidArgument, MissingPackage, is_termination
from gagpo.base.extras import pip_install
from gagpo.base.nearest import hint, nearest
from gagpo.envs.argument_types import require_types
from gagpo.envs.base import Kwargs, TextEnv
from gagpo.envs.lookup import creator_of, find_spec
from gagpo.envs.plain import PlainEnv
from gagpo.envs.pool.wire import describe
from gagpo.envs.rewarded import make, reward_weights

_OF_GYMNASIUM = frozenset({"max_episode_steps"})  # read by ``gymnasium.make``
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.*)")


@dataclass
class Signature:
    """The arguments that an environment's constructor takes.

    names: its parameters, and those of the constructors that it passes ``**kwargs`` to.
    required: the names without a default.
    is_complete: whether any other name is an error; false where a constructor outside this package takes ``**kwargs``,
        or the environment rejects unknown names itself (``checks_arguments``).
    """

    names: dict[str, None] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    is_complete: bool = True


def require_arguments(env_id: str, kwargs: Kwargs | None = None) -> EnvSpec:
    """The registration of ``env_id``, if the names and types of ``kwargs`` are right; builds nothing.

    Types are checked for subclasses of :class:`TextEnv` only.

    Raises:
        UnknownEnvironment: the id is not registered.
        InvalidArgument: an argument is unknown or missing, or has the wrong type.
        MissingPackage: the environment needs a package that is not installed.
    """
    spec = find_spec(env_id)
    creator = creator_of(spec)
    _, arguments = reward_weights(spec, kwargs or {})
    for module, package in getattr(creator, "packages", {}).items():
        if find_module(module) is None:
            raise MissingPackage(
                f"needs the package {module}", where=f"environment {env_id}", advice=pip_install(package)
            )
    signature = signature_of(spec)
    missing_names = sorted(signature.required - set(arguments))
    unknown_names = [str(name) for name in arguments if name not in signature.names and name not in _OF_GYMNASIUM]
    old_names = [name for name in unknown_names if name in renamed.ARGUMENTS.get(spec.id, {})]
    if old_names:  # also one that is required is missing under its new name
        raise _unknown(env_id, old_names[0], signature)
    if missing_names:
        raise _missing(env_id, missing_names)
    if signature.is_complete and unknown_names:
        raise _unknown(env_id, unknown_names[0], signature)
    if isinstance(creator, type) and issubclass(creator, TextEnv):
        require_types(f"environment {env_id}", creator, arguments)
    return spec


def build(env_id: str, kwargs: Kwargs | None = None, **options: Any) -> gymnasium.Env[Any, Any]:
    """Build ``env_id`` in this process. options: of ``gymnasium.make``.

    Raises:
        InvalidArgument: as :func:`require_arguments`, or the constructor rejects its arguments, ends the program, or,
            if it is not of this package, raises an error.
    """
    spec = require_arguments(env_id, kwargs)
    try:
        return make(spec, kwargs or {}, **options)
    except TypeError as error:
        message = str(error).partition(" was raised from the environment creator")[0]
        unknown_match = _UNKNOWN.search(message)
        missing_match = _MISSING.search(message)
        if unknown_match and unknown_match[1] in (kwargs or {}):
            raise _unknown(env_id, unknown_match[1], signature_of(spec)) from None
        if missing_match:
            raise _missing(env_id, re.findall(r"'(\w+)'", missing_match[1])) from None
        raise InvalidArgument(message, where=f"environment {env_id}") from None
    except SystemExit as error:
        if is_termination(error):
            raise
        raise InvalidArgument(
            f"calls sys.exit({error.code!r}) while it is built", where=f"environment {env_id}"
        ) from error
    except Exception as error:
        creator = creator_of(spec)
        is_ours = creator is not PlainEnv and str(getattr(creator, "__module__", "")).startswith("gagpo.")
        if is_ours or isinstance(error, GagpoError):
            raise
        raise InvalidArgument(f"cannot be built: {describe(error)}", where=f"environment {env_id}") from error


def signature_of(spec: EnvSpec) -> Signature:
    """The arguments of the environment that ``spec`` registers; those in the registration are not required."""
    creator = creator_of(spec)
    signature = Signature()
    for parameters, in_package in _constructors(creator):
        lacks_default = {
            name: parameter.default is parameter.empty
            for name, parameter in parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        # Only the most derived constructor's parameters are required: it may pass fixed values to its base classes.
        if not signature.names:
            signature.required = {name for name, is_required in lacks_default.items() if is_required} - set(spec.kwargs)
        signature.names |= dict.fromkeys(lacks_default)
        passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        signature.is_complete &= not passes_on or in_package
        if not passes_on:
            break
    else:
        signature.is_complete = False  # every constructor takes **kwargs, so any name may be valid
    signature.is_complete &= not getattr(creator, "checks_arguments", False)
    if isinstance(inner := spec.kwargs.get("spec"), EnvSpec) and creator is PlainEnv:
        inner_signature = signature_of(inner)
        signature.names = {**inner_signature.names, **signature.names}
        signature.names.pop("spec")
        signature.required |= inner_signature.required - set(spec.kwargs)
        signature.is_complete = inner_signature.is_complete
    return signature


def default_arguments(env_id: str) -> dict[str, object]:
    """The arguments that ``env_id`` has if none are given; empty for an id that is not registered.

    Never imports the module of a ``module:`` id: the ids come from result files and runs, also of other people.
    """
    if env_id not in gymnasium.registry:
        return {}
    spec = find_spec(env_id)
    try:
        constructors = list(_constructors(creator_of(spec)))
    except (ImportError, ValueError):  # ValueError: a constructor without a signature
        return {}
    defaults: dict[str, object] = {}
    for parameters, _ in reversed(constructors):  # those of derived classes count more
        defaults |= {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    return {**defaults, **spec.kwargs}


def _constructors(creator: Callable[..., object]) -> Iterable[tuple[Mapping[str, inspect.Parameter], bool]]:
    """The parameters of a creator and of the constructors of its base classes, and whether each is of this package."""
    if not isinstance(creator, type):
        return [(inspect.signature(creator).parameters, False)]
    classes = [cls for cls in creator.__mro__ if "__init__" in vars(cls) and cls is not object]
    constructors = []
    for cls in classes:
        _, *parameters = inspect.signature(cls.__init__).parameters.items()  # type: ignore[misc]  # without self
        constructors.append((dict(parameters), cls.__module__.startswith("gagpo.")))
    return constructors


def _unknown(env_id: str, name: str, signature: Signature) -> InvalidArgument:
    if reason := renamed.replacement(renamed.ARGUMENTS.get(env_id, {}), name, "argument"):
        return InvalidArgument(reason, key=name, where=f"environment {env_id}")
    problem = f"unknown argument {name!r:.80} (environment.kwargs.{name:.80}, or -k {name:.80}=...)"
    near = nearest(name, signature.names)
    advice = hint(name, sorted(signature.names)) if near or signature.is_complete else None
    return InvalidArgument(problem, key=name, where=f"environment {env_id}", advice=advice)


def _missing(env_id: str, names: list[str]) -> InvalidArgument:
    noun = "argument" if len(names) == 1 else "arguments"
    advice = f"set environment.kwargs.{names[0]}, or -k {names[0]}=..."
    problem = f"requires the {noun} {', '.join(names)}"
    return InvalidArgument(problem, key=names[0], where=f"environment {env_id}", advice=advice)
