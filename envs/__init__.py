"""Text environments as ``gymnasium.Env``s. Importing this package registers them, without importing torch."""

import gymnasium

import gagpo.envs.vector  # noqa: F401 (registers how texts are shared between processes)
from gagpo.base import renamed
from gagpo.envs.base import Outcome, Text, TextEnv
from gagpo.envs.offers import environment_offers
from gagpo.envs.tasks import EmptySplit, Task, TaskSet, UnknownTask

__all__ = ["EmptySplit", "Outcome", "Task", "TaskSet", "Text", "TextEnv", "UnknownTask"]

for _offer in environment_offers():
    renamed.ARGUMENTS.update(_offer.renamed_arguments)
    for _name, _entry_point in _offer.environments.items():
        # The passive checker accepts Gymnasium's own spaces only, and TextEnv itself enforces the order of calls.
        gymnasium.register(f"gagpo/{_name}", entry_point=_entry_point, disable_env_checker=True, order_enforce=False)
