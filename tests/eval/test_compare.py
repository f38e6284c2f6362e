"""Comparisons: same panel or nothing, paired by task, corrected for several looks."""

import json
from dataclasses import replace

import pytest

from gagpo.data import Episode
from gagpo.eval.compare import DifferentTaskSets, compare_files, compare_results
from gagpo.eval.measures import SUCCESS
from gagpo.eval.results import EvalResult, EvaluatedTaskSet, whole
from gagpo.eval.statistics import paired_difference
from tests.rejections import rejects

PANEL = EvaluatedTaskSet("gagpo/ALFWorld-v0", "valid_unseen", "0123456789abcdef", 20)


def result(solved, panel=PANEL, model="m"):
    episodes = [
        Episode(f"task {i:02}", "pick", "valid_unseen", sample=j, success=i in solved, outcome="terminated")
        for i in range(panel.tasks)
        for j in range(panel.tries)
    ]
    return EvalResult.from_episodes(episodes, panel, model, 0.4)


def test_two_results_by_hand():
    before, after = result({0, 1, 2, 3}), result({1, 2, 3, *range(6, 17)})
    comparison = compare_results({"before": before, "after": after})
    (item,) = comparison.of(SUCCESS)
    assert (item.gained, item.lost) == (11, 1)
    assert item.p == item.p_holm == pytest.approx(2 * (1 + 12) / 2**12)
    counts = [([task.successes for task in end.tasks], [1] * 20) for end in (before, after)]
    assert item.rise == paired_difference(*counts)
    assert item.rise.value == pytest.approx(0.5)


def test_p_values_are_corrected_for_several():
    results = {"base": result(set()), "a": result(set(range(7))), "b": result(set(range(6)))}
    item, other = compare_results(results).of(SUCCESS)
    assert (item.p, other.p) == (2 / 2**7, 2 / 2**6)
    assert (item.p_holm, other.p_holm) == (pytest.approx(4 / 2**7), 2 / 2**6)


def test_equal_results_show_no_difference():
    comparison = compare_results({"a": result({1, 2}), "b": result({1, 2})})
    (item,) = comparison.of(SUCCESS)
    assert (item.rise.value, item.p, item.gained, item.lost) == (0.0, 1.0, 0, 0)
    assert "80 % power" not in comparison.note


def test_the_note_says_which_difference_these_tasks_show():
    """Two of twenty tasks differ: their spread is .3 of a task, and a t test of twenty needs 2.95 standard errors."""
    comparison = compare_results({"a": result({1}), "b": result({1, 2, 3})})
    assert comparison.note.endswith("; these tasks show a difference of 20.3 points or more (80 % power)")
    assert comparison.record()["differences"]["b"]["detectable"] == pytest.approx(0.203, abs=5e-4)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"split_hash": "f" * 16}, "split hash '0123456789abcdef' against 'ffffffffffffffff'"),
        ({"environment": "gagpo/Math-v0"}, "environment 'gagpo/ALFWorld-v0' against 'gagpo/Math-v0'"),
        ({"split": "valid_seen"}, "split 'valid_unseen' against 'valid_seen'"),
        ({"kwargs": {"max_turns": 9}}, "kwargs {} against {'max_turns': 9}"),
    ],
)
def test_different_panels_are_refused_in_words(change, complaint):
    with pytest.raises(DifferentTaskSets) as caught:
        compare_results({"before": result({1}), "after": result({1}, replace(PANEL, **change))})
    assert str(caught.value) == f"before and after are not of the same task set: {complaint}"


def test_equal_hashes_with_other_tasks_are_refused():
    other = result({1})
    other = replace(other, tasks=(replace(other.tasks[0], task="another"), *other.tasks[1:]))
    with rejects(DifferentTaskSets, "edited"):
        compare_results({"before": result({1}), "after": other})


def test_the_number_of_tries_may_differ():
    many = result({1, 2, 3}, replace(PANEL, tries=4))
    (item,) = compare_results({"once": result({1, 2}), "four times": many}).of(SUCCESS)
    assert item.rise.value == pytest.approx(0.05) and item.test == "sign flips over tasks" and item.p == 1.0
    assert (item.gained, item.lost) == (1, 0)


def test_the_header_gives_the_number_of_tries_of_each_result():
    many = result({1, 2, 3}, replace(PANEL, tries=4))
    assert "tasks run 1 x (once), 4 x (four times), hash" in compared_text(result({1, 2}), many)
    assert "tasks once each, hash" in compared_text(result({1, 2}), result({1}))


def compared_text(once, again):
    return " ".join(" ".join(compare_results({"once": once, "four times": again}).lines()).split())


def test_files_are_named_by_their_paths(tmp_path):
    paths = []
    for run, solved in (("gagpo", {1, 2, 3}), ("grpo", {1})):
        paths.append(tmp_path / run / "evals" / "after.json")
        result(solved).save(paths[-1])
    comparison = compare_files(paths)
    names = [str(path).removesuffix(".json") for path in paths]
    assert list(comparison.results) == names
    assert json.loads(json.dumps(comparison.record()))["differences"][names[1]]["value"] == pytest.approx(-0.1)
    with rejects(ValueError, key="results"):
        compare_files(paths[:1])
    with rejects(ValueError, "named twice"):
        compare_files([paths[0], paths[0]])


def test_a_run_stands_for_its_weights_and_not_for_their_average(tmp_path, make_run):
    """The average is compared where it is named: by its file."""
    folder = make_run(tmp_path / "run", average=True)
    average, after = (folder / "evals" / f"{stage}-valid_unseen.json" for stage in ("average", "after"))
    ends = compare_files([folder, average]).results
    assert [end.tasks for end in ends.values()] == [EvalResult.load(at).tasks for at in (after, average)]
    assert len({end.tasks for end in ends.values()}) == 2


@pytest.mark.parametrize("width", [30, 60, 100])
def test_the_table_fits_and_holds_the_numbers(width):
    results = {
        "before-valid_unseen": result({1}),
        "after-valid_unseen": result({2}),
        "a very long label " * 4: result({3}),
    }
    lines = compare_results(results).lines(width)
    assert all(len(line) <= width and line.isascii() for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "5.0 [0.9, 23.6]" in text and "1.000" in text and "McNemar" in text


def in_rooms(solved, games=32, id_format="pick_and_place_simple-Mug-None-Desk-{room}/trial_T{number:03}"):
    """A result of released games in four rooms. solved: numbers of the games that were won."""
    episodes = [
        Episode(id_format.format(room=(10, 219, 308, 424)[number % 4], number=number), "pick", "valid_unseen",
                success=number in solved, outcome="terminated")
        for number in range(games)
    ]  # fmt: skip
    return EvalResult.from_episodes(episodes, replace(PANEL, tasks=games, kwargs={"games": "official"}), "m", 0.4)


def test_released_games_are_measured_by_room():
    before, after = in_rooms(set(range(8))), in_rooms(set(range(30)))
    assert after.clusters is not None and after.clusters.counted == "4 rooms"
    assert after.success.value == 30 / 32 and after.success.high - after.success.low > 0.3
    (difference,) = compare_results({"before": before, "after": after}).of(SUCCESS)
    assert (difference.p, difference.test) == (2 / 2**4, "sign flips over 4 clusters")
    assert "32 tasks once each, in 4 rooms" in "\n".join(
        line for line in compare_results({"before": before, "after": after}).lines(200)
    )
    assert after.by_type["pick"] == after.success and EvalResult.from_json(after.to_json()).success == after.success
    assert whole([after]) == after.success
    tasks = result({1, 2}, replace(PANEL, environment="gagpo/Math-v0"))
    assert whole([after, tasks]).value == 32 / 52  # a task without a room is a cluster of its own


def test_generated_games_have_a_room_of_their_own():
    generated = in_rooms(
        set(range(30)), id_format="pick_and_place_simple-Mug-None-Desk-{room}/trial_small_s0_{number:03}"
    )
    assert generated.clusters is None and generated.success.high - generated.success.low < 0.2
