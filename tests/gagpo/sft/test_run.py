"""SFT: rejected settings, tokenizers, and the record of its settings."""

import pytest
import torch

from gagpo.data import Episode, Turn, write_episodes
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.settings import SettingsError, SftModelSettings, load
from gagpo.settings.derived import recipe_difference
from gagpo.sft.run import demonstrations_in, prepare, settings_per_environment, sft
from gagpo.sft.small_model import shape_for, train_tokenizer
from tests.rejections import rejects


@pytest.mark.parametrize(
    ("changes", "key", "names"),
    [
        ({"context": {"admissible": True}}, "context.admissible", ("context.admissible=false",)),
        ({"sft": None}, "sft", ()),
    ],
)
def test_what_sft_cannot_do_is_refused(corridor, changes, key, names):
    with rejects(SettingsError, *names, key=key):
        sft(load(corridor(**changes)), quiet=True)


def test_several_environments_share_the_demonstrations_by_weight():
    settings = load("mixture", ["sft.episodes=100", "environments.maths.weight=2"])
    assert [segment.sft.episodes for segment in settings_per_environment(settings)] == [25, 25, 50]
    with rejects(SettingsError, "several environments", key="sft.steps"):
        sft(load("mixture", ["sft.steps=null"]), quiet=True)


def test_a_base_keeps_its_weights_and_its_tokenizer(corridor, warm_model, tmp_path):
    settings = load(corridor(), [f"model={tmp_path / 'm'}", f"sft.base_model={warm_model}"])
    model, tokenizer, rows = prepare(settings, tmp_path / "work", {}, quiet=True)
    assert tokenizer.get_vocab() == load_tokenizer(warm_model).get_vocab() and rows
    stored = load_model(warm_model).state_dict()
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("width", "heads", "shared"), [(32, 1, 1), (64, 2, 1), (128, 4, 2), (160, 5, 5)])
def test_heads_follow_from_the_width(width, heads, shared):
    shape = shape_for(SftModelSettings(hidden_size=width))
    assert (shape.heads, shape.key_value_heads, shape.feed_forward) == (heads, shared, 3 * width)


@pytest.mark.parametrize("numbers", ["words", "digits", "names"])
def test_tokenizers_lose_nothing_and_treat_numbers_as_asked(numbers):
    tokenizer = train_tokenizer(["On the shelf 12, you see a mug 1, and a mug 2."] * 9, 500, numbers)
    for text in ("a mug 2.", "mug 1x, mug 12\n\n  shelf 3  \t7 mug", "\u00e9t\u00e9 1 \U0001f642 2", " 1 1"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    requests = {"words": [" shelf", " 12"], "digits": [" shelf", " ", "1", "2"], "names": [" shelf 12"]}
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode("On the shelf 12, you")]
    assert tokens == ["On", " the", *requests[numbers], ",", " you"]


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


def test_a_word_has_the_same_tokens_wherever_it_stands_if_spaces_are_apart():
    texts = ['Click on the "Renda" link.\n\n[3] link "Renda"\nRenda, 3mJ5'] * 9
    tokenizer = train_tokenizer(texts, 300, "apart")
    for word in ("Renda", "3mJ5", "Bernardine"):
        ids = tokenizer.encode(word)
        for text in (f'"{word}"', f" {word},", f"click[{word}]"):
            encoded = tokenizer.encode(text)
            assert any(encoded[i : i + len(ids)] == ids for i in range(len(encoded))), (word, text)
            assert tokenizer.decode(encoded) == text


def test_an_empty_mark_is_refused(corridor):
    with rejects(SettingsError, key="sft.model.marks"):
        load(corridor(), ["sft.model.marks=['']"])


def test_a_model_records_what_it_was_made_with(corridor, tmp_path):
    assert recipe_difference(load(corridor())) == ""
    assert recipe_difference(load(corridor(), ["algorithm.preset=grpo", "seed=7"])) == ""
    assert recipe_difference(load(corridor(), ["sft.steps=21"])) == "sft.steps: 20 then, 21 now"
    assert recipe_difference(load(corridor(), ["sft.model.hidden_size=64"])) == "sft.model.hidden_size: 32 then, 64 now"
    assert recipe_difference(load(corridor(), [f"model={tmp_path}", "sft.steps=21"])) == ""


@pytest.mark.parametrize("prompt", ["tags", "think-act"])
def test_a_prompt_that_asks_for_thoughts_needs_demonstrations_with_thoughts(corridor, warm_model, tmp_path, prompt):
    changes = [f"model={tmp_path / 'm'}", f"sft.base_model={warm_model}", f"context.prompt={prompt}"]
    with rejects(SettingsError, f"prompt {prompt}", "<think>", advice="context.prompt=action"):
        prepare(load(corridor(), changes), tmp_path / "work", {}, quiet=True)
    path = tmp_path / "episodes.jsonl"
    for response, is_refused in (("<action>right</action>", True), ("<think>go</think><action>right</action>", False)):
        turns = [Turn("cell 2 of 5", response, "right")]
        write_episodes(path, [Episode("t", turns=turns, success=True, outcome="terminated")])
        settings = load(corridor(), [*changes, f"sft.data={path}"])
        if is_refused:
            with rejects(SettingsError, f"prompt {prompt}", "<think>", advice="context.prompt=action"):
                demonstrations_in(settings, None, quiet=True)
        else:
            assert demonstrations_in(settings, None, quiet=True).episodes[0].turns[0].response == response
