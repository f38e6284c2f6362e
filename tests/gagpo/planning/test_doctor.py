"""The doctor: a healthy machine passes, and every kind of fault is found and named."""

import json

import pytest
import torch
import typer

from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.planning import doctor, gpus, memory

large = doctor._large
FAST = {"versions", "device", "weights", "engine parity", "memory", "speed"}


@pytest.fixture
def machine(tmp_path):
    made = doctor.Machine("cpu", "transformers", "float32", tmp_path)
    doctor.check_weights(made)
    return made


def test_a_healthy_machine_passes_every_quick_check():
    heard = []
    findings = doctor.examine("cpu", learn=False, report=heard.append)
    assert findings == heard and {finding.name for finding in findings} == FAST
    assert all(finding.ok for finding in findings), findings
    json.dumps([vars(finding) for finding in findings])


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


def test_a_check_that_raises_has_failed_and_the_others_go_on(monkeypatch, capsys):
    from gagpo.cli.models import doctor as command

    def broken(machine):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(
        doctor, "CHECKS", {"versions": doctor.check_versions, "speed": broken, "device": doctor.check_device}
    )
    with pytest.raises(typer.Exit) as ended:
        command("cpu", "transformers", "float32", True, True)
    printed = capsys.readouterr().out.splitlines()
    assert ended.value.exit_code == 1 and "failed: speed" in printed
    record = json.loads(printed[-1])
    assert record["failed"] == ["speed"] and not record["ok"] and len(record["findings"]) == 3
    assert record["findings"][1]["summary"] == "RuntimeError: no kernel image is available"


def test_a_device_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    findings = {finding.name: finding for finding in doctor.examine("cuda", learn=False)}
    assert not findings["device"].ok and "set device=cpu" in findings["device"].summary


@pytest.mark.slow
def test_the_short_run_learns(tmp_path):
    finding = doctor.check_learning(doctor.Machine("cpu", "transformers", "float32", tmp_path))
    assert finding.ok and finding.values["after"] > finding.values["before"] + doctor.RISE, finding


@pytest.mark.slow
def test_a_run_that_does_not_learn_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(doctor.CORRIDOR, "optimizer", {"learning_rate": 1e-12})
    assert not doctor.check_learning(doctor.Machine("cpu", "transformers", "float32", tmp_path)).ok


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
    small = {**doctor.LARGE, "hidden_size": 28, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 400}
    monkeypatch.setattr(doctor, "LARGE", small)
    monkeypatch.setattr(doctor, "speeds", lambda machine, model, tokens: (5e3, 1e9))
    monkeypatch.setattr(doctor, "_large", lambda _: large("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(gpus, "product_teraflops", lambda _: 700.0)
    machine.device = "cuda"
    finding = doctor.check_speed(machine)
    assert finding.values["share_of_peak"] == pytest.approx(6 * finding.values["parameters"] * 1e9 / 989e12)
    assert (
        "% of the 989 of NVIDIA H100" in finding.summary and "matrix products alone 700 TFLOPS, 71 %" in finding.summary
    )
