"""The command ``prompts``: shipped files are printed, and a preview is what the model reads and writes."""

from typer.testing import CliRunner

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.agents.prompts import shipped_prompts
from gagpo.cli.main import app
from gagpo.envs.base import TextEnv
from gagpo.envs.testing import CorridorEnv
from gagpo.eval.models import evaluate
from tests.rejections import rejects

WALK = ["environment.id=gagpo.envs.testing:gagpo-test/Corridor-v0", "environment.kwargs={}"]


def printed(*words):
    done = CliRunner().invoke(app, ["prompts", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_shipped_prompts_are_listed_and_printed():
    assert printed("show", "tags") == shipped_prompts()["tags"].read_text()
    assert all(name in printed() for name in shipped_prompts())
    with rejects(ValueError, "tagz", advice="tags"):
        printed("show", "tagz")


def test_a_preview_shows_every_token_once():
    text = printed("preview", "math-quickstart", *WALK, "--turns", "2")
    first, second = text.split("--- turn 2: the model reads ")
    assert "<|user|>You stand at 15. Go to door 0.<|end|><|assistant|>\n" in first and "prompt plain " in first
    assert ">>>left<|end|><<<\n--- turn 1: the parser reads 'left'" in first and "(the environment's expert)" in first
    assert " of them known\n<|user|>You stand at 14." in second and "turn 3" not in second


def test_a_model_that_sft_has_yet_to_make_is_previewed_by_its_base(tmp_path):
    tokens = [f"model={tmp_path / 'none'}", "sft.base_model=starter:maths"]
    assert "model starter:maths," in printed("preview", "math-quickstart", *WALK, *tokens, "--turns", "1")


def test_answers_are_admissible_fixed_or_given(monkeypatch):
    monkeypatch.setattr(CorridorEnv, "expert_action", TextEnv.expert_action)
    assert "(the first admissible action)" in printed("preview", "math-quickstart", *WALK, "--turns", "1")
    text = printed(
        "preview", "math-quickstart", *WALK, "context.prompt=tags", "--turns", "1", "--answer", "<think>\x1b[2J"
    )
    assert ">>><think>\\x1b[2J<|end|><<<" in text and "no action (not parsed)" in text
    look = CorridorEnv._look
    monkeypatch.setattr(CorridorEnv, "_look", lambda self, **more: look(self, **more).__class__("dark"))
    assert "(the fixed answer 'look'" in printed("preview", "math-quickstart", *WALK, "--turns", "1")


def test_an_environment_that_fails_to_begin_is_one_line(monkeypatch):
    def begin(self, task):
        raise KeyError("no corridor")

    monkeypatch.setattr(CorridorEnv, "begin", begin)
    with rejects(ValueError, "CorridorEnv", "door-00", "KeyError: 'no corridor'", "test_prompts"):
        printed("preview", "math-quickstart", *WALK)
    with rejects(ValueError, "'door-08'", "KeyError: 'no corridor'", where="Corridor-v0"):
        evaluate("expert", environment=WALK[0].partition("=")[2])
