"""An exported model loads elsewhere, plays the same, and has a card with its results."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.base.errors import InvalidArgument
from gagpo.cli.main import app
from gagpo.eval.models import evaluate
from gagpo.eval.results import EvalResult
from gagpo.eval.units import PERCENT
from gagpo.interop.hub import PushError
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.export import CARD, export, names_a_run
from gagpo.training.model_card import base_of, data_sets_of
from gagpo.training.trainer import train
from tests.gagpo.interop.fake_hub import TOKEN, serving
from tests.rejections import rejects


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
    expected, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    assert expected.dtype == torch.float32
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "corridor"}], add_generation_prompt=True)
    ids = np.asarray(prompt["input_ids"] if hasattr(prompt, "keys") else prompt, np.int32)
    written = expected.generate(torch.as_tensor(ids[None], dtype=torch.long), max_new_tokens=8, do_sample=False)[0]
    transformers_engine = TransformersEngine(load_model(str(out)), load_tokenizer(str(out)))
    (response,) = transformers_engine.generate([Request(1, ids, 1)], Sampling(0.0, 8))
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
    with rejects(SettingsError, "nowhere_at_all:LooState", key="algorithm.credit"):
        _ = RunFolder.open(run).settings


def test_the_card_says_what_it_is_worth_and_on_what(made, tmp_path):
    body = (export(str(made), tmp_path / "out") / CARD).read_text()
    after = EvalResult.load(made / "evals" / "after-test.json")
    rates = [EvalResult.load(made / "evals" / f"{stage}-test.json").success for stage in ("before", "after")]
    for rate in rates:
        assert f"| {PERCENT.interval(rate)} |" in body
    assert "before training" in body and "iteration 2" in body and f"`{after.task_set.split_hash}`" in body
    assert (made / "config.yaml").read_text().strip() in body
    versions = json.loads((made / "versions.json").read_text())
    assert f"torch {versions['torch']}" in body and "machine" not in body.rpartition("## Versions")[2]


def test_the_average_has_a_card_of_its_own(made, tmp_path):
    text = (export(f"{made}@ema", tmp_path / "out") / CARD).read_text()
    rate = EvalResult.load(made / "evals" / "average-test.json").success
    assert f"| {PERCENT.interval(rate)} |" in text
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
    path = Path(warm_model)
    monkeypatch.chdir(path.parent)
    config = corridor(model=path.name, lora={"rank": 2, "alpha": 2.0}, training={"iterations": 1})
    train(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    alone = export(str(tmp_path / "run"), tmp_path / "alone", adapter=True)
    monkeypatch.chdir("/")
    from_pretrained = peft.AutoPeftModelForCausalLM.from_pretrained(alone)
    assert from_pretrained.peft_config["default"].base_model_name_or_path == str(path.resolve())


def test_what_is_there_or_not_there_is_refused(made, tmp_path):
    (tmp_path / "taken").mkdir()
    for source, out, name, advice in (
        (made, tmp_path / "taken", "exists", "choose a folder"),
        (f"{made}@9", tmp_path / "new", "iteration 9", "[1, 2]"),
        (tmp_path / "taken", tmp_path / "new", "config.yaml", None),
    ):
        with rejects(SettingsError, name, advice=advice):
            export(str(source), out)
    assert names_a_run(str(made)) and names_a_run(f"{made}@1") and not names_a_run("episodes.jsonl")
    weights = made / "checkpoints" / "iteration-000001" / "model" / adapters.WEIGHTS
    data = weights.read_bytes()
    weights.write_bytes(data[:-1])
    with rejects(CheckpointError, "damaged", where="adapter_model.safetensors"):
        export(f"{made}@1", tmp_path / "new")
    weights.write_bytes(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 2.0}])
@pytest.mark.parametrize("base_stops", [1, [1, 0], None])
def test_all_tokens_that_end_a_response_are_in_the_generation_config(corridor, warm_model, tmp_path, lora, base_stops):
    """The base ends a document with one token, its chat template ends a message with another."""
    base = tmp_path / "base"
    shutil.copytree(warm_model, base, ignore=shutil.ignore_patterns("manifest.json"))
    tokenizer = load_tokenizer(str(base))
    tokenizer.chat_template = CHATML
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.save_pretrained(str(base))
    model = load_model(str(base))
    model.resize_token_embeddings(len(tokenizer) + 8)
    model.generation_config.eos_token_id = base_stops
    model.save_pretrained(base)
    run = tmp_path / "run"
    changes = {"model": str(base), "training": {"iterations": 1}, "evaluation": {"splits": []}, "lora": lora}
    train(RunFolder.create(run, load(corridor(**changes))), quiet=True)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    expected = sorted({tokenizer.eos_token_id, end} | ({0} if isinstance(base_stops, list) else set()))
    folders = [export(str(run), tmp_path / "out"), *([] if lora else [run / "checkpoints" / "iteration-000001/model"])]
    for folder in folders:
        assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == expected


@pytest.mark.parametrize("where", ["model/extra", "extra", ""])
def test_a_link_in_a_checkpoint_is_not_followed(made, tmp_path, where):
    run, private = tmp_path / "run", tmp_path / "private"
    shutil.copytree(made, run)
    private.mkdir()
    (private / "id_rsa").write_text("key")
    path = run / "checkpoints" / "iteration-000002"
    if not where:
        path.rename(private / "checkpoint")
        private = private / "checkpoint"
    (path / where).symlink_to(private)
    for adapter in (True, False):
        with rejects(CheckpointError, "iteration-000002", "a link"):
            export(str(run), tmp_path / "out", adapter=adapter)
    assert not (tmp_path / "out").exists()


# For the hub ----------------------------------------------------------------------------------------------------------


def run_command(*arguments):
    """Run `gagpo export` in this process; errors are raised."""
    app(["export", *map(str, arguments)], standalone_mode=False)


def header_of(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_begins_with_the_header_that_the_hub_reads(made, tmp_path):
    from huggingface_hub import ModelCard

    folder = export(str(made), tmp_path / "out", licence="apache-2.0")
    card = ModelCard.load(folder / CARD)
    header = header_of((folder / CARD).read_text())
    assert header["license"] == "apache-2.0" and header["library_name"] == "transformers"
    assert {"gagpo", "reinforcement-learning", "corridor"} <= set(header["tags"]) and "base_model" not in header
    result = EvalResult.load(made / "evals" / "after-test.json")
    (entry,) = header["model-index"][0]["results"]
    assert entry["dataset"]["split"] == "test" and entry["dataset"]["revision"] == result.task_set.split_hash
    success, reward = entry["metrics"]
    assert success["type"] == "success_rate" and success["value"] == round(100 * result.success.value, 4)
    assert success["args"]["low"] <= success["value"] <= success["args"]["high"]
    assert reward["type"] == "mean_reward" and reward["value"] == round(result.mean_reward.value, 4)
    assert {item.metric_type for item in card.data.eval_results} == set(header["metrics"])
    adapter = header_of((export(str(made), tmp_path / "adapter", adapter=True) / CARD).read_text())
    assert adapter["library_name"] == "peft" and adapter["license"] == "unknown"


BASES = [
    ("Qwen/Qwen2.5-1.5B-Instruct", ("Qwen/Qwen2.5-1.5B-Instruct", "unknown")),
    ("smollm2-135m", ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")),
    ("starter:maths", ("", "mit")),
    ("data/models/none", ("", "unknown")),
]


@pytest.mark.parametrize(("model", "base"), BASES)
def test_the_base_model_is_named_by_its_hub_name_and_never_by_a_path(model, base, tmp_path):
    settings = load("alfworld-quickstart", [f"model={model}"])
    if model.startswith("data/"):
        base = ("", "unknown")
        settings = load("alfworld-quickstart", [f"model={tmp_path}"])
    assert tuple(base_of(settings)) == base
    (tmp_path / "sft.json").write_text(json.dumps({"sft": {"base_model": model}}))
    after_sft = load("alfworld-quickstart", [f"model={tmp_path}"])
    assert tuple(base_of(after_sft)) == (base if model != "data/models/none" else ("", "unknown"))


def test_the_data_sets_of_the_hub_are_listed():
    for data, names in (("gsm8k", ["openai/gsm8k"]), ("me/sums", ["me/sums"]), ("sums.csv", []), ("generated", [])):
        assert data_sets_of(load("math-quickstart", [f"environment.kwargs.data={data}"])) == names


def test_exported_files_can_be_read_by_others_as_the_umask_allows(made, tmp_path):
    before = os.umask(0o022)
    try:
        for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
            os.umask(mask)
            for adapter in (False, True):
                out = export(str(made), tmp_path / f"{mask}{adapter}", adapter=adapter)
                assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {mode}
                assert out.stat().st_mode & 0o777 == 0o777 & ~mask
    finally:
        os.umask(before)


def test_a_secret_of_the_settings_is_not_in_the_card(made, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(made, run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["environment"]["kwargs"]["api_key"] = "sesame"
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    card = (export(str(run), tmp_path / "out") / CARD).read_text()
    assert "sesame" not in card and "api_key: (not shown)" in card


@pytest.mark.slow
def test_the_command_exports_and_uploads(made, tmp_path, monkeypatch, capsys):
    from huggingface_hub import constants

    from gagpo.base import hub as base_hub

    base_hub.reachable.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        run_command(made, "--push", "me/model", "--license", "mit")
        assert f"uploaded: {server.address}/me/model" in capsys.readouterr().out
        assert {"README.md", "model.safetensors", "config.json"} <= set(server.files)
        assert b"license: mit" in server.files["README.md"]
        server.fails = 500
        out = tmp_path / "out"
        with rejects(PushError, f"gagpo export {out} --push me/model") as error:
            run_command(made, out, "--push", "me/model")
        assert TOKEN not in str(error.value)
        server.fails = 0
        server.files.clear()
        run_command(out, "--push", "me/model")
        assert "README.md" in server.files
    base_hub.reachable.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "key", "names"),
    [
        (["RUN"], "--private", ("--push OWNER/NAME",)),
        (["RUN", "new", "--private"], "--private", ("--push",)),
        (["episodes.jsonl", "--push", "me/model"], "--push", ()),
    ],
)
def test_wrong_arguments_are_one_line(made, arguments, key, names):
    with rejects(InvalidArgument, *names, key=key):
        run_command(*(made if argument == "RUN" else argument for argument in arguments))


# Elsewhere ------------------------------------------------------------------------------------------------------------


def test_the_card_has_six_lines_of_use_elsewhere(made, tmp_path):
    text = (export(str(made), tmp_path / "out") / CARD).read_text()
    _, _, section = text.partition("## Use it elsewhere\n")
    section = section.partition("\n## ")[0]
    lines = section.split("```sh\n")[1].split("\n```")[0].splitlines()
    assert len(lines) == 6 and all(any(name in line for line in lines) for name in ("vllm", "gguf", "ollama"))
    assert "does not contain the prompt of training: each prompt is one message" in section
    alone = (export(str(made), tmp_path / "alone", adapter=True) / CARD).read_text()
    assert "--lora-modules agent=MODEL" in alone and "without --adapter" in alone


@pytest.mark.parametrize("adapter", [False, True])
def test_the_exported_template_contains_the_prompt_of_training(made, tmp_path, adapter):
    """Another server renders it: without gagpo, from the folder alone."""
    from transformers import AutoTokenizer

    from gagpo.agents.setup import make_context, make_env

    run = tmp_path / "run"
    shutil.copytree(made, run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["context"] = {"prompt": "tags"}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    out = export(str(run), tmp_path / "out", adapter=adapter)
    assert "The chat template contains the prompt of training" in (out / CARD).read_text()
    env = make_env(values["environment"]["id"])
    tokenizer = load_tokenizer(str(run / "checkpoints" / "iteration-000002" / "model"))
    expected = make_context(tokenizer, env, prompt="tags").prompt([], "You see a wall.")
    elsewhere = AutoTokenizer.from_pretrained(out)
    chat = [{"role": "user", "content": "You see a wall."}]
    apply_chat_template = elsewhere.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert (
        "inside <action>" in apply_chat_template
        and elsewhere.encode(apply_chat_template, add_special_tokens=False) == expected.tolist()
    )


def test_an_export_imports_no_code_of_a_strangers_run(made, tmp_path, monkeypatch):
    """The prompt needs the environment's instructions, whose module is imported only with consent."""
    (tmp_path / "strange_export.py").write_text(
        "from gagpo.envs.testing import Corridor\nimport gymnasium, pathlib\n"
        "pathlib.Path(__file__).with_name('imported').touch()\n"
        "gymnasium.register('StrangeExport-v0', lambda **kwargs: Corridor(**kwargs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(made, run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["context"], values["environment"]["id"] = {"prompt": "tags"}, "strange_export:StrangeExport-v0"
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    text = (export(str(run), tmp_path / "out") / CARD).read_text()
    assert "does not contain the prompt of training" in text and "--trust-remote-code" in text
    assert not (tmp_path / "imported").exists()


WITHOUT_ROOM = """
import resource, sys
from gagpo.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main()
"""


def test_a_disk_without_room_is_one_line(made, tmp_path):
    """safetensors has an error class of its own, which ended as a bug of this package."""
    command = [sys.executable, "-c", WITHOUT_ROOM, "export", str(made), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
