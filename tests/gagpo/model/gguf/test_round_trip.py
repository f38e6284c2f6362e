"""A trained model leaves as an export, becomes a GGUF file, and comes back with the same logits and prompts."""

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from gagpo.cli.main import app
from gagpo.model.loading import load_tokenizer
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.export import export
from gagpo.training.trainer import train
from tests.gagpo.conftest import CORRIDOR
from tests.gagpo.model.gguf_files import write_folder

CHAT = [{"role": "user", "content": "You are in a corridor. <|end|> Where to?"}]


@pytest.fixture(scope="module")
def exported(tmp_path_factory, warm_model):
    folder = tmp_path_factory.mktemp("exported")
    training = {**CORRIDOR["training"], "iterations": 1}
    changes = {"context": {"prompt": "tags"}, "training": training, "evaluation": {"splits": []}}
    values = {**CORRIDOR, **changes, "model": warm_model}
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    train(RunFolder.create(folder / "run", load(folder / "run.yaml")), quiet=True)
    return export(str(folder / "run"), folder / "out")


def test_export_gguf_and_back_gives_equal_logits(exported, tmp_path, capsys):
    write_folder(exported, tmp_path / "model.gguf")
    app(["models", "get", str(tmp_path / "model.gguf"), "--to", str(tmp_path / "back")], standalone_mode=False)
    assert "back" in capsys.readouterr().out
    tokenizers = [load_tokenizer(str(folder)) for folder in (exported, tmp_path / "back")]
    options = {"tokenize": False, "add_generation_prompt": True}
    texts = [tokenizer.apply_chat_template(CHAT, **options) for tokenizer in tokenizers]
    assert texts[0] == texts[1] and "inside <action>" in texts[1]
    ids = [tokenizer.encode(texts[0], add_special_tokens=False) for tokenizer in tokenizers]
    assert ids[0] == ids[1]
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (exported, tmp_path / "back")]
    with torch.no_grad():
        logits = [model(torch.tensor(ids[:1])).logits for model in models]
    assert torch.equal(logits[0], logits[1])
