"""An exported model is uploaded in one commit; what goes wrong is one line without the token."""

import pytest
from huggingface_hub import constants

from gagpo.base import hub as base_hub
from gagpo.base.errors import InvalidArgument
from gagpo.interop import hub
from gagpo.interop.hub import PushError
from tests.gagpo.interop.fake_hub import TOKEN, serving
from tests.rejections import rejects


@pytest.fixture
def server(monkeypatch):
    base_hub.reachable.cache_clear()
    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
    base_hub.reachable.cache_clear()


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Walk\n")
    (folder / "config.json").write_text("{}")
    (folder / ".cache").write_text("not uploaded")
    return folder


def test_a_folder_is_uploaded_in_one_commit(server, model):
    repository = hub.open_repository("me/model")
    assert hub.push(model, repository) == f"{server.address}/me/model"
    assert set(server.files) == {"README.md", "config.json"} and b"# Walk" in server.files["README.md"]
    assert sum(path.endswith("/commit/main") for path in server.requests) == 1
    assert hub.is_exported(model)


def test_only_files_of_a_model_are_uploaded(server, model):
    expected = {"README.md", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "LICENSE"}
    for name in (*expected, "id_rsa", "notes.txt", ".env", "modeling.py.key", "adapter/config.json.bak"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("{}")
    hub.push(model, hub.open_repository("me/model"))
    assert set(server.files) == expected
    assert hub.model_files(model)[1] == ["adapter/config.json.bak", "id_rsa", "modeling.py.key", "notes.txt"]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "extra", ".hidden"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_in_a_folder_stops_the_upload(server, model, tmp_path, name, is_folder):
    private = tmp_path / "private"
    private.mkdir()
    (private / "id_rsa").write_text("key")
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(private if is_folder else private / "id_rsa")
    with rejects(PushError, f"{name}: is a link"):
        hub.push(model, hub.open_repository("me/model"))
    assert server.files == {}


@pytest.mark.parametrize("name", ["model", "a/b/c", "me/mo del", "../x/y", "", "me/" + "x" * 200])
def test_a_wrong_name_is_refused_before_any_request(server, name):
    with rejects(InvalidArgument, key="--push"):
        hub.open_repository(name)
    assert server.requests == []


def test_no_token_no_network_and_offline_mode_are_one_line(server, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with rejects(PushError, "HF_TOKEN", advice="`hf auth login`"):
        hub.open_repository("me/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with rejects(PushError, advice="HF_HUB_OFFLINE"):
        hub.open_repository("me/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with rejects(PushError, "http://127.0.0.1:9", advice="network"):
        hub.open_repository("me/model")


@pytest.mark.slow  # the client tries again for a while
def test_the_token_is_never_in_a_message(server, model, monkeypatch):
    repository = hub.open_repository("me/model")
    server.fails = 500
    with pytest.raises(PushError) as error:
        hub.push(model, repository)
    message = str(error.value)
    assert "cannot push to me/model at http://127" in message and "hf_s" not in message and "\n" not in message
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    with rejects(PushError, "(401)", advice="create one") as error:
        hub.open_repository("me/model")
    assert "hf_wrong" not in str(error.value)
