"""Orders of tasks."""

from collections import Counter

import pytest

from gagpo.base.errors import GagpoError
from gagpo.controllers.curriculum import CURRICULA, BySuccess, Curriculum, TaskRecord, Uniform
from gagpo.envs.tasks import Task, TaskSet

TASKS = TaskSet("train", [Task(f"t{number:02d}", "train") for number in range(12)])


def record_of(rates):
    record = TaskRecord()
    for task, rate in rates.items():
        record.enter(task, rate)
    return record


def drawn(curriculum, record, count=2000, tasks=TASKS):
    return Counter(curriculum.task(tasks, index, 1, record) for index in range(count))


def test_uniform_plays_each_task_once_per_epoch():
    names = [Uniform().task(TASKS, index, 3, TaskRecord()) for index in range(24)]
    assert sorted(names[:12]) == sorted(names[12:]) == TASKS.ids and names[:12] != names[12:]


def test_partly_solved_tasks_are_more_frequent():
    rates = dict.fromkeys(TASKS.ids, 0.0) | {"t00": 0.5, "t01": 1.0}
    found = drawn(BySuccess(floor=0.1), record_of(rates))
    share = 1.0 / (1.0 + 11 * 0.1)
    assert found["t00"] == pytest.approx(2000 * share, rel=0.1)
    assert all(found[task] == pytest.approx(2000 * share * 0.1, rel=0.5) for task in TASKS.ids if task != "t00")


def test_new_tasks_are_mixed_with_repeated_ones():
    record = record_of({"t00": 0.5, "t01": 1.0})
    found = drawn(BySuccess(again=0.75), record)
    seen = found["t00"] + found["t01"]
    assert seen == pytest.approx(1500, rel=0.1) and len(found) == 3  # one new task at a time, until it was played
    record.enter(next(task for task in found if task not in record.rates), 0.0)
    assert drawn(BySuccess(again=0.0), record).keys().isdisjoint(record.rates)


def test_tasks_under_way_are_not_chosen():
    record = record_of({"t00": 0.5, "t01": 0.2})
    record.under_way = {"t00", "t02", "t03"}
    assert record.under_way.isdisjoint(drawn(BySuccess(), record, 300))


def test_a_record_round_trips():
    record = record_of({"t00": 0.5, "t01": 1.0, "t02": 0.25})
    record.enter("t00", 0.75)
    again = TaskRecord()
    again.load_state_dict(record.state_dict())
    assert again.rates == record.rates and again.rates["t00"] == 0.75
    for broken in ({"t": [1]}, {"t": "x"}):
        with pytest.raises((ValueError, TypeError)):
            again.load_state_dict(broken)


def test_a_curriculum_of_another_file_is_found_by_module_and_class(monkeypatch, tmp_path):
    (tmp_path / "orders.py").write_text(
        "from gagpo.controllers import Curriculum\n"
        "class Backwards(Curriculum):\n"
        "    step: int = 1\n"
        "    def task(self, tasks, index, seed, record):\n"
        "        return tasks.ids[-1 - index * self.step % len(tasks)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = CURRICULA.make({"name": "orders:Backwards", "step": 2})
    assert found.task(TASKS, 1, 0, TaskRecord()) == "t09" and found.model_dump()["step"] == 2


def test_a_curriculum_without_its_method_names_it():
    class Idle(Curriculum):
        name: str = "idle"

    with pytest.raises(GagpoError, match=r"curriculum idle does not choose tasks: add a method task\(tasks, index"):
        Idle().task(TASKS, 0, 0, TaskRecord())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, "a curriculum is a name"),
        ({"again": 1}, "a curriculum is a name"),
        ("by_sucess", "nearest: by_success"),
        ({"name": "by_success", "again": 2}, "curriculum by_success: again: .*less than or equal to 1"),
        ({"name": "uniform", "window": 2}, "curriculum uniform has no option 'window'"),
        ("os:path", "is not a curriculum: derive the class from gagpo.controllers.Curriculum"),
        ("nowhere:Thing", "there is no module 'nowhere'"),
    ],
)
def test_errors_of_curricula_are_explained(value, said):
    with pytest.raises(ValueError, match=said):
        CURRICULA.make(value)
