"""Every key of a run: its type, how it is read from a file, and the error for a wrong one."""

from gagpo.settings.environment import ContextSettings, EnvironmentSettings
from gagpo.settings.environments import EnvironmentRow, RunEnvironment
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

__all__ = [
    "ClusterSettings",
    "ContextSettings",
    "EngineSettings",
    "EnvironmentRow",
    "EnvironmentSettings",
    "EvaluationSettings",
    "LoraSettings",
    "OptimizerSettings",
    "RanksSettings",
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
    "parse",
    "shipped_configs",
    "with_overrides",
]
