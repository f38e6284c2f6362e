"""The plan compared with torch's allocations, and its advice for GPUs that are too small."""

import json
import re

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Qwen2Config

from benchmarks.allocated import Allocated
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.model.flat.attention import hidden_states
from gagpo.model.flat.packed import PackedRows
from gagpo.model.loading import ModelError, untrained
from gagpo.model.shape import sizes
from gagpo.planning.fitting import judge
from gagpo.planning.memory import GB, update_parts
from gagpo.planning.memory import peak as peak_of
from gagpo.planning.plan import DEFAULT_GUESS, Guess, guess_of, measured_guess, plan, shape_of
from gagpo.settings import load
from gagpo.sft.small_model import create, train_tokenizer
from tests.gagpo.distributed.conftest import start_ranks
from tests.gagpo.planning.peaks import PROMPT, RESPONSE, ROWS, SIZES, Case, measured, model_of
from tests.gagpo.planning.test_recipes import with_overrides
from tests.rejections import rejects

TOLERANCE = 0.15  # of the measured peak, either way
PASSES = [(False, "float32"), (True, "float32"), (False, "bfloat16"), (True, "bfloat16")]
CASES = [Case("middle", *one) for one in PASSES]
CASES += [Case("small"), Case("wide", True, "bfloat16"), Case("wide", True, "bfloat16", "bfloat16")]


def planned(corridor, case, processes=1):
    """The planned peak of an update."""
    model = model_of(case)
    changes = {"microbatch_tokens": ROWS * (PROMPT + RESPONSE), "gradient_checkpointing": case.checkpointing}
    changes["ema"] = False  # only an update is measured
    lora = {"lora": {"rank": 8, "base_dtype": case.base}} if case.base else {}
    training, engine = {**changes, "dtype": case.precision}, {"dtype": case.precision}
    folder = corridor().parent / "shape"
    model.config.save_pretrained(folder)
    more = {"training": training, "engine": engine, "context": {"history": 0}, "processes": processes, **lora}
    settings = with_overrides(load(corridor(model=str(folder), **more)), [f"rollout.max_tokens={RESPONSE}"])
    result = plan(settings, Guess(prompt=PROMPT))
    parameters = [p for name, p in model.named_parameters() if ".lora_" not in name]
    assert result.shape.parameters == sum(parameter.numel() for parameter in parameters)
    remaining = ("engine weights", "KV cache", "sampling", "a weight in transfer", "checkpoint", "program")
    return peak_of([segment for segment in result.parts if segment.name not in remaining])[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_matches_what_torch_allocates(corridor, case):
    peak = measured(case)
    assert planned(corridor, case) == pytest.approx(peak, rel=TOLERANCE)


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory):
    """The peak of the first of two gloo ranks, by case."""
    out = tmp_path_factory.mktemp("ranks") / "peaks.json"
    ranks = start_ranks(["-m", "tests.gagpo.planning.peaks", out, *(case.words() for case in CASES)])
    outputs = [process.communicate(timeout=600)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(outputs)
    return dict(zip(CASES, json.loads(out.read_text()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_matches_what_torch_allocates_in_one_of_two_ranks(corridor, of_two_ranks, case):
    assert planned(corridor, case, processes=2) == pytest.approx(of_two_ranks[case], rel=TOLERANCE)


def test_the_planned_cache_is_what_the_engine_reserves(corridor):
    tokenizer = train_tokenizer(["You stand at 12."], 300)
    model = create(SIZES["middle"], tokenizer, 0).eval()
    folder = corridor().parent / "shape"
    model.config.save_pretrained(folder)
    settings = load(corridor(model=str(folder), rollout={"max_tokens": 8}, evaluation={"splits": []}))
    result = plan(settings, Guess(prompt=150))
    engine = TransformersEngine(model, tokenizer)
    requests = [Request(i, np.full(150, 7, np.int32), i) for i in range(24)]
    engine.generate(requests, Sampling(1.0, 8))
    held = sum(store.nbytes for store in (*engine._cache.key, *engine._cache.value))
    assert {segment.name: segment.bytes for segment in result.parts}["KV cache"] == held


@pytest.mark.parametrize(
    ("evaluation", "sessions"),
    [
        ({"splits": []}, 128),
        ({"tasks": 60, "episodes_per_task": 3}, 180),
        ({"tasks": 60, "episodes_per_task": 9}, 256),
        ({"splits": ["train"]}, 256),
    ],
)
def test_the_sessions_of_an_evaluation_are_planned(big, evaluation, sessions):
    settings = with_overrides(big, [f"evaluation={json.dumps(evaluation)}"])
    cache = next(segment for segment in plan(settings).parts if segment.name == "KV cache")
    assert cache.note.startswith(f"{sessions} sessions")


@pytest.fixture
def big(corridor, tmp_path):
    """A config of 1.5 B parameters without weights."""
    shape = Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    )  # fmt: skip
    shape.save_pretrained(tmp_path / "qwen")
    return load("alfworld-qwen", [f"model={tmp_path / 'qwen'}", "evaluation.splits=[]"])


def test_a_real_model_is_planned_from_its_config_alone(big):
    result = plan(big, Guess(tokens_per_second=2000.0))
    segment = {segment.name: segment.bytes / GB for segment in result.parts}
    assert result.shape.parameters == 1_543_714_304
    assert segment["weights"] == segment["gradients"] == pytest.approx(6.175, abs=1e-3)
    assert (
        segment["optimiser"] == 2 * segment["weights"]
        and segment["reference"] == segment["engine weights"] == 3.087428608
    )
    assert result.tokens["most"] == 16 * 8 * 50 * 512 and result.disk["most"] == 4 * result.disk["checkpoint"]
    assert result.disk["checkpoint"] == (4 + 8) * result.shape.parameters  # weights, two moments
    averaged = plan(with_overrides(big, ["training.ema=true"]), Guess())
    assert averaged.disk["checkpoint"] == (4 + 4 + 8) * result.shape.parameters
    assert result.hours == pytest.approx(result.tokens["guess"] * 150 / 2000 / 3600)


@pytest.mark.parametrize(
    ("changes", "gigabytes", "said"),
    [
        ([], 80, "^fits"),
        ([], 36, "does not fit.*memory: loss; lower training.microbatch_tokens"),
        (["training.microbatch_tokens=512", "training.gradient_checkpointing=true"], 24, "does not fit.*: "),
    ],
)
def test_what_does_not_fit_names_settings_of_the_largest_phase(big, changes, gigabytes, said):
    verdict = judge(with_overrides(big, changes), Guess(), gigabytes)
    assert re.search(said, verdict.advice), verdict.advice
    assert verdict.fits == (verdict.needed <= verdict.available) == verdict.advice.startswith("fits")


@pytest.mark.parametrize("row, heads", [(1024, 4), (128, 2)])
def test_materialised_attention_scores_are_counted(big, row, heads):
    """Soft-capped attention compared with torch's count, with recomputed scores and with kept ones (128, 2)."""
    config = Gemma2Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=2, intermediate_size=128,
        vocab_size=300, head_dim=16, sliding_window=4096, max_position_embeddings=2048,
    )  # fmt: skip
    shape = sizes(config)
    assert shape.materialized and not shape_of(big).materialized
    settings = with_overrides(big, ["device=cpu", "training.microbatch_tokens=2048", "training.dtype=float32"])
    settings = with_overrides(settings, ["training.gradient_checkpointing=false", "context.history=full"])
    torch.manual_seed(0)
    model = untrained(config).train()
    rows = PackedRows([row] * (2048 // row))
    with Allocated() as counted:
        hidden_states(model, torch.arange(2048) % 300, rows, torch.arange(2048)).sum().backward()
    segments = {update_part.name: update_part.bytes for update_part in update_parts(settings, shape, row, 0, 1)}
    planned = segments["activations"] + segments.get("scores", 0.0) + 4 * shape.parameters
    assert counted.peak == pytest.approx(planned, rel=0.15)


def test_without_a_gpu_the_average_and_a_checkpoint_on_its_way_take_the_same_memory(big):
    with_average, without = (
        plan(with_overrides(big, ["device=cpu", f"training.ema={average}"])) for average in ("true", "false")
    )
    assert with_average.on_host() == 0
    assert with_average.peak()[0] - without.peak()[0] == pytest.approx(2 * 4 * with_average.shape.parameters)
    retained = {segment.name: segment.bytes for segment in with_average.parts}
    assert retained["checkpoint"] == retained["weights"] + retained["optimiser"] + retained["ema"]


def test_the_parts_of_ranks(big):
    segment = {n: {p.name: p.bytes for p in plan(with_overrides(big, [f"processes={n}"])).parts} for n in (1, 4)}
    for name in ("weights", "gradients", "optimiser", "reference"):
        assert segment[4][name] == segment[1][name] / 4
    assert (
        segment[4]["engine weights"] == segment[1]["engine weights"] and segment[4]["KV cache"] < segment[1]["KV cache"]
    )
    assert segment[4]["a weight in transfer"] == 4 * 151936 * 1536 and "gathered" not in segment[1]
    servers = with_overrides(big, ["engine={name: vllm, dtype: bfloat16, options: {gpus: [4]}}", "processes=4"])
    sent = {p.name: p.bytes for p in plan(servers).parts}
    assert "engine weights" not in sent and sent["a weight in transfer"] == 4 * 151936 * 1536


def test_an_engine_that_sleeps_makes_room_for_the_update(big):
    awake = with_overrides(big, ["engine.sleep=false"])
    verdict = judge(awake, Guess(), 42)
    assert judge(big, Guess(), 42).fits and not verdict.fits


def test_vllm_takes_its_share_and_a_shared_module_no_memory(big):
    vllm = with_overrides(big, ["engine={name: vllm, dtype: bfloat16, gpu_memory_utilization: 0.3}"])
    segment = {segment.name: segment.bytes for segment in plan(vllm, gigabytes=80).parts}
    assert segment["engine weights and KV cache"] == pytest.approx(24 * GB)
    exact = with_overrides(big, ["engine={name: transformers, dtype: float32}"])
    assert "engine weights" not in {segment.name for segment in plan(exact).parts}


def test_only_an_adapter_has_gradients_and_moments_and_it_needs_no_reference(big):
    lora = with_overrides(big, ["lora={rank: 32}"])
    segment = {segment.name: segment.bytes for segment in plan(lora).parts}
    # r (in + out) of q, k, v, o, gate, up, down in 28 layers
    count = 28 * 32 * (2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960))
    assert segment["gradients"] == 4 * count and segment["optimiser"] == 8 * count and "reference" not in segment


def test_a_hub_model_that_is_not_cached_is_one_line(big):
    with rejects(ModelError, "nobody/nothing", advice="hf download"):
        shape_of(with_overrides(big, ["model=nobody/nothing"]))


def test_a_model_that_sft_will_create_has_the_shape_of_its_section(corridor):
    settings = load(corridor(model="not/there"))
    shape = shape_of(settings)
    assert (shape.layers, shape.width, shape.context) == (1, 32, 4096)


def test_measurements_replace_guesses():
    rows = [{"mean_turns": 4.0, "response_tokens": 3.0, "tokens_per_second": 50.0}] * 3
    assert measured_guess(rows) == Guess(turns=4.0, response=3.0, tokens_per_second=50.0)


def test_freed_memory_is_not_counted():
    with Allocated() as counted:
        retained = torch.ones(1000)
        del retained
        view = torch.ones(500).view(5, 100)
    assert counted.peak == 4000 and counted.now == 2000 and view.shape == (5, 100)


def test_the_command_prints_parts_and_advice(big, capsys):
    from gagpo.cli.planning import plan as command

    command("alfworld-qwen", [f"model={big.model}"], gpu_memory=[80.0, 24.0], as_json=True)
    printed = capsys.readouterr().out
    assert "80 GB: fits" in printed and "24 GB: does not fit" in printed
    assert json.loads(printed.splitlines()[-1])["gpus"][0]["fits"]


@pytest.mark.parametrize(("history", "least", "most"), [("full", 20, 40), (0, 50, 100)])
def test_tokens_of_a_turn_are_those_of_an_experts_episode(history, least, most):
    """A starter's own words and small rooms: a few tokens a turn, and whole windows where nothing is remembered."""
    settings = load("alfworld-quickstart", [f"context.history={history}"])
    assert least < guess_of(settings).prompt < most


def test_what_cannot_be_played_here_is_guessed(big):
    assert guess_of(big) == DEFAULT_GUESS
