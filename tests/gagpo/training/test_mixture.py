"""Runs of several environments resume bit-identically; each environment has its share, metrics and panels."""

import functools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from gagpo.collecting.pool import open_run_pool
from gagpo.credit import turns_for
from gagpo.data import read_episodes
from gagpo.eval.health import health
from gagpo.eval.models import measure, measure_all
from gagpo.eval.report.report import write_report
from gagpo.eval.request import EvaluationRequest
from gagpo.eval.results import EvalResult, whole
from gagpo.eval.runs import load_run
from gagpo.eval.viewer.index import index
from gagpo.runs.register import REGISTER, of_environment
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.trainer import Trainer, train
from tests.eval.report.test_report import Page
from tests.gagpo.distributed.conftest import require_same_run, train_in_one, train_in_two
from tests.gagpo.training.resuming import killed_after, require_equal
from tests.gagpo.training.test_trainer import run
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
ENVIRONMENTS_TRIED = [
    {"name": "long", "weight": 2, "id": CORRIDOR, "kwargs": {"max_turns": 16}},
    {"name": "short", "id": CORRIDOR, "kwargs": {"max_turns": 6}, "max_tokens": 2, "context": {"history": "full"}},
]
ROLLOUT = {"tasks": 6, "group_size": 3}


@pytest.fixture
def mixture(corridor):
    """Write a config of two corridors, one of them short and remembered; gives its path."""
    return functools.partial(corridor, environment=None, environments=ENVIRONMENTS_TRIED, evaluation={"tasks": 2})


def test_killed_after_any_iteration_it_ends_bit_equal(mixture, tmp_path):
    training = {"iterations": 4, "max_checkpoints": 4}
    whole_run = run(mixture(rollout=ROLLOUT, training=training), tmp_path / "whole")
    for done in (1, 3):
        folder = RunFolder.open(killed_after(done, whole_run, tmp_path))
        train(folder, quiet=True)
        require_equal(folder, whole_run)


@pytest.mark.slow
def test_two_ranks_do_what_one_does(mixture, tmp_path):
    config = mixture(
        rollout=ROLLOUT,
        training={"iterations": 2},
        optimizer={"learning_rate": 1e-3},
        evaluation={"tasks": 2, "before": False},
    )
    item, two = tmp_path / "of-1", tmp_path / "of-2"
    train_in_one([(config, item, None)])
    train_in_two([(config, two, None)], tmp_path)
    for folder in (item, two):  # what is compared below is named by the only environment's split
        for type_name, ending in (("evals", "json"), ("episodes", "jsonl")):
            path = folder / type_name / f"after-long.test.{ending}"
            (folder / type_name / f"after-test.{ending}").write_bytes(path.read_bytes())
    require_same_run(item, two)


def test_every_env_has_its_share_its_numbers_and_its_panel(mixture, tmp_path):
    folder = run(mixture(rollout=ROLLOUT, training={"iterations": 3}), tmp_path / "run")
    for row in folder.metrics():
        assert {name.partition("/")[0] for name in row} <= REGISTER.keys()
        episodes = {env: row[f"episodes/{env}"] for env in ("long", "short")}
        assert episodes == {"long": 4 * 3.0, "short": 2 * 3.0}
        for name in ("success_rate", "reward_mean", "mean_turns"):
            reference = sum(row[of_environment(name, env)] * count for env, count in episodes.items())
            assert reference / sum(episodes.values()) == pytest.approx(row[name])
        for name in ("invalid_rate", "response_tokens", "truncated_responses"):
            turns = {env: row[f"turns/{env}"] for env in episodes}
            reference = sum(row[of_environment(name, env)] * count for env, count in turns.items())
            assert reference / sum(turns.values()) == pytest.approx(row[name])
        groups = {"long": 4, "short": 2}
        zero = sum(row[of_environment("zero_advantage_groups", env)] * count for env, count in groups.items()) / 6
        assert zero == pytest.approx(row["zero_advantage_groups"])
    for row in read_episodes(folder.path / "episodes" / "train-0001.jsonl"):
        assert row["task"].startswith(f"{row['environment']}.door-")
        limit, first = {"long": (3, True), "short": (2, False)}[row["environment"]]
        prompts = [turn["tokens"]["prompt"] for turn in row["turns"]]
        assert all(len(turn["tokens"]["text"]) <= limit for turn in row["turns"])
        assert (len(set(prompts)) < len(prompts) or len(prompts) < 4) if first else prompts == sorted(set(prompts))
    panels = {"long.test", "short.test"}
    assert {path.stem for path in (folder.path / "evals").glob("after-*")} == {f"after-{name}" for name in panels}
    read = load_run(folder.path)
    assert set(read.splits()) == panels and folder.finished
    page = write_report(folder.path).read_text()
    result = Page(page).text.partition("success % tasks before after average")[2]
    assert re.match(r" long\.test .+ short\.test .+ the whole \d", result), "the average stands beside the rest"
    (output,) = index([read], [])["runs"]
    assert output["environments"] == ["long", "short"]
    reported = {finding.sentence.partition(": ")[0] for finding in health(folder.metrics())}
    assert {"long", "short"} <= reported


def test_a_run_is_evaluated_in_every_env_and_as_a_whole(mixture, tmp_path):
    folder = run(mixture(rollout=ROLLOUT, training={"iterations": 1}), tmp_path / "run")
    request = EvaluationRequest(model=str(folder.path), workers=0, quiet=True, episodes=tmp_path / "played.jsonl")
    outcomes = measure_all(request)
    assert outcomes.keys() == {"long", "short"}
    assert [outcomes[name].result.task_set.kwargs["max_turns"] for name in outcomes] == [16, 6]
    together = whole(outcome.result for outcome in outcomes.values())
    results = [outcome.result for outcome in outcomes.values()]
    assert together.value == sum(result.successes for result in results) / sum(result.episodes for result in results)
    assert (tmp_path / "played.long.jsonl").exists() and (tmp_path / "played.short.jsonl").exists()
    with rejects(SettingsError, key="--env", advice="long, short"):
        measure(EvaluationRequest(model=str(folder.path)))
    with rejects(SettingsError, key="--env", advice="long, short"):
        measure(EvaluationRequest(model=str(folder.path), environment="shrt"))


def test_its_panels_are_those_of_a_run_of_that_env_alone(mixture, corridor, tmp_path):
    """The same model before training: in the mixture, and by itself."""
    settings = {"training": {"iterations": 0}, "evaluation": {"tasks": 4, "episodes_per_task": 2}}
    mixed = run(mixture(**settings), tmp_path / "mixed")
    alone = run(corridor(**settings), tmp_path / "alone")
    results = [EvalResult.load(mixed.path / "evals" / "before-long.test.json")]
    results.append(EvalResult.load(alone.path / "evals" / "before-test.json"))
    assert results[0].task_set == results[1].task_set and results[0].tasks == results[1].tasks


def test_states_of_two_envs_never_meet(mixture, tmp_path):
    """Both corridors show the same texts and have the same states; the doors are the same ones too."""
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(mixture(rollout=ROLLOUT))), quiet=True)
    with open_run_pool(trainer.settings) as pool:
        collect = trainer.collector.collect(trainer.sampler.agent, pool, 0)
    texts = {
        name: {
            turn.observation for episode in collect.episodes if episode.environment == name for turn in episode.turns
        }
        for name in ("long", "short")
    }
    assert texts["long"] & texts["short"]
    for key in ("auto", "state", "observation", "history"):
        turns = turns_for(collect.episodes, trainer.settings.algorithm.credit.model_copy(update={"state_key": key}))
        env_N = turns.env_E[turns.episode_N]
        reference, other = (
            {*turns.state_N[env_N == number], *turns.end_state_E[turns.env_E == number]} for number in (0, 1)
        )
        assert reference and other and not reference & other, key


def row_of(**changes):
    return {**ENVIRONMENTS_TRIED[0], **changes}


HOSTILE = {
    "not a list": (5, "environments", ()),
    "no rows": ([], "environment", ()),
    "a row that is none": ([ENVIRONMENTS_TRIED[0], 7], "environments.1", ()),
    "a slip": ([ENVIRONMENTS_TRIED[0], row_of(name="b", wieght=2)], "environments.1.wieght", ()),
    "no id": ([ENVIRONMENTS_TRIED[0], {"name": "b"}], "environments.1.id", ()),
    "no name": ([{"id": CORRIDOR}], "environments.0.name", ()),
    "weight": ([row_of(weight=0)], "environments.0.weight", ("got 0",)),
    "endless weight": ([row_of(weight=float("inf"))], "environments.0.weight", ()),
    "a weight in words": ([row_of(weight="much")], "environments.0.weight", ("much",)),
    "a name that is a path": ([row_of(name="../../x")], "environments.0.name", ()),
    "a name with a dot": ([row_of(name="a.b")], "environments.0.name", ()),
    "a name in lines": ([row_of(name="a\nb")], "environments.0.name", ()),
    "one name twice": (
        [ENVIRONMENTS_TRIED[0], row_of(name="Long")],
        "environments",
        ("rows 0 and 1", "'Long'"),
    ),
    "prompt": (
        [row_of(context={"prompt": "tagz"})],
        "environments.0.context.prompt",
        ("'tagz'",),
    ),
    "a slip in a part": (
        [row_of(context={"promt": "tags"})],
        "environments.0.context.promt",
        ("nearest: prompt",),
    ),
    "one for the run": (
        [row_of(evaluation={"every": 2})],
        "environments.0.evaluation.every",
        ("every cannot differ",),
    ),
    "too many": ([row_of(name=f"w{number}") for number in range(65)], "environments", ("at most 64",)),
    "kwargs": ([row_of(kwargs={"a": float("nan")})], "environments.0.kwargs", ()),
    "both": (None, "environment", ("environments",)),
}


@pytest.mark.parametrize(("rows", "key", "names"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_wrong_with_a_row_is_said_of_the_row(corridor, rows, key, names):
    arguments = {"environments": ENVIRONMENTS_TRIED} if rows is None else {"environment": None, "environments": rows}
    with rejects(SettingsError, *names, key=key) as caught:
        load(corridor(**arguments))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_row_names_an_unknown_env_and_an_empty_split_before_anything_is_written(mixture, tmp_path):
    unknown = mixture(environments=[ENVIRONMENTS_TRIED[0], {"name": "other", "id": "gagpo/Nowhere-v0"}])
    with rejects(ValueError, where="environment 'gagpo/Nowhere-v0'"):
        train(RunFolder.new(tmp_path / "run", load(unknown)), quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_a_row_leaves_out_is_as_the_run_says(mixture):
    settings = load(mixture(context={"history": 3}, evaluation={"splits": ["train"]}))
    long, short = settings.all_environments
    assert (long.max_tokens, long.context.history) == (3, 3)
    assert (short.max_tokens, short.context.history) == (2, "full")
    assert settings.panels == ["long.train", "short.train"] and settings.environment_of("short.door-01") == short
    alone = settings.alone(short)
    assert alone.only_environment.environment == short.environment and alone.rollout.max_tokens == 2
    assert json.loads(settings.model_dump_json()) == json.loads(load(_written(mixture, settings)).model_dump_json())


def _written(mixture, settings):
    from gagpo.settings import dump

    path = mixture().with_name("again.yaml")
    path.write_text(dump(settings))
    return path


def test_a_credit_over_the_batch_is_given_in_each_env_by_itself(mixture, tmp_path):
    """Rewards of one environment times ten change nothing in the other, and their scale goes away in their own."""
    credit = {"preset": "gagpo", "credit": {"norm": "batch"}}
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(mixture(rollout=ROLLOUT, algorithm=credit))), quiet=True)
    with open_run_pool(trainer.settings) as pool:
        episodes = trainer.collector.collect(trainer.sampler.agent, pool, 0).episodes
    from gagpo.credit import advantages

    settings, results = trainer.settings.algorithm.credit, []
    for factor in (1.0, 10.0):
        for episode in episodes:
            scale = factor if episode.environment == "long" else 1.0
            episode.turns = [replace(turn, reward=number % 3 * scale) for number, turn in enumerate(episode.turns)]
        turns = turns_for(episodes, settings)
        results.append(advantages(turns, settings).advantage)
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)  # the norm adds a little to a deviation
    alone = [episode for episode in episodes if episode.environment == "short"]
    reference = np.array([episode.environment == "short" for episode in episodes for _ in episode.turns])
    np.testing.assert_array_equal(results[1][reference], advantages(turns_for(alone, settings), settings).advantage)


def test_a_row_is_overridden_by_its_name_or_number(mixture):
    settings = load(mixture(), ["environments.short.weight=3", "environments.0.context.prompt=tags"])
    assert [env.weight for env in settings.all_environments] == [2, 3] and settings.all_environments[
        0
    ].context.prompt.name == "tags"
    assert ENVIRONMENTS_TRIED[1].get("weight") is None
    for override, name in {
        "environments.shrt.weight=3": "'shrt'; nearest: short",
        "environment.kwargs.seed=3": "write environments.NAME.kwargs.seed=...",
        "environments.2.weight=3": "row '2'",
        "environments.short.wieght=3": "unknown key 'environments.1.wieght'",
        "environments.short.weight=0": "environments.1.weight",
    }.items():
        with rejects(SettingsError, name):
            load(mixture(), [override])
