"""Which number format a machine computes fast, from the flags of CPUs and GPUs that are not here."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gagpo.model import chosen_format
from gagpo.model.chosen_format import formats_for, native_bfloat16, slowdown
from gagpo.settings import load, shipped_configs
from gagpo.settings.formats import formats_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def machine(monkeypatch):
    """A CPU with the given flags; a flag of None is missing in this version of torch."""

    def describe(avx512=False, amx=False, architecture="x86_64", system="Linux", arm=False, **variables):
        native_bfloat16.cache_clear()
        monkeypatch.setattr(platform, "machine", lambda: architecture)
        monkeypatch.setattr(platform, "system", lambda: system)
        for name, flag in (("_is_avx512_bf16_supported", avx512), ("_is_amx_tile_supported", amx)):
            if flag is None:
                monkeypatch.delattr(torch.cpu, name, raising=False)
            else:
                monkeypatch.setattr(torch.cpu, name, lambda flag=flag: flag, raising=False)
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: arm, raising=False)
        for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    yield describe
    native_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("flags", "native", "reason"),
    [
        ({"avx512": True}, True, "AVX512-BF16"),
        ({"amx": True}, True, "AMX"),
        ({}, False, "neither AVX512-BF16 nor AMX"),
        ({"avx512": None, "amx": True}, True, "AMX"),
        ({"avx512": True, "ONEDNN_MAX_CPU_ISA": "AVX2"}, False, "ONEDNN_MAX_CPU_ISA=AVX2"),
        ({"avx512": True, "DNNL_MAX_CPU_ISA": "avx512_core"}, False, "avx512_core"),
        ({"amx": True, "avx512": True, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True, "AVX512-BF16 and AMX"),
        ({"amx": True, "ATEN_CPU_CAPABILITY": "avx2"}, False, "ATEN_CPU_CAPABILITY=avx2"),
        ({"architecture": "aarch64", "arm": True}, True, "BF16 instructions"),
        ({"architecture": "aarch64", "avx512": True}, False, "no BF16 instructions"),
        ({"avx512": True, "system": "Darwin"}, False, "macOS"),
    ],
)
def test_bfloat16_is_native_where_the_cpu_has_its_instructions(machine, flags, native, reason):
    machine(**flags)
    answer, why = native_bfloat16("cpu")
    assert answer is native and reason in why
    assert formats_for("cpu", 576).training == ("bfloat16" if native else "float32")


@pytest.mark.parametrize("factor", [0.4, 30.0])
def test_a_cpu_whose_flags_are_unknown_is_measured(machine, monkeypatch, factor):
    machine(avx512=None, amx=None)
    monkeypatch.setattr(chosen_format, "slowdown", lambda device: factor)
    assert native_bfloat16("cpu")[0] is (factor < 1)
    assert f"{factor:.1f} times as long" in formats_for("cpu").reason


def test_the_measurement_divides_seconds_of_equal_products():
    assert 0 < slowdown.__wrapped__("cpu", size=16) < 1e4


@pytest.mark.parametrize(("emulated", "name"), [(True, "float32"), (False, "bfloat16")])
def test_a_gpu_that_emulates_bfloat16_computes_in_float32(monkeypatch, emulated, name):
    native_bfloat16.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    supported = {True: True, False: not emulated}  # by whether emulation counts
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: supported[including_emulation]
    )
    formats = formats_for("cuda:0", 2048)
    native_bfloat16.cache_clear()
    assert (formats.training, formats.sampling) == (name, name) and "Tesla T4" in str(formats)


@pytest.mark.parametrize(
    ("width", "training", "sampling"),
    [
        (32, "float32", "float32"),
        (192, "bfloat16", "float32"),
        (576, "bfloat16", "bfloat16"),
        (None,) + ("bfloat16",) * 2,
    ],
)
def test_narrow_models_gain_nothing_on_a_cpu(machine, width, training, sampling):
    machine(avx512=True)
    formats = formats_for("cpu", width)
    assert (formats.training, formats.sampling) == (training, sampling)


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_no_shipped_config_computes_in_a_format_that_is_slow_here(name):
    settings = load(name)
    named = {key: value for key, value in formats_of(settings).items() if value != "auto"}
    assert named == {}, "the machine chooses, unless the format is the subject of the config"
    if settings.device == "cpu" and formats_for("cpu").training == "bfloat16":
        assert slowdown("cpu") < 1


def test_the_older_cpu_that_is_simulated_computes_in_float32():
    program = "from gagpo.model.chosen_format import formats_for; print(formats_for('cpu'))"
    done = subprocess.run(
        ["sh", ".ci/avx2", sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("float32 (")
