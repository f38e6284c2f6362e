"""Rewards that are not 0 and 1: the mean reward comes first everywhere, with success next to it if it is reported."""

import json
from dataclasses import replace

import pytest

from gagpo.data import SUCCESS_ASSUMED, Episode, Turn
from gagpo.eval.compare import compare_results
from gagpo.eval.curves import chart_panels, plot_curves
from gagpo.eval.health import health
from gagpo.eval.measures import REWARD
from gagpo.eval.report.report import write_report
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.eval.runs import load_run
from gagpo.eval.statistics import cluster_bootstrap, paired_mean_difference, paired_mean_test
from gagpo.eval.study import RunRow, Study, row_of
from gagpo.eval.summary import MAX_CUT, measured_facts, result_lines, whole_tables
from gagpo.eval.units import reward_number
from gagpo.training.events import EvaluationFinished, IterationFinished

TASKS = 12
TASK_SET = EvaluatedTaskSet("gagpo/Score-v0", "test", "0123456789abcdef", TASKS)


def result(rewards, successes=(), task_set=TASK_SET, assumed=False, cut=0):
    info = {SUCCESS_ASSUMED: True} if assumed else {}
    episodes = [
        Episode(
            f"task {i:02}",
            "even" if i % 2 == 0 else "odd",
            turns=[Turn("o", "r", "a", reward=reward, cut=i < cut)],
            success=i in successes,
            outcome="terminated",
            info=dict(info),
        )
        for i, reward in enumerate(rewards)
    ]
    return EvalResult.from_episodes(episodes, task_set, "m", None)


LOW = [0.0125 * (1 + i % 3) for i in range(TASKS)]
HIGH = [0.125 * (1 + i % 3) for i in range(TASKS)]


def test_a_difference_of_means_by_hand():
    rise = paired_mean_difference([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert (rise.value, rise.low, rise.high) == (1.0, 1.0, 1.0)
    p, name = paired_mean_test([0.0] * 6, [0.5] * 6)
    assert p == pytest.approx(2 / 2**6) and name == "sign flips over tasks"
    assert paired_mean_test([0.1 + 0.2], [0.3]) == (1.0, name), "sums in another order are equal"
    assert paired_mean_test([-3.0, 2.0], [-3.0, 2.0])[0] == 1.0


def test_the_interval_is_a_bootstrap_over_tasks():
    graded = result(LOW)
    assert graded.mean_reward == cluster_bootstrap(LOW, [1] * TASKS)
    assert graded.mean_reward.value == pytest.approx(sum(LOW) / TASKS)
    assert REWARD.values(graded.tasks).tolist() == LOW


@pytest.mark.parametrize("rewards", [LOW, [-reward for reward in LOW], [100 * reward for reward in LOW]])
def test_without_success_only_the_mean_reward_is_shown(rewards):
    first, *remaining = measured_facts(result(rewards))
    assert first[0] == "mean reward" and reward_number(sum(rewards) / TASKS) in first[1]
    assert "success %" not in dict(remaining)
    text = "\n".join(result_lines(result(rewards)))
    assert "success" not in text and "even" in text


def test_success_is_next_to_the_mean_reward_if_an_episode_succeeds():
    facts = measured_facts(result(HIGH, successes={0, 1, 2}))
    assert [name for name, _ in facts[:2]] == ["mean reward", "success %"]
    assert facts[1][1].startswith("25.0 [")


def test_a_success_that_is_assumed_from_a_graded_reward_is_not_shown():
    assumed = result(HIGH, successes=set(range(TASKS)), assumed=True)
    assert "success %" not in dict(measured_facts(assumed))
    assert EvalResult.from_json(assumed.to_json()) == assumed
    assert "success_assumed" not in result(HIGH).to_json()


def test_rewards_of_0_and_1_print_as_ever():
    plain = result([1.0, 0.0] * 6, successes=set(range(0, TASKS, 2)))
    assert [name for name, _ in measured_facts(plain)[:2]] == ["success %", "mean reward"]
    lines = compare_results({"before": plain, "after": plain}).lines()
    assert lines[3].split() == ["result", "success", "%", "turns", "failed"]
    assert "reward_differences" not in compare_results({"before": plain, "after": plain}).record()
    assert "reward_task_types" not in plain.summary()


@pytest.mark.parametrize("width", [30, 60, 100])
def test_a_comparison_leads_with_the_mean_reward_and_its_paired_test(width):
    comparison = compare_results({"before": result(LOW), "after": result(HIGH, successes={1})})
    (rise,) = comparison.of(REWARD)
    assert (rise.gained, rise.lost) == (TASKS, 0) and rise.p == pytest.approx(2 / 2**TASKS)
    assert rise.rise.value == pytest.approx(sum(HIGH) / TASKS - sum(LOW) / TASKS)
    lines = comparison.lines(width)
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    assert text.index("mean reward") < text.index("success") and "sign flips" in text
    record = json.loads(json.dumps(comparison.record()))
    assert record["reward_differences"]["after"]["p"] == rise.p and record["differences"]["after"]["value"] > 0


def test_several_mean_rewards_are_corrected_by_holm():
    few = [*LOW[:7], *HIGH[7:]]
    first, second = compare_results({"a": result(LOW), "b": result(HIGH), "c": result(few)}).of(REWARD)
    assert first.p_holm == pytest.approx(2 * first.p) and second.p_holm == second.p


def test_pass_at_k_is_left_out_where_no_success_is_reported():
    twice = replace(TASK_SET, tries=2)
    episodes = [
        Episode(f"task {i:02}", sample=j, turns=[Turn("o", "r", "a", reward=0.5)], outcome="terminated")
        for i in range(TASKS)
        for j in range(2)
    ]
    graded = EvalResult.from_episodes(episodes, twice, "m", None)
    assert "pass@k" not in "\n".join(compare_results({"a": graded, "b": graded}).lines())


def test_several_environments_have_a_mean_reward_each():
    rewards, rates = whole_tables({"shop": {"x": result(HIGH, {1})}, "maths": {"x": result([1.0, 0.0] * 6, {0})}})
    assert rewards.header[0] == "mean reward" and rates.header[0] == "success %"
    assert rewards.rows[-1][:2] == ["the whole", str(2 * TASKS)]


def test_few_cut_responses_bring_no_advice():
    many = EvaluatedTaskSet("gagpo/Score-v0", "test", "0123456789abcdef", 3000, conditions={"max_tokens": 8})
    facts = {
        cut: dict(measured_facts(result([1.0] * 3000, task_set=many, cut=cut)))["invalid %"] for cut in (1, 60, 300)
    }
    assert "cut" not in facts[1], "0.0 % cut"
    assert "2.0 % of the answers cut at 8 tokens" in facts[60] and "raise" not in facts[60]
    assert MAX_CUT < 300 / 3000 and "raise max_tokens" in facts[300]


# Training -------------------------------------------------------------------------------------------------------------


def test_an_evaluation_and_an_iteration_lead_with_the_mean_reward():
    assert str(EvaluationFinished("after-test", result(LOW))).startswith("after-test: reward 0.0250 [0.0")
    both = str(EvaluationFinished("after-test", result(HIGH, {0})))
    assert both.index("reward") < both.index("success 8.3 % [")
    row = dict.fromkeys(
        ("mean_turns", "invalid_rate", "tokens_per_second", "seconds_env", "seconds_generate", "seconds_train"), 1.0
    )
    from gagpo.runs.headline import headlines

    row |= {"iteration": 3, "success_rate": 0.0, "reward_mean": 0.0125, "graded_rewards": 1.0}
    assert str(IterationFinished(row, 0.0, headlines([row]))).startswith("   3  reward  0.0125  turns  1.0")
    assert "reward  0.0125  success   5.0 %" in str(
        IterationFinished(row | {"success_rate": 0.05}, 0.0, headlines([row, row | {"success_rate": 0.05}]))
    )
    shop = {f"{name}/shop": value for name, value in row.items()}
    assert "shop 0.0125" in str(IterationFinished(row | shop, 0.0, headlines([row | shop])))


def test_health_tells_the_rise_of_the_reward():
    rows = [
        {"iteration": i, "success_rate": 0.0, "reward_mean": -2.0 + 0.1 * i, "graded_rewards": 1.0} for i in range(20)
    ]
    (finding,) = [item for item in health(rows) if "in training went" in item.sentence]
    assert finding.level == "good" and "mean reward in training went from -1.8 to -0.3" in finding.sentence
    (finding,) = [item for item in health(rows[::-1]) if "in training went" in item.sentence]
    assert finding.level == "bad" and "getting worse" in finding.sentence


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def graded_run(tmp_path, make_run):
    """A run whose rewards rise tenfold and that never reports success."""

    def make(name="score-seed1", scale=1.0):
        folder = make_run(tmp_path / name, iterations=6)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for i, row in enumerate(rows, 1):
            row |= {"success_rate": 0.0, "reward_mean": 0.02 * i * scale, "graded_rewards": 1.0}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for path in (folder / "evals").glob("*.json"):
            path.unlink()
        for stage, rewards in (("before", LOW), ("iteration-0003", HIGH), ("after", HIGH)):
            result([scale * reward for reward in rewards]).save(folder / "evals" / f"{stage}-test.json")
        return folder

    return make


def test_curves_have_an_axis_that_fits_the_rewards(graded_run, tmp_path):
    run = load_run(graded_run())
    titles = [(panel.title, panel.unit, panel.bounded) for panel in chart_panels({"score": [run]}, "iteration", 1)]
    assert titles == [("reward per episode", "reward", False), ("mean reward on test", "reward", False)]
    assert plot_curves({"score": [run]}, tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    succeeded = replace(run, metrics=tuple({**row, "success_rate": 0.1} for row in run.metrics))
    panels = chart_panels({"score": [succeeded]}, "iteration", 1)
    assert [panel.bounded for panel in panels] == [False, False, True, True], "success is drawn below"


def test_the_report_leads_with_the_mean_reward(graded_run):
    page = write_report(graded_run()).read_text()
    assert "Mean reward on test: 0.0250 before, <b>0.250</b> after training, +0.225 [" in page
    assert "The two highest and the two lowest rewards." in page and ">no success<" not in page


def test_several_runs_are_compared_in_rewards(graded_run):
    runs = [
        load_run(graded_run(f"{label}-seed{seed}", scale))
        for label, scale in (("a", 1.0), ("b", 1.5))
        for seed, scale in ((1, scale), (2, scale * 1.1))
    ]
    rows = [row_of(run.label, run) for run in runs]
    assert all(row.graded and not row.reports_success for row in rows)
    study = Study.of([RunRow.model_validate_json(row.model_dump_json()) for row in rows], "a")
    (table,) = study.tables()
    assert table.header[2:5] == ["area", "reward after", "minus a"]
    assert table.rows[0][0] == "b" and table.rows[0][4].startswith("+0.13")
    assert study.record()["b"]["reward"]["gap"]["value"] == pytest.approx(0.13125)
    assert "mean reward 0.0250" in " ".join(study.notes())
    for width in (30, 60, 100):
        assert all(len(line) <= width for line in study.lines(width))
    (latex,) = (table.latex(caption) for caption in study.captions())
    assert r"\caption{Mean reward on test (12 tasks, one episode each, hash 0123456789abcdef)." in latex[2]
