"""Adapters: what they train, and how they are saved, resumed and exported."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.setup import make_engine
from gagpo.cli.main import app
from gagpo.eval.models import evaluate
from gagpo.model import adapters
from gagpo.model.adapters import AdapterError, Base
from gagpo.model.flat.attention import forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.loading import ModelError, choose_path, load_model, load_tokenizer
from gagpo.model.weights import copy_tensors, named_tensors
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import LoraSettings, SettingsError, load, resolve
from gagpo.sft.run import sft
from gagpo.training.export import export
from gagpo.training.trainer import Trainer, train
from tests.agents.engines import families
from tests.gagpo.training.test_trainer import run, same
from tests.rejections import rejects

LORA = {"rank": 4, "alpha": 4.0}


def inject(model, seed=0):
    adapters.inject(model, LORA["rank"], LORA["alpha"], adapters.ALL_LINEAR, seed)


IDS, LENGTHS = torch.arange(3, 17), [8, 6]


def logprobs(model):
    with torch.no_grad():
        return forward(model, IDS, PackedRows(LENGTHS), torch.arange(len(IDS))).log_softmax(-1)


def moved(model, seed=0):
    """The model with an adapter that does something."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data.normal_(0, 0.1, generator=generator)
    return model


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 64}
    model = GPT2LMHeadModel._from_config(GPT2Config(**sizes), attn_implementation="flat").eval()
    assert choose_path("gpt2", model) == ""
    return model


@pytest.fixture(params=["small", "gpt2"])
def model(request, warm_model):
    """Linear layers of torch, and those of GPT-2, which hold their weights the other way round."""
    return load_model(warm_model) if request.param == "small" else gpt2()


def test_a_new_adapter_changes_nothing_and_alone_gets_gradients(model):
    plain, type_name, names = logprobs(model), type(model), dict(named_tensors(model)).keys()
    inject(model, seed=1)
    assert type(model) is type_name and torch.equal(logprobs(model), plain)
    assert dict(named_tensors(model)).keys() == names
    forward(moved(model), IDS, PackedRows(LENGTHS), torch.arange(len(IDS))).log_softmax(-1)[:, 1].sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (".lora_" in name), name
        assert parameter.grad is None or parameter.grad.abs().max() > 0, name
    adapted = {name.rpartition(".")[2] for name in adapters.adapted_layers(model)}
    projections = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert adapted == ({"c_attn", "c_proj", "c_fc"} if type_name.__name__.startswith("GPT2") else projections)


def test_switched_off_it_is_the_base_and_on_again_afterwards(model):
    plain = logprobs(model)
    inject(model)
    changed = logprobs(moved(model))
    assert (changed - plain).abs().max() > 1e-3
    with adapters.disabled(model):
        assert torch.equal(logprobs(model), plain)
    assert torch.equal(logprobs(model), changed)
    assert [name for name, p in model.named_parameters() if p.requires_grad and ".lora_" not in name] == []
    assert all(p.requires_grad for name, p in model.named_parameters() if ".lora_" in name)


def test_merged_tensors_compute_what_the_adapted_model_does(model):
    import copy

    other = copy.deepcopy(model)
    plain = logprobs(model)
    inject(model)
    expected = logprobs(moved(model))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copy_tensors(other, adapters.merged_tensors(model))
    assert (logprobs(other) - expected).abs().max() < 1e-5 < (plain - expected).abs().max()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    merged = adapters.merge(model)
    assert not adapters.is_adapted(merged) and (logprobs(merged) - expected).abs().max() < 1e-5


def test_an_engine_of_its_own_weights_gets_them_merged(warm_model):
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    inject(model)
    shared, copied = TransformersEngine(model, tokenizer), TransformersEngine(model, tokenizer, dtype="bfloat16")
    assert shared.model is model and not adapters.is_adapted(copied.model)
    moved(model)
    for engine in (shared, copied):
        engine.load_weights(named_tensors(model, merged=not engine.shares_weights))
    merged = dict(adapters.merged_tensors(model))
    assert all(torch.equal(p, merged[name].bfloat16()) for name, p in copied.model.named_parameters())
    (response,) = shared.generate([Request(0, IDS[:8].numpy().astype(np.int32), 5)], Sampling(max_tokens=4))
    ids = torch.cat([IDS[:8], torch.as_tensor(response.ids).long()])
    with torch.no_grad():
        reference = forward(model, ids, PackedRows([len(ids)]), torch.arange(len(ids))).log_softmax(-1)
    reference = reference[7:-1].gather(-1, ids[8:, None])[:, 0]
    np.testing.assert_allclose(response.logprobs, reference, atol=1e-4)


def test_servers_get_them_merged(serving, tiny):
    model, tokenizer = tiny
    with serving(model, tokenizer) as (fake,):
        inject(model)
        engine = make_engine(
            engine_options("vllm", {"urls": [fake.url], "timeout": 60, "health_timeout": 60}), model, tokenizer
        )
        with weights_synced(engine, moved(model)):
            pass
        requests = [Request(0, np.arange(5, 20, dtype=np.int32), 0)]
        (served,) = engine.generate(requests, Sampling(0.0, max_tokens=6))
        (reference,) = TransformersEngine(model, tokenizer).generate(requests, Sampling(0.0, max_tokens=6))
        assert served.ids.tolist() == reference.ids.tolist() and engine.measures()["engine_gap"] < 1e-4
        engine.close()


def test_peft_reads_what_is_written(model, tmp_path):
    import copy

    from peft import PeftModel

    other, base = copy.deepcopy(model), Base.of("somewhere", model)
    inject(model)
    assert Base.of("somewhere", model) == base
    adapters.save(moved(model), base, tmp_path / "adapter")
    expected = PeftModel.from_pretrained(other, str(tmp_path / "adapter")).base_model.model
    assert torch.equal(logprobs(expected), logprobs(model))


# Runs -----------------------------------------------------------------------------------------------------------------


def adapter_of(folder):
    return load_file(checkpoints.latest(folder / "checkpoints").path / "model" / adapters.WEIGHTS)


def test_a_run_trains_and_keeps_the_adapter_alone(corridor, tmp_path):
    warm = str(sft(load(corridor(model=str(tmp_path / "warm"), sft={"steps": 40})), quiet=True))
    training = {"iterations": 20, "save_every": 20}
    config = corridor(model=warm, lora={"rank": 8, "alpha": 16.0}, training=training, evaluation={"tasks": 1})
    folder = RunFolder.create(tmp_path / "run", load(config))
    trainer = Trainer(folder, quiet=True)
    trained = [p for group in trainer.learner.optimizer.param_groups for p in group["params"]]
    named = {id(p): name for name, p in trainer.learner.model.named_parameters()}
    assert trained and all(".lora_" in named[id(p)] for p in trained)
    trainer.run()
    before = dict(load_model(warm).named_parameters())
    for name, tensor in adapters.base_tensors(trainer.learner.model):
        assert torch.equal(tensor, before[name]), name
    invalid = [row["invalid_rate"] for row in folder.metrics()]
    assert np.mean(invalid[-10:]) < np.mean(invalid[:5]) - 0.03
    model = checkpoints.latest(folder.path / "checkpoints").path / "model"
    assert not list(model.glob("model*")) and not (model / "config.json").exists()
    assert json.loads((model / "base.json").read_text()) == {
        "model": warm,
        "revision": None,
        "digest": adapters.digest(load_model(warm)),
    }
    assert any(tensor.abs().max() > 0 for name, tensor in adapter_of(folder.path).items() if "lora_B" in name)


def test_the_reference_is_the_same_model_without_its_adapter(corridor, tmp_path):
    config = corridor(lora=LORA, algorithm={"kl": {"coefficient": 0.1}}, training={"iterations": 1})
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    networks = trainer.learner.updater.networks
    assert networks.reference is trainer.learner.model
    plain = logprobs(trainer.learner.model)
    moved(trainer.learner.model)
    with networks.reference_scope():
        assert torch.equal(logprobs(networks.reference), plain)
    trainer.run()
    assert trainer.folder.metrics()[0]["updates"] > 0


@pytest.fixture
def finished(corridor, tmp_path):
    return run(corridor(lora=LORA, training={"iterations": 1}), tmp_path / "run").path


def test_evaluating_and_exporting_a_run(finished, tmp_path, warm_model):
    from transformers import AutoModelForCausalLM
    from typer.testing import CliRunner

    saved = checkpoints.latest(finished / "checkpoints")
    adapted = load_model(warm_model)
    adapters.read_into(adapted, saved.path / "model")
    expected = logprobs(adapted)
    assert (logprobs(load_model(saved.model)) - expected).abs().max() < 1e-5
    result = evaluate(str(finished), quiet=True)
    assert 0 <= result.success.value <= 1

    outcome = CliRunner().invoke(app, ["export", str(finished), str(tmp_path / "merged")])
    assert outcome.exit_code == 0, outcome.output
    eval = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    model = load_model(str(tmp_path / "merged"))
    assert load_tokenizer(str(tmp_path / "merged")).eos_token_id is not None
    assert (logprobs(model) - expected).abs().max() < 1e-5
    with torch.no_grad():
        item = eval(IDS[None, :8]).logits.log_softmax(-1)[0]
    assert (item - expected[:8]).abs().max() < 1e-4

    outcome = CliRunner().invoke(app, ["export", str(finished), str(tmp_path / "alone"), "--adapter"])
    assert outcome.exit_code == 0 and same(load_file(tmp_path / "alone" / adapters.WEIGHTS), adapter_of(finished))
    with rejects(SettingsError, "exists", advice="choose a folder"):
        export(str(finished), tmp_path / "merged")
    assert not list(tmp_path.glob(".*"))


def test_damaged_or_foreign_adapters_are_refused(finished, tmp_path, warm_model):
    saved = checkpoints.latest(finished / "checkpoints")
    folder = saved.path / "model"
    other = load_model(warm_model)
    next(other.parameters()).data[0, 0] += 1e-3
    with rejects(AdapterError, "other weights"):
        adapters.read_into(other, folder)
    config = json.loads((folder / adapters.CONFIG).read_text())
    for changes, name in (
        ({"use_dora": True}, "LoRA adapter (use_dora)"),
        ({"peft_type": "IA3"}, "LoRA adapter"),
        ({"r": 0}, "r, lora_alpha or target_modules"),
        ({"r": 5}, "has shape"),
        ({"base_model_name_or_path": str(folder)}, "an adapter itself"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path"),
        ({"base_model_name_or_path": str(tmp_path / "gone")}, tmp_path / "gone"),
        ({"target_modules": ["q_proj"]}, "not of this model"),
    ):
        (folder / adapters.CONFIG).write_text(json.dumps({**config, **changes}))
        with rejects((AdapterError, ModelError), name) as caught:
            load_model(str(folder))
        assert "\n" not in str(caught.value)
    with rejects(CheckpointError, where=folder / adapters.CONFIG):
        evaluate(str(finished), quiet=True)


# Settings -------------------------------------------------------------------------------------------------------------


def test_defaults_and_the_rate_of_an_adapter(corridor):
    config = corridor(lora={}, optimizer={"weight_decay": 0.0})
    text = config.read_text()
    settings = load(config)
    assert settings.lora == LoraSettings(rank=32, alpha=32.0, targets="all-linear")
    assert settings.optimizer.learning_rate == 5e-3
    config.write_text(re.sub(r"\n  learning_rate: 0.005", "\n  warmup_iterations: 0", text))
    assert resolve(load(config)).optimizer.learning_rate == 1e-5
    assert resolve(load(config, ["lora=null"])).optimizer.learning_rate == 1e-6
    assert load(config, ["lora.rank=8"]).lora.rank == 8


@pytest.mark.parametrize(
    ("changes", "key", "names"),
    [
        ({"rank": 0}, "lora.rank", ("at least 1", "got 0")),
        ({"alpha": 0}, "lora.alpha", ()),
        ({"ranks": 3}, "lora.ranks", ("'lora.rank'",)),
        ({"targets": ["q_proj", "c_attn"]}, "lora.targets", ("c_attn", "down_proj")),
        ({"targets": "lm_head"}, "lora.targets", ("lm_head",)),
        ({"targets": []}, "lora.targets", ()),
    ],
)
def test_wrong_settings_are_refused_in_one_line(corridor, tmp_path, changes, key, names):
    folder = tmp_path / "run"
    with rejects((SettingsError, AdapterError), *names, key=key) as caught:
        train(RunFolder.new(folder, load(corridor(lora=changes))), quiet=True)
    assert "\n" not in str(caught.value) and not folder.exists()


def test_without_peft_a_run_says_what_to_install(corridor, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr(adapters.importlib.util, "find_spec", lambda name: None)
    with rejects(AdapterError, key="lora", advice="pip install -c constraints.txt -e '.[lora]'"):
        train(RunFolder.new(tmp_path / "run", load(corridor(lora=LORA))), quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["DeepSeek-V3 (MLA)", "GLM-4-MoE", "Mixtral", "Qwen3-MoE"])
def test_experts_are_not_taken_for_the_linear_layers_of_their_names(tmp_path, name):
    (family,) = (item for item in families.FAMILIES if item.name == name)
    model = families.tiny(family)
    type_name, names = model.config.model_type, [item for item, _ in model.named_parameters()]
    linear = [item for item, module in model.named_modules() if isinstance(module, torch.nn.Linear)][:-1]
    adapters.inject(model, 2, 2.0, "all-linear")
    assert list(adapters.adapted_layers(model)) == linear and model.config.model_type == type_name
    assert "model_type" not in vars(model.config)
    assert {type(module.base_layer) for module in adapters.adapted_layers(model).values()} == {torch.nn.Linear}
    assert [item for item, _ in adapters.merged_tensors(model)] == names
    logits = forward(model, torch.arange(3, 9), PackedRows([6]), torch.arange(6))
    logits.float().logsumexp(-1).sum().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == 2 * len(linear) and all(parameter.grad is not None for parameter in trained)
    adapters.save(model, adapters.Base("base", None, adapters.digest(model)), tmp_path)
    with torch.no_grad():
        for parameter in trained:
            parameter.zero_()
    adapters.load(model, tmp_path)
    assert any(bool(parameter.any()) for parameter in trained)
    assert [item for item, _ in adapters.merge(model).named_parameters()] == names
