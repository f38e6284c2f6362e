"""Supervised training: which tokens count, and the same result however often it is interrupted."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.model import load_model
from gagpo.learning.batch import Row
from gagpo.settings import SettingsError, load
from gagpo.settings.derived import RECIPE
from gagpo.warm_start import fit as supervised
from gagpo.warm_start.demonstrations import demonstrations
from gagpo.warm_start.fit import PROMPT, RESPONSE, STATE, STRAY, SupervisedStateError, everything, fit
from gagpo.warm_start.rows import learned_rows
from gagpo.warm_start.run import prepare, warm_start


def test_strays_are_neither_said_nor_read():
    row = Row(
        np.arange(8), np.array([2, 3, 6]), np.array([RESPONSE, STRAY, RESPONSE]), np.arange(3), np.zeros(3, np.float32)
    )
    whole = everything(row)
    assert whole.place_K.tolist() == [1, 2, 4, 5, 6, 7]
    assert whole.turn_K.tolist() == [PROMPT, RESPONSE, PROMPT, PROMPT, RESPONSE, PROMPT]


def episode() -> Episode:
    turns = []
    ids = np.zeros(0, np.int32)
    for number, trainable in enumerate((True, False, True)):
        prompt = np.concatenate([ids, np.full(3, 10 + number, np.int32)])
        response = np.full(2, 20 + number, np.int32)
        turns.append(Turn("", "", "", trainable=trainable, prompt_ids=prompt, response_ids=response))
        ids = np.concatenate([prompt, response])
    return Episode("t", turns=turns)


@pytest.mark.parametrize(
    ("read_strays", "kinds"), [(True, [RESPONSE] * 4), (False, [RESPONSE, RESPONSE, STRAY, STRAY, RESPONSE, RESPONSE])]
)
def test_rows_of_a_demonstration_mark_what_strayed(corridor, read_strays, kinds):
    warm = load(corridor(), [f"warm_start.read_strays={str(read_strays).lower()}"]).warm_start
    (row,) = learned_rows(episode(), warm)
    assert row.turn_K.tolist() == kinds and len(row.ids) == 15


class Interrupted(Exception):
    pass


def test_interrupted_training_ends_in_the_same_weights(corridor, tmp_path, monkeypatch):
    settings = load(corridor(), [f"model={tmp_path / 'm'}", "warm_start.save_minutes=1e-9", "warm_start.steps=8"])
    straight = load_model(str(warm_start(settings, quiet=True))).state_dict()
    other = load(corridor(), [f"model={tmp_path / 'n'}", "warm_start.save_minutes=1e-9", "warm_start.steps=8"])
    store, done = supervised._store, []

    def breaking(path: Path, *rest: object) -> None:
        store(path, *rest)  # type: ignore[arg-type]
        done.append(path)
        if len(done) in (3, 5):
            raise Interrupted

    monkeypatch.setattr(supervised, "_store", breaking)
    for _ in range(2):
        with pytest.raises(Interrupted):
            warm_start(other, quiet=True)
    resumed = load_model(str(warm_start(other, quiet=True))).state_dict()
    assert len(done) == 8, "no step was taken twice"
    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    assert not list(tmp_path.glob("*.under-way"))


def test_what_is_under_way_is_never_thrown_away_for_other_settings(corridor, tmp_path):
    settings = load(corridor(), [f"model={tmp_path / 'm'}"])
    work = tmp_path / "m.under-way"
    prepare(settings, work, {RECIPE: '{"warm_start": {"noise": 0.75}}'}, quiet=True)
    with pytest.raises(SettingsError, match=r"m\.under-way was begun with other settings .*delete it to begin anew"):
        warm_start(settings, quiet=True)
    assert (work / "rows.npz").exists()


def test_a_damaged_state_is_named(corridor, tmp_path):
    settings = load(corridor(), [f"model={tmp_path / 'm'}"])
    model, _, rows = prepare(settings, tmp_path / "work", {}, quiet=True)
    (tmp_path / "work" / STATE).write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(SupervisedStateError, match=r"supervised\.pt cannot be read"):
        fit(model, rows, settings, quiet=True, folder=tmp_path / "work")


def test_mixtures_share_the_episodes_and_a_base_keeps_its_tokenizer(corridor, warm_model, tmp_path):
    parts = "[{share: 1, kwargs: {max_turns: 16}}, {share: 3, kwargs: {max_turns: 12}}]"
    settings = load(
        corridor(), [f"model={tmp_path / 'm'}", f"warm_start.base={warm_model}", f"warm_start.mixtures={parts}"]
    )
    model, tokenizer, rows = prepare(settings, tmp_path / "work", {}, quiet=True)
    assert tokenizer.get_vocab() == load_tokenizer_of(warm_model).get_vocab() and rows
    stored = load_model(warm_model).state_dict()
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())


def load_tokenizer_of(folder: str):
    from gagpo.agents.model import load_tokenizer

    return load_tokenizer(folder)


def test_a_learner_is_corrected_by_the_expert(corridor, warm_model, tmp_path):
    changes = [f"model={tmp_path / 'm'}", f"warm_start.base={warm_model}", "warm_start.corrected=1.0"]
    settings = load(corridor(context={"history": "full"}), [*changes, "warm_start.read_strays=false"])
    _, _, rows = prepare(settings, tmp_path / "work", {}, quiet=True)
    kinds = np.concatenate([row.turn_K for row in rows])
    assert {RESPONSE, STRAY} == set(kinds.tolist())
    with pytest.raises(SettingsError, match="corrected episodes are played by base"):
        load(corridor(), ["warm_start.corrected=0.5"])
    with pytest.raises(SettingsError, match="shares of one whole"):
        load(corridor(), ["warm_start.corrected=0.5", "warm_start.hasty=0.7", f"warm_start.base={warm_model}"])


@pytest.mark.parametrize(("takeover", "refused"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_how_often_the_expert_takes_over_is_a_setting(corridor, warm_model, takeover, refused):
    shares = [f"warm_start.takeover={takeover}", f"warm_start.takeover_refused={refused}"]
    own = [f"warm_start.base={warm_model}", "warm_start.corrected=1.0", *shares]
    episodes = demonstrations(load(corridor(context={"history": "full"}), own), quiet=True)
    pairs = [pair for episode in episodes for pair in pairwise(episode.turns) if not pair[0].trainable]
    taken = {valid: {turn.trainable for before, turn in pairs if before.valid == valid} for valid in (True, False)}
    assert taken[True] == {takeover == 1} and taken[False] == {refused == 1}
