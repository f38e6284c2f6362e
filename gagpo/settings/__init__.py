"""Every key of a run: what it may hold, how it is read from a file, and what is said of a wrong one."""

from gagpo.settings.environment import ContextSettings, EnvironmentSettings
from gagpo.settings.errors import SettingsError
from gagpo.settings.files import dump, find_config, load, parse, shipped_configs, with_overrides
from gagpo.settings.rollout import EngineSettings, RolloutSettings
from gagpo.settings.run import RunSettings
from gagpo.settings.training import (
    ClusterSettings,
    EvaluationSettings,
    LoraSettings,
    OptimizerSettings,
    RanksSettings,
    TrainingSettings,
)
from gagpo.settings.warm_start import MixtureSettings, SmallModelSettings, TeacherSettings, WarmStartSettings
from gagpo.settings.worlds import World, WorldSettings

__all__ = [
    "ClusterSettings",
    "ContextSettings",
    "EngineSettings",
    "EnvironmentSettings",
    "EvaluationSettings",
    "LoraSettings",
    "MixtureSettings",
    "OptimizerSettings",
    "RanksSettings",
    "RolloutSettings",
    "RunSettings",
    "SettingsError",
    "SmallModelSettings",
    "TeacherSettings",
    "TrainingSettings",
    "WarmStartSettings",
    "World",
    "WorldSettings",
    "dump",
    "find_config",
    "load",
    "parse",
    "shipped_configs",
    "with_overrides",
]
