"""Model folders are saved and loaded, and missing parts are named."""

import json

import pytest
import torch

from gagpo.model.loading import ModelError, load_model, load_tokenizer
from gagpo.sft.small_model import ModelShape, save_folder
from tests.rejections import rejects

WORDS = ["go to cabinet 1", "Your task is to: put a hot mug in shelf.", "naïve 漢字 \x00 ok", "12 345"]


@pytest.fixture
def folder(tiny, tmp_path):
    save_folder(*tiny, tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink()  # as in a folder from elsewhere
    return tmp_path / "model"


def test_a_saved_folder_is_the_same_model_and_tokenizer(tiny, folder):
    model, tokenizer = tiny
    again, tokenizer_again = load_model(str(folder)), load_tokenizer(str(folder))
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    for text in WORDS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == tokenizer_again.encode(text, add_special_tokens=False)
        assert tokenizer_again.decode(ids) == text
    assert tokenizer_again.chat_template == tokenizer.chat_template


def test_saving_again_replaces_the_folder_whole(tiny, folder):
    (folder / "left-over").touch()
    save_folder(*tiny, folder)
    assert not (folder / "left-over").exists() and (folder / "config.json").exists()


@pytest.mark.parametrize(("missing", "name"), [("tokenizer.json", "tokenizer"), ("config.json", "config.json")])
def test_a_folder_that_lacks_a_part_is_named(folder, missing, name):
    (folder / missing).unlink()
    with rejects(ModelError, name):
        load_tokenizer(str(folder))
        load_model(str(folder))


def test_damaged_weights_are_named(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with rejects(ModelError, "model of", advice="gagpo sft"):
        load_model(str(folder))


def test_a_tokenizer_without_chat_template_is_refused(folder):
    (folder / "chat_template.jinja").unlink()
    with rejects(ModelError, "chat template", advice="chat_template.jinja"):
        load_tokenizer(str(folder))


def test_a_missing_folder_and_a_hub_name_without_network_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with rejects(ModelError, "nowhere", "does not exist", advice="gagpo sft"):
        load_tokenizer(str(tmp_path / "nowhere"))
    with rejects(ModelError, "no-such-model", "offline"):
        load_model("nobody/no-such-model")


def test_an_impossible_shape_is_refused():
    with rejects(ValueError, key="width"):
        ModelShape(width=30, heads=4)


def rewrite(folder, change):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


MLP = "model.layers.1.mlp.up_proj.weight"


def test_a_folder_without_some_tensors_is_refused_by_name(folder):
    rewrite(folder, lambda tensors: tensors.pop(MLP))
    with rejects(ModelError, "1 tensors", "missing", MLP):
        load_model(str(folder))


def test_tensors_that_do_not_belong_are_refused_by_name(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.extra.weight": torch.zeros(2)}))
    with rejects(ModelError, "1 tensors", "unexpected", "model.extra.weight"):
        load_model(str(folder))


def test_tensors_of_another_shape_are_refused(folder):
    rewrite(folder, lambda tensors: tensors.update({MLP: torch.zeros(3, 32)}))
    with rejects(ModelError, MLP, "(3, 32)"):
        load_model(str(folder))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_refused(folder, value):
    rewrite(folder, lambda tensors: tensors[MLP].view(-1)[3:4].fill_(value))
    with rejects(ModelError, MLP, "finite"):
        load_model(str(folder))


def test_model_code_is_not_run_by_default(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with rejects(ModelError, "own.Model", key="trust_remote_code", advice="trust_remote_code=true"):
        load_model(str(folder))
    assert not (folder / "ran").exists()


def test_loaded_parameters_are_aligned_wherever_the_file_has_them(folder):
    """Safetensors maps float32 weights at 8 modulo 64 bytes, where matrix kernels round differently."""
    for parameter in load_model(str(folder)).parameters():
        assert parameter.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "wrong",
    [{"hidden_size": "abc"}, {"num_hidden_layers": [4]}, {"rope_parameters": 7}, {"auto_map": 5}, {"model_type": {}}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_config_with_values_of_the_wrong_type_is_refused_in_one_line(folder, wrong):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | wrong))
    with rejects(ModelError, "model of", advice="gagpo sft") as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "5", "{"])
def test_a_config_that_is_no_object_is_refused_in_one_line(folder, text):
    (folder / "config.json").write_text(text)
    with rejects(ModelError, "model of", advice="gagpo sft"):
        load_model(str(folder))
