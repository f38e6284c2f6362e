"""The settings of a run: their keys and types, how they are read from a file, and errors for wrong ones."""

from gagpo.settings.environment import ContextSettings, EnvironmentSettings, RunEnvironment
from gagpo.settings.files import dump, find_config, load, load_stored, parse, shipped_configs
from gagpo.settings.resolve import resolve
from gagpo.settings.rollout import EngineSettings, RolloutSettings
from gagpo.settings.run import RunSettings, SettingsError
from gagpo.settings.sft import SftModelSettings, SftSettings
from gagpo.settings.training import LoraSettings, OptimizerSettings, TrainingSettings

__all__ = [
    "ContextSettings",
    "EngineSettings",
    "EnvironmentSettings",
    "LoraSettings",
    "OptimizerSettings",
    "RolloutSettings",
    "RunEnvironment",
    "RunSettings",
    "SettingsError",
    "SftModelSettings",
    "SftSettings",
    "TrainingSettings",
    "dump",
    "find_config",
    "load",
    "load_stored",
    "parse",
    "resolve",
    "shipped_configs",
]
