"""The steps of one process: a healthy machine passes, and every kind of fault is found and named."""

import pytest
import torch

from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.planning import gpus, memory
from gagpo.planning.doctor import alone as doctor
from gagpo.planning.doctor import cards
from gagpo.planning.doctor.machine import CORRIDOR, LARGE, Machine
from gagpo.settings import SettingsError


@pytest.fixture
def machine(tmp_path):
    return Machine("cpu", "transformers", "float32", tmp_path)


def test_an_engine_that_keeps_its_old_weights_is_found(machine, monkeypatch):
    class Stale(TransformersEngine):
        def __init__(self, model, tokenizer, max_length=None, *, dtype=None):
            import copy

            super().__init__(copy.deepcopy(model), tokenizer, max_length, dtype=dtype)

        def load_weights(self, tensors):
            self._forget()

    monkeypatch.setattr(doctor, "make_engine", lambda name, *arguments, **options: Stale(*arguments, **options))
    finding = doctor.check_parity(machine)
    assert not finding.ok and finding.values["gap"] < 1e-3 < finding.values["gap_after_new_weights"]


def test_weights_that_come_back_changed_are_named(machine, monkeypatch):
    honest = doctor.load_model

    def changed(*arguments, **options):
        model = honest(*arguments, **options)
        with torch.no_grad():
            model.model.norm.weight[0] += 1e-6
        return model

    monkeypatch.setattr(doctor, "load_model", changed)
    finding = doctor.check_weights(machine)
    assert not finding.ok and finding.values["different"] == ["model.norm.weight"]


def test_memory_beyond_the_plan_is_found(machine, monkeypatch):
    monkeypatch.setattr(memory, "layer_bytes", lambda *_: 0.0)
    assert not doctor.check_memory(machine).ok


def test_a_device_that_is_not_there_is_named(machine):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    machine.device = "cuda"
    with pytest.raises(SettingsError, match="set device=cpu"):
        cards.check_device(machine)


@pytest.mark.slow
def test_the_short_run_learns(machine):
    finding = doctor.check_learning(machine)
    assert finding.ok and finding.values["after"] > finding.values["before"] + doctor.RISE, finding


@pytest.mark.slow
def test_a_run_that_does_not_learn_is_found(machine, monkeypatch):
    monkeypatch.setitem(CORRIDOR, "optimizer", {"learning_rate": 1e-12})
    assert not doctor.check_learning(machine).ok


def test_a_gpus_peak_is_that_of_its_name_and_its_share_is_told():
    assert gpus.peak_of("NVIDIA H100 80GB HBM3") == 989 and gpus.peak_of("NVIDIA H100 PCIe") == 756
    assert gpus.peak_of("NVIDIA A100-SXM4-80GB") == 312 and gpus.peak_of("NVIDIA L40S") == 362
    assert gpus.peak_of("NVIDIA A10G") == 70 and gpus.peak_of("NVIDIA GeForce RTX 4090") == 165.2
    assert gpus.peak_of("Voodoo 2") is None
    assert gpus.training_teraflops(494_000_000, 100_000) == pytest.approx(296.4)
    assert gpus.share_line("NVIDIA H100 80GB HBM3", 296.7) == (
        "297 TFLOPS, 30 % of the 989 of NVIDIA H100 80GB HBM3",
        0.3,
    )
    line, share = gpus.share_line("Voodoo 2", 1.0)
    assert share is None and "not in the table" in line
    assert gpus.product_teraflops("cpu", 64, 0.01) > 0


def test_a_cpu_is_said_to_have_no_peak_and_a_gpu_does_the_large_model(machine, monkeypatch):
    assert "no GPU here, so no share of a GPU's peak" in doctor.check_speed(machine).summary
    monkeypatch.setattr(doctor, "speeds", lambda machine, model, tokens: (5e3, 1e9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(gpus, "product_teraflops", lambda _: 700.0)
    machine.device = on_a_card(monkeypatch)
    finding = doctor.check_speed(machine)
    assert finding.values["share_of_peak"] == pytest.approx(6 * finding.values["parameters"] * 1e9 / 989e12)
    assert (
        "% of the 989 of NVIDIA H100" in finding.summary and "matrix products alone 700 TFLOPS, 71 %" in finding.summary
    )


def on_a_card(monkeypatch):
    """A device that is taken for a card, with the large model made small; its tensors are on the CPU."""
    small = {"hidden_size": 28, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 400}
    for key, value in small.items():
        monkeypatch.setitem(LARGE, key, value)
    monkeypatch.setattr(Machine, "on_card", property(lambda machine: True))
    return "cpu"


def test_a_card_is_asked_for_its_own_count_of_memory(machine, monkeypatch):
    counted = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", counted.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 10**6)
    machine.device = on_a_card(monkeypatch)
    finding = doctor.check_memory(machine)
    assert counted == ["cpu"] and finding.values["measured"] == 10**6
    assert finding.verdict == "failed" and "give `gagpo plan`" in finding.advice


def test_the_large_model_is_the_same_each_time(machine, monkeypatch):
    machine.device = on_a_card(monkeypatch)
    (one, shape), (other, _) = machine.sized(), machine.sized()
    assert shape.width == 28 and shape.layers == 2
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
