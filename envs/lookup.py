"""Find environments by id, here and in other processes.

``module:Name-v0`` imports the module first, which may lie in the working directory; ``module:Class`` needs no
registration. An installed package registers ids as entry points of ``gagpo.environments`` (``"Guess-v0" = "guess"``).
Other short names, and beginnings of ids such as ``http://``, are those that folders offer: :mod:`gagpo.envs.offers`.
An environment without tasks is wrapped, see :mod:`gagpo.envs.plain`.
"""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from gagpo.base.errors import GagpoError, InvalidArgument, first_line, is_termination
from gagpo.base.registry import Registry, import_from_here
from gagpo.envs.base import Info, Kwargs, MarkovKey, TextEnv
from gagpo.envs.offers import missing_folder, resolvers, unaliased

ENVIRONMENTS: Registry[EnvSpec] = Registry("environment", "gagpo.environments", {})
"""Entry points of installed packages: the module that registers an id."""


class UnknownEnvironment(GagpoError, ValueError):
    """An environment id that is not registered."""


def find_spec(env_id: str) -> EnvSpec:
    """The ``EnvSpec`` of ``env_id``, after importing its module.

    Raises:
        UnknownEnvironment: if the module or the id does not exist.
        InvalidArgument: if the module cannot be imported.
    """
    env_id = unaliased(env_id)
    module, _, name = env_id.rpartition(":")
    try:
        for beginning, resolve in resolvers().items():
            if env_id.startswith(beginning):
                return resolve(env_id)
        spec = _registration(module, name)
        if name.startswith("gagpo/"):  # has tasks; its module, which may be large, is not imported to find out
            return spec
        creator = creator_of(spec)
        has_tasks = hasattr(creator, "tasks") or not isinstance(creator, type)
        return spec if has_tasks else with_seeds(spec)
    except ModuleNotFoundError as error:
        advice = f"is its folder on PYTHONPATH? If it is a package, install it; {missing_folder(env_id)}"
        raise UnknownEnvironment(error, where=f"environment {env_id!r}", advice=advice) from None
    except GagpoError:
        raise
    except gymnasium.error.Error as error:
        ids = [name for name in gymnasium.registry if name.startswith("gagpo/")]
        choices = ", ".join(sorted([*ids, *ENVIRONMENTS.offered()]))
        registered_ids = f"known here: {choices}, and module:Name-v0 for your own"
        advice = "; ".join(filter(None, (missing_folder(env_id), registered_ids)))
        reason = " ".join(str(error).split())[:200]
        raise UnknownEnvironment(reason, where=f"environment {env_id!r}", advice=advice) from None
    except (Exception, SystemExit) as error:  # other people's code may raise anything
        if is_termination(error):
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        if not isinstance(error, SyntaxError):  # which names its place
            frame = traceback.extract_tb(error.__traceback__)[-1]
            reason += f" ({PurePath(frame.filename).name}, line {frame.lineno})"
        raise InvalidArgument(f"its module cannot be imported: {reason}", where=f"environment {env_id!r}") from error


def _registration(module: str, name: str) -> EnvSpec:
    """The registration of ``name``, after importing ``module`` or the installed package that offers the name."""
    if module:
        attribute = getattr(import_from_here(module), name, None)
        if gymnasium.Env in getattr(attribute, "__mro__", ()):
            return EnvSpec(name, attribute)
    elif name not in gymnasium.registry and name in (offers := ENVIRONMENTS.offered()):
        import_from_here(offers[name].module)
    return gymnasium.spec(name)


def with_seeds(spec: EnvSpec) -> EnvSpec:
    """The registration of an environment without tasks, wrapped so that its seeds are tasks."""
    limit = {} if spec.max_episode_steps is None else {"max_turns": spec.max_episode_steps}
    return EnvSpec(
        "gagpo/Plain-v0",
        "gagpo.envs.plain:PlainEnv",
        order_enforce=False,
        disable_env_checker=True,
        kwargs={"spec": spec, **limit},
    )


def with_split(env_id: str, kwargs: Mapping[str, Any], split: str | None) -> dict[str, Any]:
    """``kwargs`` with ``split`` (None for the last split), so that only tasks of this split are loaded.

    Unchanged if the environment lacks this split or ``kwargs`` already contain a split.
    """
    creator = maker(env_id)
    splits = getattr(creator, "splits", ())
    split = split or (splits[-1] if splits else None)
    takes_split = split in splits and "split" in inspect.signature(creator).parameters
    return {"split": split, **kwargs} if takes_split else dict(kwargs)


def markov_key(env_id: str, info: Info | None = None) -> MarkovKey:
    """Which entry is a Markov state of ``env_id`` (equal keys, equal futures), without building the environment.

    The class's ``markov_key``; if None, ``state`` where ``info`` contains one, else ``observation``.
    """
    declared = getattr(maker(env_id), "markov_key", None)
    if declared is not None:
        return cast(MarkovKey, declared)
    return "state" if info is not None and info.get("state") is not None else "observation"


def declared(env_id: str, name: Literal["choosing", "interface"]) -> frozenset[str]:
    """The arguments that ``env_id`` declares as ``name``; empty for an id that is not registered.

    Never imports the module of a ``module:`` id: the ids come from result files and runs, also of other people.
    """
    if env_id not in gymnasium.registry:
        return frozenset()
    try:
        return frozenset(getattr(maker(env_id), name, ()))
    except ImportError:
        return frozenset()


class TaskClusters(NamedTuple):
    """What tasks of a split share with each other and not with new tasks.

    plural: such as ``rooms``.
    names: the cluster of each task, str[tasks].
    """

    plural: str
    names: list[str]

    @property
    def counted(self) -> str:
        """Such as ``4 rooms``."""
        return f"{len(set(self.names))} {self.plural}"


def clusters_of(env_id: str, kwargs: Kwargs, tasks: Sequence[str]) -> TaskClusters | None:
    """The clusters of tasks (:meth:`gagpo.envs.base.TextEnv.cluster`); None unless all have one and some share it.

    As :func:`declared`, it never imports the module of a ``module:`` id.
    """
    if env_id not in gymnasium.registry:
        return None
    try:
        creator = maker(env_id)
    except ImportError:
        return None
    if not getattr(creator, "clusters", ""):
        return None
    cluster = cast(type[TextEnv], creator).cluster
    names = [name for task in tasks if (name := cluster(task, kwargs)) is not None]
    shared = len(names) == len(tasks) and len(set(names)) < len(names)
    return TaskClusters(cast(type[TextEnv], creator).clusters, names) if shared else None


def is_cheap(spec: EnvSpec, kwargs: Kwargs) -> bool:
    """Whether the environment may be stepped in the caller's process: it is ``cheap`` and part of this package.

    Declarations of other environments are ignored: one that hangs would take the caller with it. So would a reward
    function, which is the user's code.
    """
    if "reward" in kwargs:
        return False
    creator = creator_of(spec)
    is_trusted = getattr(creator, "__module__", "").startswith("gagpo.envs.")
    return is_trusted and bool(getattr(creator, "cheap", lambda _: False)(kwargs))


def turn_limit(env_id: str, kwargs: Kwargs) -> int | None:
    """The turns after which ``env_id`` ends an episode, without building the environment; None if it declares no limit.

    It is ``max_turns`` in ``kwargs``, its default, or the ``max_episode_steps`` of the registration.
    """
    spec = find_spec(env_id)
    max_turns = {**spec.kwargs, **kwargs}.get("max_turns")
    classes = getattr(creator_of(spec), "__mro__", (creator_of(spec),))
    signatures = (inspect.signature(cls).parameters for cls in classes if cls is not object)
    defaults = (parameters["max_turns"].default for parameters in signatures if "max_turns" in parameters)
    limit = max_turns or next(defaults, None) or spec.max_episode_steps
    return limit if isinstance(limit, int) and limit > 0 else None


def maker(env_id: str) -> Callable[..., object]:
    """The class or function that builds ``env_id``."""
    return creator_of(find_spec(env_id))


def name_of(spec: EnvSpec) -> str:
    """The id of the environment that ``spec`` registers, without the wrapper of an environment without tasks."""
    inner = spec.kwargs.get("spec")
    return inner.id if isinstance(inner, EnvSpec) else spec.id


def creator_of(spec: EnvSpec) -> Callable[..., object]:
    """The class or function that builds the environment of ``spec``."""
    return spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))


def portable(spec: EnvSpec) -> str:
    """``spec`` as JSON from which another process can build the environment.

    Raises:
        InvalidArgument: if other processes cannot import its class.
    """
    spec = copy.deepcopy(spec)
    if callable(spec.entry_point):
        module = getattr(spec.entry_point, "__module__", "__main__")
        name = getattr(spec.entry_point, "__qualname__", "<")
        if module == "__main__" or "<" in name or "." in name:
            raise InvalidArgument(
                f"environment {spec.id!r} is made by {name} of {module}, which other processes cannot import",
                advice="move it to the top level of a module, or use workers=0",
            )
        spec.entry_point = f"{module}:{name}"
    spec.kwargs = {
        name: portable(value) if isinstance(value, EnvSpec) else value for name, value in spec.kwargs.items()
    }
    spec.vector_entry_point = None
    return spec.to_json()
