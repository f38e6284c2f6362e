"""An exported model loads elsewhere, plays the same, and has a card with its results."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.eval.models import evaluate
from gagpo.eval.results import EvalResult
from gagpo.eval.summary import with_interval
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.export import CARD, export, names_a_run
from gagpo.training.trainer import train


@pytest.fixture(scope="module")
def made(tmp_path_factory, warm_model):
    """A finished run of two iterations, a checkpoint of each."""
    from tests.gagpo.conftest import CORRIDOR

    folder = tmp_path_factory.mktemp("made")
    lora = {"rank": 4, "alpha": 4.0}
    values = {**CORRIDOR, "model": warm_model, "lora": lora, "optimizer": {"learning_rate": 0.02}}
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    train(RunFolder.create(folder / "run", load(folder / "run.yaml")), quiet=True)
    return folder / "run"


def test_it_loads_with_transformers_and_plays_the_same_greedily(made, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = export(str(made), tmp_path / "out")
    assert (out / "model.safetensors").exists() and (out / "chat_template.jinja").exists()
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    assert theirs.dtype == torch.float32
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "corridor"}], add_generation_prompt=True)
    ids = np.asarray(prompt["input_ids"] if hasattr(prompt, "keys") else prompt, np.int32)
    written = theirs.generate(torch.as_tensor(ids[None], dtype=torch.long), max_new_tokens=8, do_sample=False)[0]
    own = TransformersEngine(load_model(str(out)), load_tokenizer(str(out)))
    (response,) = own.generate([Request(1, ids, 1)], Sampling(0.0, 8))
    assert written[len(ids) :].tolist()[: len(response.ids)] == response.ids.tolist()
    panel = {"environment": "gagpo.envs.testing:gagpo-test/Corridor-v0", "split": "test", "kwargs": {"max_turns": 16}}
    choices = {**panel, "temperature": 0.0, "max_tokens": 3, "context": {"history": 0}, "workers": 0, "quiet": True}
    results = [evaluate(str(model), **choices).tasks for model in (made, out)]
    assert results[0] == results[1]


def test_a_run_whose_credit_is_missing_is_evaluated_exported_and_read(made, tmp_path):
    """Only training needs the file of the credit, and only training runs it."""
    from gagpo.eval.compare import compare_files
    from gagpo.eval.report.report import write_report

    run = tmp_path / "run"
    shutil.copytree(made, run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["algorithm"] |= {"credit": {"name": "nowhere_at_all:LooState", "share": 0.5}, "critic": {}}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert "nowhere_at_all:LooState" in (export(str(run), tmp_path / "out") / CARD).read_text()
    assert evaluate(str(run), tasks=1, workers=0, quiet=True).failed == 0
    assert evaluate("random", like=run, tasks=1, workers=0, quiet=True).failed == 0
    compare_files([run, made], "test")
    assert write_report(run).exists()
    with pytest.raises(SettingsError, match="credit nowhere_at_all:LooState: there is no module 'nowhere_at_all'"):
        _ = RunFolder.open(run).settings


def test_the_card_says_what_it_is_worth_and_on_what(made, tmp_path):
    body = (export(str(made), tmp_path / "out") / CARD).read_text()
    after = EvalResult.load(made / "evals" / "after-test.json")
    rates = [EvalResult.load(made / "evals" / f"{stage}-test.json").success for stage in ("before", "after")]
    for rate in rates:
        assert f"| {with_interval(rate)} |" in body
    assert "before training" in body and "iteration 2" in body and f"`{after.panel.split_hash}`" in body
    assert (made / "config.yaml").read_text().strip() in body
    versions = json.loads((made / "versions.json").read_text())
    assert f"torch {versions['torch']}" in body and "machine" not in body.rpartition("## Versions")[2]


def test_the_average_has_a_card_of_its_own(made, tmp_path):
    text = (export(f"{made}@ema", tmp_path / "out") / CARD).read_text()
    rate = EvalResult.load(made / "evals" / "average-test.json").success
    assert f"| {with_interval(rate)} |" in text
    assert "# corridor, iteration 2, the average of the weights\n" in text
    assert "| iteration 2, the average of the weights |" in text and "| iteration 2 |" not in text


def test_an_earlier_iteration_and_an_adapter_alone(made, tmp_path):
    out = export(f"{made}@1", tmp_path / "first")
    text = (out / CARD).read_text()
    assert "iteration 1" in text and "before training" in text
    alone = export(str(made), tmp_path / "alone", adapter=True)
    assert adapters.is_adapter(alone) and "An adapter in peft's format." in (alone / CARD).read_text()
    assert not (alone / "model.safetensors").exists()


def test_an_adapter_names_its_base_so_that_peft_finds_it_from_everywhere(corridor, warm_model, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    place = Path(warm_model)
    monkeypatch.chdir(place.parent)
    config = corridor(model=place.name, lora={"rank": 2, "alpha": 2.0}, training={"iterations": 1})
    train(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    alone = export(str(tmp_path / "run"), tmp_path / "alone", adapter=True)
    monkeypatch.chdir("/")
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(alone)
    assert theirs.peft_config["default"].base_model_name_or_path == str(place.resolve())


def test_what_is_there_or_not_there_is_refused(made, tmp_path):
    (tmp_path / "taken").mkdir()
    for source, out, message in (
        (made, tmp_path / "taken", "exists; choose a folder"),
        (f"{made}@9", tmp_path / "new", r"has no checkpoint of iteration 9; choose one of \[1, 2\]"),
        (tmp_path / "taken", tmp_path / "new", "is not a run"),
    ):
        with pytest.raises(SettingsError, match=message):
            export(str(source), out)
    assert names_a_run(str(made)) and names_a_run(f"{made}@1") and not names_a_run("episodes.jsonl")
    weights = made / "checkpoints" / "iteration-000001" / "model" / adapters.WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="is damaged"):
        export(f"{made}@1", tmp_path / "new")
    weights.write_bytes(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]
