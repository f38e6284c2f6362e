"""Text environments as ``gymnasium.Env``s. Importing this package registers them; it never imports torch."""

import gymnasium

from envs.base import Outcome, Text, TextEnv
from envs.tasks import EmptySplit, Task, TaskSet, UnknownTask

__all__ = ["EmptySplit", "Outcome", "Task", "TaskSet", "Text", "TextEnv", "UnknownTask"]

# The passive checker knows only Gymnasium's own spaces and the order enforcer repeats what TextEnv checks itself.
_plain = {"disable_env_checker": True, "order_enforce": False}

gymnasium.register("gagpo/ALFWorld-v0", entry_point="envs.alfworld.env:ALFWorldEnv", **_plain)
