"""Rates and lengths from a run's folder, and the command that uses them."""

import json

import numpy as np
import pytest
import yaml

from gagpo.planning.plan import Guess
from gagpo.planning.simulate import measure as measuring
from gagpo.planning.simulate import rates as known
from gagpo.planning.simulate.workload import guessed
from gagpo.settings import SettingsError, load
from tests.gagpo.training.test_trainer import run


def written(folder, config, iterations=5, fixed=0.01, each=0.001, step=0.05, per_token=2e-3, **changes):
    """A run folder whose numbers follow from rates that are told; two episodes of two and three turns."""
    settings = load(config)
    (folder / "episodes").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({**settings.model_dump(mode="json"), **changes}))
    rows = []
    for iteration in range(1, iterations + 1):
        said = [[2 + iteration, 3], [1, 4, 2]]
        records, tokens, trained = [], 0, 0
        for responses in said:
            held, turns = 0, []
            for count in responses:
                prompt = held + 10
                words = {"prompt": prompt, "read": ["x"] * 10, "text": ["y"] * count}
                turns.append({"tokens": words})
                held, tokens = prompt + count, tokens + 10 + count
            trained += held
            records.append({"turns": turns})
        passes = max(said[0][0], 1) + 4 + 2
        waits = 2 + 2 + 2 + 1  # resets, and one worker for both
        count = sum(map(sum, said))
        generate, train = fixed * passes + each * tokens, per_token * trained
        seconds = generate + train + step * waits
        row = {"iteration": iteration, "seconds_generate": generate, "seconds_env": step * waits}
        row |= {"seconds_train": train, "tokens_per_second": count / seconds}
        rows.append(row)
        path = folder / "episodes" / f"train-{iteration:04d}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


FULL = {"context": {"history": "full"}, "rollout": {"workers": 1}}


def test_rates_are_found_again(corridor, tmp_path):
    found = measuring.measure(written(tmp_path / "run", corridor(**FULL)))
    rates = found.rates
    assert (rates.pass_seconds, rates.sequence_seconds) == (pytest.approx(0.01), pytest.approx(0.001))
    assert rates.read_seconds == rates.sequence_seconds and rates.environment_seconds == pytest.approx(0.05)
    assert rates.train_seconds == pytest.approx(2e-3) and rates.update_seconds == 0
    assert rates.environment_spread == pytest.approx(0)
    assert len(found.workload.episodes) == 8 and found.workload.mean_turns == 2.5
    assert [turn.read for turn in found.workload.episodes[1]] == [10, 10, 10]
    assert [turn.context for turn in found.workload.episodes[1]] == [10, 21, 35]
    assert found.workload.rows(found.workload.episodes[1]) == [37]


def test_a_real_run_can_be_measured_and_simulated(corridor, tmp_path, capsys):
    from gagpo.cli.main import app

    config = corridor(training={"iterations": 3}, evaluation={"before": False, "tasks": 1})
    folder = run(config, tmp_path / "run")
    found = measuring.measure(folder.path)
    turns = [len(turns) for turns in found.workload.episodes]
    assert np.mean(turns) == pytest.approx(np.mean([row["mean_turns"] for row in folder.metrics()[1:]]))
    assert found.rates.environment_seconds > 0 and found.rates.train_seconds > 0
    rates = tmp_path / "rates.yaml"
    command = ["simulate", str(config), "--measure", str(folder.path), "--gpus", "1,2", "--write-rates", str(rates)]
    assert app([*command, "--json"], standalone_mode=False) in (None, 0)
    said = capsys.readouterr().out
    record = json.loads(said.splitlines()[-1])
    assert [(line["gpus"], line["ahead"]) for line in record["lines"]] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(line["seconds"] > 0 and line["bottleneck"] for line in record["lines"])
    assert "on-policy (ahead 0) takes" in said and "measured: 2 iterations" in said
    assert known.load(rates) == found.rates


def test_what_cannot_be_measured_is_said(corridor, tmp_path):
    with pytest.raises(SettingsError, match="is not a run"):
        measuring.measure(tmp_path)
    with pytest.raises(SettingsError, match="keep_episodes=1"):
        measuring.measure(written(tmp_path / "short", corridor(**FULL), iterations=1))
    config = corridor(context={"history": "full"}, rollout={"workers": 1, "lockstep": False})
    with pytest.raises(SettingsError, match="lockstep=true"):
        measuring.measure(written(tmp_path / "free", config))
    folder = written(tmp_path / "old", corridor(**FULL))
    (folder / "episodes" / "train-0002.jsonl").write_text('{"turns": [{"observation": "x"}]}\n')
    with pytest.raises(ValueError, match="how many tokens"):
        measuring.measure(folder)


@pytest.mark.parametrize(
    "text,said",
    [
        ("[1]", "must hold keys and values"),
        ("pass_second: 1", "no option 'pass_second'; nearest: pass_seconds"),
        ("pass_seconds: -1", "pass_seconds: Input should be greater than or equal to 0"),
        ("pass_seconds: yes", "pass_seconds: Input should be a valid number"),
        ("link: 0", "link: Input should be greater than 0"),
        ("per_node: 0", "per_node: Input should be greater than or equal to 1"),
        ("pass_seconds: .nan", "pass_seconds: Input should be greater than or equal to 0"),
        ("{", "is not a YAML file"),
    ],
)
def test_a_file_of_rates_says_what_is_wrong_with_it(tmp_path, text, said):
    path = tmp_path / "rates.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        known.load(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        known.load(tmp_path / "none.yaml")


def test_guessed_lengths_have_the_means_of_the_guess(corridor):
    settings = load(corridor(rollout={"max_tokens": 100}))
    made = guessed(settings, Guess(prompt=30, turns=8, response=10), count=4000)
    assert made.mean_turns == pytest.approx(8, rel=0.05) and made.mean_response == pytest.approx(10, rel=0.05)
    assert made.windowed and max(turn.response for turns in made.episodes for turn in turns) <= 100
