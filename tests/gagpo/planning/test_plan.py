"""The plan against what torch really allocates, and what it says about GPUs that are too small."""

import json

import numpy as np
import pytest
import torch
from transformers import Qwen2Config

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.model import ModelError
from gagpo.planning.allocated import Allocated
from gagpo.planning.fitting import judge
from gagpo.planning.lengths import Guess, guess_from
from gagpo.planning.memory import GB
from gagpo.planning.memory import peak as peak_of
from gagpo.planning.plan import plan, shape_of
from gagpo.settings import load, with_overrides
from gagpo.warm_start.small_model import create, train_tokenizer
from tests.gagpo.distributed.conftest import start_ranks
from tests.gagpo.planning.peaks import PROMPT, RESPONSE, ROWS, SIZES, Case, measured, model_of

TOLERANCE = 0.15  # of the measured peak, either way
PASSES = [(False, "float32"), (True, "float32"), (False, "bfloat16"), (True, "bfloat16")]
CASES = [Case(size, *one) for size in SIZES for one in PASSES]
CASES += [Case(size, True, "bfloat16", base) for size in ("middle", "wide") for base in ("float32", "bfloat16")]


def planned(corridor, case, processes=1):
    """The peak of an update by the plan."""
    model = model_of(case)
    changes = {"microbatch_tokens": ROWS * (PROMPT + RESPONSE), "gradient_checkpointing": case.checkpointing}
    lora = {"lora": {"rank": 8, "base": case.base}} if case.base else {}
    training, engine = {**changes, "precision": case.precision}, {"dtype": case.precision}
    folder = corridor().parent / "shape"
    model.config.save_pretrained(folder)
    more = {"training": training, "engine": engine, "context": {"history": 0}, "processes": processes, **lora}
    settings = with_overrides(load(corridor(model=str(folder), **more)), [f"rollout.max_tokens={RESPONSE}"])
    made = plan(settings, Guess(prompt=PROMPT))
    parameters = [p for name, p in model.named_parameters() if ".lora_" not in name]
    assert made.shape.parameters == sum(parameter.numel() for parameter in parameters)
    of_engine = ("engine weights", "KV cache", "sampling", "a weight on its way")
    return peak_of([part for part in made.parts if part.name not in of_engine])[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_is_what_torch_allocates(corridor, case):
    peak = measured(case)
    assert planned(corridor, case) == pytest.approx(peak, rel=TOLERANCE)


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory):
    """What the first of two gloo ranks allocates at most, by case."""
    out = tmp_path_factory.mktemp("ranks") / "peaks.json"
    ranks = start_ranks(["-m", "tests.gagpo.planning.peaks", out, *(case.words() for case in CASES)])
    outputs = [process.communicate(timeout=600)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(outputs)
    return dict(zip(CASES, json.loads(out.read_text()), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_of_a_rank_is_what_torch_allocates_in_one_of_two(corridor, of_two_ranks, case):
    assert planned(corridor, case, processes=2) == pytest.approx(of_two_ranks[case], rel=TOLERANCE)


def test_the_cache_is_what_the_engine_reserves(corridor):
    tokenizer = train_tokenizer(["You stand at 12."], 300)
    model = create(SIZES["middle"], tokenizer, 0).eval()
    folder = corridor().parent / "shape"
    model.config.save_pretrained(folder)
    settings = load(corridor(model=str(folder), rollout={"max_tokens": 8}))
    made = plan(settings, Guess(prompt=150))
    engine = TransformersEngine(model, tokenizer)
    requests = [Request(i, np.full(150, 7, np.int32), i) for i in range(24)]
    engine.generate(requests, Sampling(1.0, 8))
    held = sum(store.nbytes for store in (*engine._cache.key, *engine._cache.value))
    assert {part.name: part.bytes for part in made.parts}["KV cache"] == held


@pytest.fixture
def big(corridor, tmp_path):
    """A config of 1.5 B parameters whose weights are nowhere."""
    shape = Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    )  # fmt: skip
    shape.save_pretrained(tmp_path / "qwen")
    return load("alfworld-qwen", [f"model={tmp_path / 'qwen'}"])


def test_a_real_model_is_planned_from_its_config_alone(big):
    made = plan(big, Guess(tokens_per_second=2000.0))
    part = {part.name: part.bytes / GB for part in made.parts}
    assert made.shape.parameters == 1_543_714_304
    assert part["weights"] == part["gradients"] == pytest.approx(6.175, abs=1e-3)
    assert part["optimiser"] == 2 * part["weights"] and part["reference"] == part["engine weights"] == 3.087428608
    assert made.tokens["most"] == 16 * 8 * 50 * 512 and made.disk["most"] == 4 * made.disk["checkpoint"]
    assert made.hours == pytest.approx(made.tokens["guess"] * 150 / 2000 / 3600)


def test_overrides_make_it_fit_and_none_is_idle(big):
    assert judge(big, Guess(), 80).fits
    verdict = judge(big, Guess(), 36)
    assert not verdict.fits and verdict.overrides
    overrides = [f"model={big.model}", *verdict.overrides]
    assert judge(load("alfworld-qwen", overrides), Guess(), 36).fits
    for override in verdict.overrides:
        fewer = [other for other in overrides if other != override]
        assert not judge(load("alfworld-qwen", fewer), Guess(), 36).fits
    hopeless = judge(big, Guess(), 16)
    assert not hopeless.overrides and "take a smaller model" in hopeless.advice


def test_an_engine_that_sleeps_makes_room_for_the_update(big):
    awake = with_overrides(big, ["engine.sleep=false"])
    verdict = judge(awake, Guess(), 40)
    assert judge(big, Guess(), 40).fits and not verdict.fits and verdict.overrides == ["engine.sleep=true"]


def test_vllm_takes_its_share_and_a_shared_module_nothing(big):
    vllm = with_overrides(big, ["engine={name: vllm, dtype: bfloat16, memory: 0.3}"])
    part = {part.name: part.bytes for part in plan(vllm, gigabytes=80).parts}
    assert part["engine weights and KV cache"] == pytest.approx(24 * GB)
    exact = with_overrides(big, ["engine={name: transformers, dtype: float32}"])
    assert "engine weights" not in {part.name for part in plan(exact).parts}


def test_an_adapter_has_gradients_and_moments_alone_and_needs_no_reference(big):
    lora = with_overrides(big, ["lora={rank: 32}"])
    part = {part.name: part.bytes for part in plan(lora).parts}
    # r (in + out) of q, k, v, o, gate, up, down in 28 layers
    count = 28 * 32 * (2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960))
    assert part["gradients"] == 4 * count and part["optimiser"] == 8 * count and "reference" not in part


def test_a_critic_of_its_own_is_a_second_model_also_beside_an_adapter(big):
    ppo = "algorithm={preset: ppo_token, critic: {head: separate}}"
    whole = load("alfworld-qwen", [f"model={big.model}", ppo])
    alone, count = 1_543_714_304, 28 * 32 * (2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960))
    made = plan(whole)
    assert {part.name: part.bytes for part in made.parts}["critic"] == 12 * alone
    assert made.disk["checkpoint"] == 24 * alone
    made = plan(with_overrides(whole, ["lora={rank: 32}"]))
    assert {part.name: part.bytes for part in made.parts}["critic"] == 4 * alone + 12 * count
    assert made.disk["checkpoint"] == 12 * count + 4 * alone + 12 * count


def test_eight_bits_are_a_quarter_of_the_moments_but_for_the_embeddings(big):
    small = with_overrides(big, ["optimizer.name=adamw8bit"])
    parts = [{part.name: part.bytes for part in plan(one).parts} for one in (big, small)]
    embedded, rest = 151936 * 1536, 1_543_714_304 - 151936 * 1536
    assert parts[1]["optimiser"] == pytest.approx(8 * embedded + 2 * rest * (1 + 4 / 256))
    assert parts[1]["optimiser"] < 0.4 * parts[0]["optimiser"] and "optimiser's step" not in parts[1]
    assert plan(small).disk["checkpoint"] == 4 * 1_543_714_304 + parts[1]["optimiser"]
    adapter = with_overrides(small, ["lora={rank: 32}"])
    part = {part.name: part.bytes for part in plan(adapter).parts}
    assert part["optimiser"] == pytest.approx(part["gradients"] / 2 * (1 + 4 / 256))


def test_a_hub_model_that_is_not_cached_is_one_line(big, monkeypatch):
    with pytest.raises(ModelError, match="neither a folder nor cached, and a plan downloads nothing"):
        shape_of(with_overrides(big, ["model=nobody/nothing"]))


def test_a_model_yet_to_be_warm_started_has_its_sections_shape(corridor):
    settings = load(corridor(model="not/there"))
    shape = shape_of(settings)
    assert (shape.layers, shape.width, shape.context) == (1, 32, 128)


def test_measured_speed_takes_the_place_of_guesses():
    rows = [{"mean_turns": 4.0, "response_tokens": 3.0, "tokens_per_second": 50.0}] * 3
    found = guess_from(rows, Guess(turns=9.0))
    assert (found.turns, found.response, found.tokens_per_second) == (9.0, 3.0, 50.0)


def test_what_is_freed_is_not_counted():
    with Allocated() as counted:
        kept = torch.ones(1000)
        del kept
        view = torch.ones(500).view(5, 100)
    assert counted.peak == 4000 and counted.now == 2000 and view.shape == (5, 100)


def test_the_command_prints_parts_and_advice(big, capsys):
    from gagpo.cli.models import plan as command

    command("alfworld-qwen", [f"model={big.model}"], gpu_memory=[80.0, 24.0], tokens_per_second=1000.0, run=None,
            prompt_tokens=300, turns=None, response_tokens=None, as_json=True)  # fmt: skip
    printed = capsys.readouterr().out
    assert "80 GB: fits" in printed and "24 GB: does not fit" in printed
    assert json.loads(printed.splitlines()[-1])["gpus"][0]["fits"]
