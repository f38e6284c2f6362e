"""Supervised training: the tokens that count, and resuming."""

import math
import signal

import numpy as np
import pytest
import torch

from gagpo.base.signals import Signals
from gagpo.data import Episode, Turn
from gagpo.model.loading import load_model
from gagpo.settings import SettingsError, SftSettings, load
from gagpo.settings.derived import RECIPE
from gagpo.sft import fit as supervised
from gagpo.sft.fit import STATE, SupervisedStateError, cosine_rate, fit, optimizers
from gagpo.sft.rows import PROMPT, RESPONSE, SKIPPED, LabelledRow, labelled_rows, store_rows, stored_rows
from gagpo.sft.run import prepare, sft
from gagpo.sft.small_model import save_folder
from tests.rejections import rejects


def episode() -> Episode:
    turns = []
    ids = np.zeros(0, np.int32)
    for number, trainable in enumerate((True, False, True)):
        prompt = np.concatenate([ids, np.full(3, 10 + number, np.int32)])
        response = np.full(2, 20 + number, np.int32)
        turns.append(Turn("", "", "", trainable=trainable, prompt_ids=prompt, response_ids=response))
        ids = np.concatenate([prompt, response])
    return Episode("t", turns=turns)


@pytest.mark.parametrize("stray", [PROMPT, SKIPPED])
def test_rows_mark_what_is_imitated_and_what_is_only_read(stray):
    (row,) = labelled_rows(episode(), stray)
    read, messages = [PROMPT] * 3, [RESPONSE] * 2
    assert row.kind_L.tolist() == [SKIPPED, PROMPT, PROMPT, *messages, *read, stray, stray, *read, *messages]


def test_a_row_is_trained_on_with_or_without_what_is_read():
    row = LabelledRow(np.arange(5, dtype=np.int32), np.array([SKIPPED, PROMPT, RESPONSE, SKIPPED, RESPONSE], np.uint8))
    assert row.row(observations=True).position_K.tolist() == [1, 2, 4]
    assert row.row(observations=True).turn_K.tolist() == [PROMPT, RESPONSE, RESPONSE]
    assert row.row(observations=False).position_K.tolist() == [2, 4]


def test_rows_are_stored_as_they_are(tmp_path):
    rows = labelled_rows(episode()) * 2
    store_rows(rows, tmp_path / "rows.npz")
    for item, again in zip(rows, stored_rows(tmp_path / "rows.npz"), strict=True):
        assert (item.ids == again.ids).all() and (item.kind_L == again.kind_L).all()


def test_each_weight_has_one_optimizer_and_muon_gets_the_matrices_between_layers(tiny):
    model, _ = tiny
    muon, adamw = optimizers(model)
    owned = [
        parameter for optimizer in (muon, adamw) for group in optimizer.param_groups for parameter in group["params"]
    ]
    assert sorted(map(id, owned)) == sorted(map(id, model.parameters()))
    assert isinstance(muon, torch.optim.Muon) and len(muon.param_groups[0]["params"]) == 2 * 7
    assert any(parameter is model.get_input_embeddings().weight for parameter in adamw.param_groups[0]["params"])


def test_the_rate_rises_over_a_twentieth_and_falls_along_a_cosine():
    settings = SftSettings(steps=100, learning_rate=1.0)
    assert cosine_rate(settings, 0) == pytest.approx(0.2)
    assert cosine_rate(settings, 50) == pytest.approx(0.5)
    assert cosine_rate(settings, 99) == pytest.approx(0.5 * (1 + math.cos(0.99 * math.pi)))


def test_unfinished_work_is_not_overwritten_for_other_settings(corridor, tmp_path):
    settings = load(corridor(), [f"model={tmp_path / 'm'}"])
    work = tmp_path / "m.under-way"
    prepare(settings, work, {RECIPE: '{"sft": {"noise": 0.75}}'}, quiet=True)
    with rejects(SettingsError, "other settings", where="m.under-way", advice="delete it"):
        sft(settings, quiet=True)
    assert (work / "rows.npz").exists()


def signal_at(monkeypatch, moment):
    """Send this process a SIGTERM in a step, after the last one, or while the model is written; returns the steps."""
    steps, take, save = [], supervised._step, save_folder

    def step(*arguments):
        steps.append(1)
        if len(steps) == 12:
            for _ in range({"step": 1, "two signals": 2}.get(moment, 0)):
                signal.raise_signal(signal.SIGTERM)
        return take(*arguments)

    def write(model, tokenizer, folder, *arguments, **options):
        if moment == "writing" and steps and folder.name == "n":
            monkeypatch.setattr("gagpo.sft.adapter.save_folder", save)
            signal.raise_signal(signal.SIGTERM)
        return save(model, tokenizer, folder, *arguments, **options)

    monkeypatch.setattr(supervised, "_step", step)
    monkeypatch.setattr("gagpo.sft.adapter.save_folder", write)
    return steps


@pytest.mark.parametrize(("moment", "expected"), [("step", 20), ("writing", 20), ("two signals", 32)])
def test_a_signal_repeats_no_step(corridor, tmp_path, monkeypatch, moment, expected):
    straight = sft(load(corridor(), [f"model={tmp_path / 'm'}"]), quiet=True)
    steps = signal_at(monkeypatch, moment)
    settings = load(corridor(), [f"model={tmp_path / 'n'}"])
    with pytest.raises(SystemExit), Signals().watching():
        sft(settings, quiet=True)
    assert len(steps) == (20 if moment == "writing" else 12)
    resumed = sft(settings, quiet=True)
    assert len(steps) == expected
    weights, remaining = load_model(str(straight)).state_dict(), load_model(str(resumed)).state_dict()
    assert all(torch.equal(weights[name], remaining[name]) for name in weights)


def test_a_damaged_state_is_named(corridor, tmp_path):
    settings = load(corridor(), [f"model={tmp_path / 'm'}"])
    model, _, rows = prepare(settings, tmp_path / "work", {}, quiet=True)
    (tmp_path / "work" / STATE).write_bytes(b"PK\x03\x04 torn")
    with rejects(SupervisedStateError, "read", where="supervised.pt"):
        fit(model, rows, settings, quiet=True, folder=tmp_path / "work")
