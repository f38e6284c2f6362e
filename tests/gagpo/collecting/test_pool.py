"""How a run opens its pool of environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from gagpo.collecting.pool import open_run_pool
from gagpo.settings import EnvironmentSettings, RolloutSettings, load

CONFIG = Path(__file__).parents[3] / "configs" / "alfworld-quickstart.yaml"


def test_left_alone_a_run_steps_cheap_envs_itself_and_others_in_processes() -> None:
    run = load(CONFIG)
    corridor, faulty = "gagpo.envs.testing:gagpo-test/Corridor-v0", "tests.envs.faulty:gagpo-test/Faulty-v0"
    for env, task, processes in ((corridor, "door-01", 0), (faulty, "quiet", 2)):
        run = run.model_copy(update={"environment": EnvironmentSettings(id=env)})
        with open_run_pool(run) as pool:
            pool.reset(0, task, seed=0)
            assert pool.wait()[0].kind == "reset"
            assert (len(pool.processes) > 0) is (processes > 0)


def test_a_thread_that_samples_ahead_steps_nothing_itself() -> None:
    with pytest.raises(ValueError, match="set workers=1"):
        RolloutSettings(ahead=1, workers=0)
    for workers in (-1, 1025):
        with pytest.raises(ValueError, match="workers must be auto or a number from 0 to 1024"):
            RolloutSettings(workers=workers)
