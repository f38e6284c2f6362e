"""SGLang servers behind the engine: the same responses as in this process, whatever the servers do."""

import json
import time

import numpy as np
import pytest
import torch

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.flat.attention import forward
from gagpo.agents.engines.flat.packed import PackedRows
from gagpo.agents.engines.registry import ENGINES
from gagpo.agents.engines.remote.engine import SGLangServerEngine
from gagpo.agents.engines.remote.kinds import sglang_transfer
from gagpo.agents.engines.remote.kinds.sglang import SGLangServers
from gagpo.agents.engines.remote.replicas import ReplicasLost
from gagpo.agents.engines.remote.wire import RequestRefused, Terms
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import ModelError
from gagpo.agents.setup import make_engine
from gagpo.base.errors import InvalidArgument
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import parse
from gagpo.training.trainer import train
from tests.agents.engines.remote.fake_server import sampling_at, serving
from tests.agents.engines.remote.fake_sglang import FakeSGLang
from tests.agents.engines.remote.test_servers import GREEDY, answered_while_one_dies, change, expected, requests_of


@pytest.fixture
def servers(tiny):
    with serving(*tiny, count=2, kind=FakeSGLang) as running:
        yield running


def engine_at(tiny, servers, **more):
    options = {"deadline": 60, "silence": 60, **more}
    return SGLangServerEngine(*tiny, urls=[fake.url for fake in servers], **options)


@pytest.fixture
def engine(tiny, servers):
    with sampling_at(engine_at(tiny, servers), servers) as engine:
        yield engine


def test_it_is_found_by_its_name():
    assert ENGINES.find("sglang-server") is SGLangServerEngine


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.7, max_tokens=6), Sampling(1.3, max_tokens=6, top_p=0.8)])
@pytest.mark.parametrize("spans", [True, False])
def test_responses_are_those_of_the_engine_in_this_process(tiny, engine, servers, sampling, spans):
    servers[0].spans = servers[1].spans = spans
    requests = requests_of(tiny[1], 8)
    own = make_engine("transformers", *tiny)
    if sampling.temperature:  # the server is asked with a seed that is spread over all bits
        spread = [
            json.loads(SGLangServers().question(one, sampling, Terms((), 9, "")))["sampling_params"] for one in requests
        ]
        seeds = [params["sampling_seed"] for params in spread]
        mine = own.generate(
            [Request(one.session, one.prompt_ids, seed) for one, seed in zip(requests, seeds, strict=True)], sampling
        )
    else:
        mine = own.generate(requests, sampling)
    for out, theirs in zip(engine.generate(requests, sampling), mine, strict=True):
        assert out.ids.tolist() == theirs.ids.tolist() and out.stopped == theirs.stopped
        np.testing.assert_allclose(out.logprobs, theirs.logprobs, atol=1e-5)
    assert engine.counters["asked"] == 8 and engine.counters["again"] == 0


def test_only_numbers_travel_and_stop_tokens_stay_in_force(tiny, engine, servers):
    engine.generate(requests_of(tiny[1], 4), Sampling(0.7, max_tokens=3))
    for body in servers[0].asked + servers[1].asked:
        assert all(type(token) is int for token in body["input_ids"]) and body["return_logprob"] is True
        params = body["sampling_params"]
        assert params["temperature"] == 0.7 and params["max_new_tokens"] == 3 and params["top_k"] == -1
        assert params["stop_token_ids"] == engine.stops and "ignore_eos" not in params


FAULTS = [
    *("error", "html", "deep", "no tokens", "too many", "foreign token", "text", "short", "other token", "nan"),
    *("positive", "none", "abort", "unfinished", "another stop", "no version", "part of a version", "half", "nothing"),
    "drop",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_answer_is_asked_for_again(tiny, engine, servers, fault):
    requests = requests_of(tiny[1], 6)
    servers[0].fault, servers[0].every = fault, 2
    assert [out.ids.tolist() for out in engine.generate(requests, GREEDY)] == expected(tiny, requests)
    assert engine.counters["again"] >= 1


@pytest.mark.parametrize("spans", [True, False])
def test_an_answer_from_other_weights_is_never_taken(tiny, engine, servers, spans):
    servers[0].fault, servers[0].spans = "old weights", spans
    requests = requests_of(tiny[1], 6)
    assert [out.ids.tolist() for out in engine.generate(requests, GREEDY)] == expected(tiny, requests)
    assert engine.counters["stale"] >= 1 and engine.counters["lost"] == 1


def test_a_server_that_was_restarted_comes_back_with_the_next_weights(tiny, engine, servers):
    servers[0].restarted()
    requests = requests_of(tiny[1], 6)
    assert [out.ids.tolist() for out in engine.generate(requests, GREEDY)] == expected(tiny, requests)
    assert engine.measures()["engine_servers"] == 1
    change(tiny[0])
    engine.load_weights(named_tensors(tiny[0]))
    told = engine.measures()
    assert told["engine_servers"] == 2 and told["engine_gap"] < 1e-4


def test_a_lost_server_loses_no_response(tiny, engine, servers, caplog):
    requests = requests_of(tiny[1], 6)
    assert answered_while_one_dies(engine, servers, requests) == expected(tiny, requests)
    assert any(line.startswith(f"lost the SGLang server {servers[0].url}, 1 of 2") for line in caplog.messages)


def test_when_none_is_left_the_message_says_what_became_of_each(tiny, engine, servers):
    for fake in servers:
        fake.fault = "forbidden"
    with pytest.raises(ReplicasLost, match=r"start the server with `python -m sglang\.launch_server"):
        engine.generate(requests_of(tiny[1], 1), GREEDY)


def test_what_all_refuse_is_said(tiny, engine, servers):
    servers[0].fault = servers[1].fault = "refuse"
    with pytest.raises(RequestRefused, match="the prompt is no good"):
        engine.generate(requests_of(tiny[1], 1), GREEDY)


@pytest.mark.parametrize("wrong", ["deaf", "raw log-probabilities", "another model"])
def test_a_server_that_is_not_the_model_is_refused(tiny, engine, servers, wrong, monkeypatch):
    engine.generate(requests_of(tiny[1], 8), GREEDY)  # what is asked of them next
    change(tiny[0])
    if wrong == "deaf":
        servers[1].deaf = True
    elif wrong == "another model":  # its loader takes what it knows, and leaves the rest as it was
        take = servers[1].take
        servers[1].take = lambda held, version: take({n: t for n, t in held.items() if "layers.0" not in n}, version)
    else:  # SGLANG_RETURN_ORIGINAL_LOGPROB: of the distribution before the temperature
        real = servers[1].engine.generate

        def untempered(requests, sampling):
            outs = real(requests, sampling)
            for one, out in zip(requests, outs, strict=True):
                ids = torch.as_tensor(np.concatenate([one.prompt_ids, out.ids])).long()[None]
                keep = torch.arange(ids.shape[1])
                rows = forward(servers[1].model, ids[0], PackedRows([ids.shape[1]], ids.device), keep).log_softmax(-1)
                out.logprobs[:] = rows[len(one.prompt_ids) - 1 : -1].gather(1, ids[0, len(one.prompt_ids) :, None])[
                    :, 0
                ]
            return outs

        monkeypatch.setattr(servers[1].engine, "generate", torch.no_grad()(untempered))
    with pytest.raises(ModelError, match=f"the SGLang server {servers[1].url}: log-probabilities are .* away from"):
        engine.load_weights(named_tensors(tiny[0]))


def test_a_server_that_cannot_load_is_left_out(tiny, engine, servers):
    servers[0].update_weights_from_disk = lambda **_: "Failed to update weights: size mismatch"
    change(tiny[0])
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 1


def test_a_server_that_ignores_seeds_is_told_of_once(tiny, servers, caplog):
    servers[1].info["enable_deterministic_inference"] = False
    engine = engine_at(tiny, servers)
    engine.load_weights(named_tensors(tiny[0]))
    (line,) = [line for line in caplog.messages if "--enable-deterministic-inference" in line]
    assert servers[1].url in line
    engine.close()


def test_weights_by_a_process_group(tiny, servers, monkeypatch):
    monkeypatch.setattr(sglang_transfer, "BUCKET_BYTES", 20_000)
    engine = engine_at(tiny, servers, transfer="gloo", sync_deadline=60)
    for update in range(2):
        change(tiny[0], update)
        engine.load_weights(named_tensors(tiny[0]))
        requests = requests_of(tiny[1], 4, update)
        assert [out.ids.tolist() for out in engine.generate(requests, GREEDY)] == expected(tiny, requests)
        assert engine.measures()["engine_servers"] == 2 and engine.measures()["engine_gap"] < 1e-4
    for fake in servers:
        assert fake.orders.count("/init_weights_update_group") == 1
        assert fake.orders.count("/update_weights_from_distributed") > 3  # bucket by bucket
    engine.close()
    assert all("/destroy_weights_update_group" in fake.orders for fake in servers)


def test_a_server_that_leaves_the_group_costs_no_other(tiny, servers):
    engine = engine_at(tiny, servers, transfer="gloo", sync_deadline=60)
    servers[0].member.kill()
    change(tiny[0])
    begun = time.monotonic()
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 1 and time.monotonic() - begun < 55
    servers[0].close()
    engine.load_weights(named_tensors(tiny[0]))  # a new group is formed
    assert engine.measures()["engine_servers"] == 2
    engine.close()


def test_a_server_without_the_calls_of_a_group_is_found_at_once(tiny, servers):
    servers[0].init_weights_update_group = lambda **_: "NCCL is not there"
    begun = time.monotonic()
    engine = engine_at(tiny, servers, transfer="gloo", sync_deadline=120)
    assert engine.measures()["engine_servers"] == 1 and time.monotonic() - begun < 60
    engine.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"urls must name SGLang servers: .* started by `python -m sglang\.launch_server"),
        ({"urls": ["http://a:1"], "transfer": "ipc"}, "one of file, nccl, gloo, got 'ipc'"),
        ({"urls": ["http://a:1"], "transfer": "nccl"}, "needs a model on a GPU"),
    ],
)
def test_wrong_options_are_named(tiny, options, message):
    with pytest.raises(InvalidArgument, match=message):
        SGLangServerEngine(*tiny, **options)


def test_a_temperature_that_would_be_rounded_to_zero_is_refused(tiny, engine):
    with pytest.raises(InvalidArgument, match="temperature 0 or from 1e-06 on"):
        engine.generate(requests_of(tiny[1], 1), Sampling(1e-7, max_tokens=2))


def test_a_whole_run_trains_through_it(tmp_path, tiny):
    model, tokenizer = tiny
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with serving(model, tokenizer, count=2, kind=FakeSGLang) as servers:
        values = {
            "name": "sglang",
            "model": str(tmp_path / "model"),
            "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 3}},
            "engine": {"name": "sglang-server", "options": {"urls": [fake.url for fake in servers], "silence": 60.0}},
            "rollout": {"tasks": 2, "samples": 2, "max_tokens": 4, "workers": 0},
            "algorithm": {"preset": "gagpo"},
            "training": {"iterations": 3, "save_every": 100},
            "evaluation": {"splits": ["test"], "tasks": 2, "before": False},
            "trackers": [],
        }
        run = RunFolder.create(tmp_path / "run", parse(values, "the test"))
        train(run, quiet=True)
        assert all(fake.asked and "/update_weights_from_disk" in fake.orders for fake in servers)
    rows = RunFolder.open(tmp_path / "run").metrics()
    assert len(rows) == 3
    for row in rows:
        assert row["engine_gap"] < 1e-4 and row["engine_servers"] == 2 and abs(row["mismatch_kl"]) < 1e-4
