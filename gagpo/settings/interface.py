"""Arguments of an environment that a model is trained for, such as the form of its actions."""

from __future__ import annotations

from typing import Any, TypeVar

from gagpo.base.core_schema import read_mapping
from gagpo.envs.lookup import declared
from gagpo.model import starters
from gagpo.settings.environment import EnvironmentSettings
from gagpo.settings.run import RunSettings

Environment = TypeVar("Environment", bound=EnvironmentSettings)


def interface_of(trained: EnvironmentSettings | None, environment: str) -> dict[str, Any]:
    """The arguments that a model reads and writes by in ``environment``; empty if it was trained in another one."""
    if trained is None or trained.id != environment:
        return {}
    names = declared(environment, "interface")
    return {name: value for name, value in trained.kwargs.items() if name in names}


def interface_of_starter(model: str | None, environment: str) -> dict[str, Any]:
    """As :func:`interface_of`; empty if ``model`` is not ``starter:NAME``. Only the starter's recipe is read."""
    name = (model or "").removeprefix(starters.PREFIX)
    if model is None or not starters.is_starter(model) or name not in starters.names():
        return {}  # an unknown starter is reported where it is loaded
    recipe = read_mapping(starters.root() / name / starters.SETTINGS)
    return interface_of(EnvironmentSettings.model_validate(recipe["environment"]), environment)


def with_interface(settings: RunSettings) -> RunSettings:
    """The settings of a new run, whose environments take what they leave open from the starter that it begins with.

    Without it, a model that names what it clicks would be shown how to write numbers, and fail without an error.
    """
    models = (settings.model, settings.sft.base_model if settings.sft else None)

    def changed(environment: Environment) -> Environment:
        arguments: dict[str, Any] = {}
        for model in models:
            arguments = interface_of_starter(model, environment.id) | arguments
        missing = {name: value for name, value in arguments.items() if name not in environment.kwargs}
        return environment.model_copy(update={"kwargs": {**environment.kwargs, **missing}}) if missing else environment

    if settings.environment is not None:
        return settings.model_copy(update={"environment": changed(settings.environment)})
    return settings.model_copy(update={"environments": [changed(row) for row in settings.environments]})
