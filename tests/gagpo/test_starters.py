"""Starters: made from a trained model, checked for damage, and better than chance."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.starters.ship import ADAPTER_BYTES, MOST_BYTES, ship
from gagpo.base.errors import InvalidArgument
from gagpo.cli.main import app
from gagpo.eval.models import evaluate as measure
from gagpo.model import starters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.settings import load
from tests.rejections import rejects

SHIPPED = starters.names()
WHOLE = [name for name in SHIPPED if starters.find(name).base is None]  # an adapter needs a download: tests/real
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FIRST = {"corridor.yaml": {"overrides": [], "losses": [1.5]}}


def gagpo(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def own(corridor, warm_model, tmp_path, monkeypatch):
    """A starter of one's own, called ``walker``, in a root of its own; gives its folder."""
    root = tmp_path / "starters"
    monkeypatch.setattr(starters, "root", lambda: root)
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    result = tmp_path / "first.json"
    measure("random", environment=CORRIDOR, kwargs={"max_turns": 16}, split="test", quiet=True).save(result)
    return ship(warm_model, "walker", corridor(), [result], ["gagpo sft corridor.yaml"], FIRST)


def test_a_starter_is_the_model_in_half_precision(own, warm_model):
    stored, original = load_model("starter:walker"), load_model(warm_model)
    for (name, actual), (_, expected) in zip(stored.named_parameters(), original.named_parameters(), strict=True):
        assert actual.dtype == torch.float32, name
        assert torch.equal(actual, expected.half().float()), name
    assert load_tokenizer("starter:walker").encode("left right") == load_tokenizer(warm_model).encode("left right")


def test_few_bits_make_a_smaller_starter_that_is_nearly_the_model(own, corridor, warm_model, monkeypatch):
    few = ship(warm_model, "few", corridor(), bits=6)
    assert starters.read(few).size < 0.7 * starters.read(own).size
    stored, original = load_model("starter:few"), load_model(warm_model)
    for (name, actual), (_, expected) in zip(stored.named_parameters(), original.named_parameters(), strict=True):
        if actual.dim() > 1:
            assert max(len(row.unique()) for row in actual) <= 2**6 - 1, name
            assert (actual - expected).abs().max() <= expected.abs().max() / (2**5 - 1), name


def test_an_unpacked_starter_that_is_damaged_is_unpacked_again(own):
    folder = Path(starters.folder_of("starter:walker"))
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])
    load_model("starter:walker")
    assert (folder / "model.safetensors").read_bytes() == data


def test_the_manifest_says_what_it_is(own):
    item = starters.find("starter:walker")
    assert item.manifest["parameters"] == sum(p.numel() for p in load_model("starter:walker").parameters())
    assert item.manifest["results"]["first"]["episodes"] > 0 and item.manifest["first_losses"] == FIRST
    assert item.manifest["data"] and item.size < MOST_BYTES
    assert load(item.settings).environment.id == CORRIDOR


def test_a_starter_knows_its_own_env(own):
    result = measure("starter:walker", quiet=True, workers=0)
    assert result.task_set.environment == CORRIDOR and result.model == "starter:walker"


def test_a_starter_can_be_trained(own, corridor, tmp_path):
    config = corridor(model="starter:walker", sft=None)
    messages = gagpo("sft", config)
    assert "comes with the package" in messages
    messages = gagpo("train", config, "training.iterations=1", "--runs", tmp_path / "runs", "-q")
    assert "report:" in messages


def _flip(folder: Path) -> None:
    path = folder / "model.safetensors.xz"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "one bit of the weights": (_flip, "damaged", "model.safetensors.xz"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json.xz").unlink(), "missing", "tokenizer.json.xz"),
    "another recipe": (lambda folder: (folder / "recipe.yaml").write_text("name: x"), "damaged", "recipe.yaml"),
    "a file more": (lambda folder: (folder / "x.py").write_text(""), "belong", "x.py"),
    "a torn manifest": (lambda folder: (folder / "manifest.json").write_text("{"), "read", "manifest.json"),
    "a list for a manifest": (lambda folder: (folder / "manifest.json").write_text("[]"), "read", "manifest.json"),
    "a path in the manifest": (
        lambda folder: (folder / "manifest.json").write_text(
            json.dumps({"format": starters.FORMAT, "files": {"../x": "00"}})
        ),
        "version",
        "manifest.json",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(own, what):
    change, name, where = DAMAGE[what]
    change(own)
    with rejects(InvalidArgument, name, where=where):
        load_model("starter:walker")


def test_an_unknown_starter_is_refused_with_the_known_ones(own):
    with rejects(InvalidArgument, "'runner'", advice="starter:walker"):
        load_tokenizer("starter:runner")
    with rejects(InvalidArgument, "../walker"):
        starters.find("starter:../walker")


# Those that are shipped ----------------------------------------------------------------------------------------------


def test_starters_fit_the_size_limit():
    assert sum(starters.find(name).size for name in WHOLE) < 13.4e6
    assert all(starters.find(name).size <= ADAPTER_BYTES for name in SHIPPED if name not in WHOLE)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_starter_is_whole_small_and_explained(name):
    item = starters.find(name)
    assert item.size <= MOST_BYTES
    assert item.manifest["results"] and item.manifest["commands"] and item.manifest["data"]
    assert load(item.settings).environment.id == item.manifest["environment"]


HELD_OUT = {  # a few held-out tasks of each environment
    "gagpo/ALFWorld-v0": (
        "valid_unseen",
        {"size": "small", "max_turns": 20, "seed": 7, "counts": {"train": 0, "valid_unseen": 12}},
    ),
    "gagpo/WebShop-v0": ("test", {"products": 1000, "max_turns": 10}),
    "gagpo/Math-v0": ("test", {"size": 100, "test_size": 24}),
    "gagpo/Web-v0": ("test", {"form": "names", "tasks": ["click-link", "login-user"], "max_turns": 8}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_shipped_starter_plays_better_than_chance(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path))
    item = starters.find(name)
    environment = item.manifest["environment"]
    if environment == "gagpo/Web-v0" and not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("Chromium is not installed")
    split, kwargs = HELD_OUT[environment]
    if environment == "gagpo/Math-v0":  # in one turn or in several, as the starter was made for
        kwargs = {**load(item.settings).environment.kwargs, **kwargs}
    wins = {}
    for model in (f"starter:{name}", "random"):
        wins[model] = measure(
            model, environment=environment, split=split, kwargs=kwargs, tasks=12, max_tokens=128, workers=0, quiet=True
        ).successes
    assert wins[f"starter:{name}"] > wins["random"] + 1
