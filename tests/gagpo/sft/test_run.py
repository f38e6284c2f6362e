"""The warm start: what it learns from, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gagpo.learning.batch import Row
from gagpo.settings import SettingsError, load
from gagpo.settings.derived import RECIPE
from gagpo.warm_start.fit import PROMPT, RESPONSE, everything, optimizers
from gagpo.warm_start.recipe import recipe_difference
from gagpo.warm_start.run import warm_start
from gagpo.warm_start.small_model import train_tokenizer


def test_every_token_but_the_first_is_predicted_and_what_is_said_is_told_apart():
    place_K, numbers = np.array([2, 4]), np.arange(2)
    row = Row(np.arange(5, 10, dtype=np.int32), place_K, numbers, numbers, np.zeros(2, np.float32))
    whole = everything(row)
    assert whole.place_K.tolist() == [1, 2, 3, 4]
    assert whole.turn_K.tolist() == [PROMPT, RESPONSE, PROMPT, RESPONSE]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"context": {"admissible": True}}, "context.admissible=false"), ({"warm_start": None}, "no warm_start section")],
)
def test_what_cannot_be_warmed_up_is_refused(corridor, changes, said):
    with pytest.raises(SettingsError, match=said):
        warm_start(load(corridor(**changes)), quiet=True)


def test_each_weight_has_one_optimizer_and_muon_gets_the_matrices_between_layers(tiny):
    model, _ = tiny
    muon, adamw = optimizers(model)
    owned = [
        parameter for optimizer in (muon, adamw) for group in optimizer.param_groups for parameter in group["params"]
    ]
    assert sorted(map(id, owned)) == sorted(map(id, model.parameters()))
    assert isinstance(muon, torch.optim.Muon) and len(muon.param_groups[0]["params"]) == 2 * 7
    assert any(parameter is model.get_input_embeddings().weight for parameter in adamw.param_groups[0]["params"])


@pytest.mark.parametrize("numbers", ["words", "digits", "names"])
def test_tokenizers_lose_nothing_and_treat_numbers_as_asked(numbers):
    tokenizer = train_tokenizer(["On the shelf 12, you see a mug 1, and a mug 2."] * 9, 500, numbers)
    for text in ("a mug 2.", "mug 1x, mug 12\n\n  shelf 3  \t7 mug", "\u00e9t\u00e9 1 \U0001f642 2", " 1 1"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    asked = {"words": [" shelf", " 12"], "digits": [" shelf", " ", "1", "2"], "names": [" shelf 12"]}
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode("On the shelf 12, you")]
    assert tokens == ["On", " the", *asked[numbers], ",", " you"]


def test_a_mark_is_one_token_and_what_follows_is_spelled_as_after_a_bracket():
    page = "Back to Search [SEP] sky blue [SEP] 00034 [SEP] $8.5"
    tokenizer = train_tokenizer([page, "click[sky blue]"] * 9, 500, "digits", [" [SEP] "])
    assert tokenizer.decode(tokenizer.encode(page)) == page
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode(page)]
    assert tokens.count(" [SEP] ") == 3
    assert tokens[tokens.index("0") :][:6] == ["0", "0", "0", "3", "4", " [SEP] "]
    label = tokenizer.encode("sky blue]")[:-1]
    assert tokenizer.encode("click[sky blue]")[-len(label) - 1 : -1] == label
    assert tokenizer.encode("a [SEP] sky blue")[-len(label) :] == label


def test_an_empty_mark_is_refused(corridor):
    with pytest.raises(SettingsError, match="take the empty one out of marks"):
        load(corridor(), ["warm_start.model.marks=['']"])


def test_a_folder_knows_what_it_was_made_with(corridor, tmp_path):
    assert recipe_difference(load(corridor())) == ""
    assert recipe_difference(load(corridor(), ["algorithm.preset=grpo", "seed=7"])) == ""
    assert recipe_difference(load(corridor(), ["warm_start.steps=21"])) == "warm_start.steps: 20 then, 21 now"
    assert recipe_difference(load(corridor(), [f"model={tmp_path}", "warm_start.steps=21"])) == ""


def test_a_folder_made_before_a_setting_existed_was_made_with_its_default(corridor, warm_model, tmp_path):
    made = json.loads((Path(warm_model) / RECIPE).read_text())
    for name in ("wander", "player", "panel", "most_steps"):
        del made["warm_start"][name]
    (tmp_path / RECIPE).write_text(json.dumps(made))
    assert recipe_difference(load(corridor(), [f"model={tmp_path}"])) == ""
    other = load(corridor(), [f"model={tmp_path}", "warm_start.wander=0.3"])
    assert recipe_difference(other) == "warm_start.wander: 0.0 then, 0.3 now"
