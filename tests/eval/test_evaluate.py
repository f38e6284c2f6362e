"""The panel runner: every task as often as asked, the same episodes for whoever plays."""

from contextlib import nullcontext

import pytest

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.agents.agent import ExpertAgent, RandomAgent
from gagpo.agents.setup import make_env
from gagpo.envs.pool import WorkerPool
from gagpo.envs.tasks import EmptySplit, Task, TaskSet
from gagpo.eval.conditions import conditions_of
from gagpo.eval.evaluate import EvaluatedAgent, PreparedEvaluation, choose_tasks, evaluate
from gagpo.eval.request import EvaluationRequest
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def measured(agent, tries=1, tasks=None, workers=0):
    env = make_env(CORRIDOR)
    chosen_tasks = choose_tasks(env.tasks("test"), tasks)
    with WorkerPool(CORRIDOR, {"expert": True}, workers=workers) as pool:
        evaluated = EvaluatedAgent(agent, "m", 0, {})
        return evaluate(evaluated, pool, chosen_tasks, CORRIDOR, tries=tries, quiet=True)


def test_every_task_exactly_as_often_as_asked():
    result, episodes = measured(ExpertAgent(), tries=3)
    assert result.episodes == 12 and result.success.value == 1.0
    assert [(e.task, e.sample) for e in episodes] == [(f"door-{d:02d}", s) for d in range(8, 12) for s in range(3)]
    assert all(e.split == "test" for e in episodes)


def test_who_plays_does_not_change_the_problems_and_playing_again_changes_nothing():
    (_, expert), (first, random), (again, _) = (measured(a) for a in (ExpertAgent(), RandomAgent(), RandomAgent()))
    assert [e.turns[0].observation for e in expert] == [e.turns[0].observation for e in random]
    assert first == again


def test_a_part_of_a_split_is_spread_evenly_and_has_its_own_hash():
    tasks = TaskSet("test", [Task(f"{i:03d}", "test") for i in range(100)])
    segment = choose_tasks(tasks, 4)
    assert segment.ids == ["000", "025", "050", "075"] and segment.hash != tasks.hash
    assert choose_tasks(tasks, 100) is tasks and choose_tasks(tasks) is tasks


def test_an_empty_split_is_refused():
    with rejects(EmptySplit, key="split", advice="Make some"):
        choose_tasks(TaskSet("test", [], advice="Make some."))


class Stopped(Exception):
    """Raised where the episodes would begin."""


@pytest.mark.parametrize(("asked", "expected"), [(None, 3), (7, 7)])
def test_an_evaluation_starts_as_many_programs_as_there_are_cores(tmp_path, monkeypatch, asked, expected):
    pytest.importorskip("uvicorn")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "split": "test"}\n')
    kwargs = {"command": "python program.py", "tasks": str(tmp_path / "tasks.jsonl")}
    chosen = []

    def stop(evaluated, *arguments, **options):
        chosen.append(evaluated.concurrency)
        raise Stopped

    monkeypatch.setattr("gagpo.envs.program.env.available_cores", lambda: 3)
    monkeypatch.setattr("gagpo.eval.evaluate.open_pool", lambda *arguments, **options: nullcontext())
    monkeypatch.setattr("gagpo.eval.evaluate.evaluate", stop)
    for environment, inputs, highest in (("gagpo/Program-v0", kwargs, expected), (CORRIDOR, {}, asked or 256)):
        request = EvaluationRequest(model="random", environment=environment, kwargs=inputs, concurrency=asked)
        prepared = PreparedEvaluation.of(request, conditions_of(request, None, None))
        with pytest.raises(Stopped):
            prepared.run(EvaluatedAgent(RandomAgent(), "random", None, prepared.kwargs))
        assert chosen.pop() == highest
