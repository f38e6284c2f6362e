"""Every key of a run: its type, how it is read from a file, and the error for a wrong one."""

from gagpo.settings.environment import ContextSettings, EnvironmentSettings
from gagpo.settings.errors import SettingsError
from gagpo.settings.files import dump, find_config, load, parse, shipped_configs, with_overrides
from gagpo.settings.rollout import EngineSettings, RolloutSettings
from gagpo.settings.run import RunSettings
from gagpo.settings.sft import SftModelSettings, SftSettings
from gagpo.settings.training import (
    ClusterSettings,
    EvaluationSettings,
    LoraSettings,
    OptimizerSettings,
    RanksSettings,
    TrainingSettings,
)
from gagpo.settings.worlds import World, WorldSettings

__all__ = [
    "ClusterSettings",
    "ContextSettings",
    "EngineSettings",
    "EnvironmentSettings",
    "EvaluationSettings",
    "LoraSettings",
    "OptimizerSettings",
    "RanksSettings",
    "RolloutSettings",
    "RunSettings",
    "SettingsError",
    "SftModelSettings",
    "SftSettings",
    "TrainingSettings",
    "World",
    "WorldSettings",
    "dump",
    "find_config",
    "load",
    "parse",
    "shipped_configs",
    "with_overrides",
]
