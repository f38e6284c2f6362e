"""Each request to several servers gets one response, and broken servers are detected."""

import copy
import json
import threading
import time

import numpy as np
import pytest
import torch

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.engines.remote.client import MalformedAnswer, RequestRejected, ServedModel, parse
from gagpo.agents.engines.remote.replicas import ReplicasLost
from gagpo.agents.setup import make_engine
from gagpo.base.errors import InvalidArgument
from gagpo.model.loading import ModelError
from gagpo.model.weights import named_tensors
from tests.agents.engines.remote.fake_server import answer_of, sampling_at, serving, spoiled
from tests.rejections import rejects

GREEDY = Sampling(0.0, max_tokens=6)


@pytest.fixture
def servers(tiny):
    with serving(*tiny, count=2) as running:
        yield running


@pytest.fixture
def engine(tiny, servers):
    engine = engine_at(tiny, urls=[fake.url for fake in servers], timeout=60, health_timeout=60)
    with sampling_at(engine, servers):
        yield engine


def engine_at(tiny, **options):
    """The engine at servers, started."""
    return make_engine(engine_options("vllm", options), *tiny)


def requests_of(tokenizer, count, seed=0):
    rng = np.random.default_rng(seed)
    return [Request(s, rng.integers(5, len(tokenizer), 6 + s).astype(np.int32), 100 + s) for s in range(count)]


def tokens(engine, requests):
    return [out.ids.tolist() for out in engine.generate(requests, GREEDY)]


def expected(tiny, requests):
    return tokens(make_engine("transformers", *tiny), requests)


def assert_same_tokens(engine, tiny, count=6):
    """The engine's greedy responses are those of the transformers engine."""
    requests = requests_of(tiny[1], count)
    assert tokens(engine, requests) == expected(tiny, requests)


def answered_while_one_dies(engine, servers, requests):
    """The response tokens for ``requests``, while the first server dies."""
    for fake in servers:
        fake.delay = 0.5
    engine.submit(requests, GREEDY)
    servers[0].die()
    results = {}
    while more := engine.collect():
        results |= {request.session: out.ids.tolist() for request, out in more}
    return [results[request.session] for request in requests]


def asked_at(fake):
    return [len(body["token_ids"]) for body in fake.asked]


def change(model, seed=1):
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))


def test_responses_are_those_of_the_engine_in_this_process(tiny, engine, servers):
    requests = requests_of(tiny[1], 8)
    responses = engine.generate(requests, GREEDY)
    assert [out.ids.tolist() for out in responses] == expected(tiny, requests)
    reference = make_engine("transformers", *tiny).generate(requests, GREEDY)
    for out, actual in zip(responses, reference, strict=True):
        np.testing.assert_allclose(out.logprobs, actual.logprobs, atol=1e-5)
        assert out.ids.dtype == np.int32 and out.logprobs.dtype == np.float32
    assert engine.counters["requests"] == 8 and engine.counters["retries"] == 0


def test_requests_hold_only_token_ids(tiny, engine, servers):
    engine.generate(requests_of(tiny[1], 4), Sampling(0.7, max_tokens=3))
    for body in servers[0].asked + servers[1].asked:
        assert all(type(token) is int for token in body["token_ids"])
        params = body["sampling_params"]
        assert params["detokenize"] is False and params["temperature"] == 0.7 and params["max_tokens"] == 3
        assert params["ignore_eos"] and params["stop_token_ids"] == engine.stops
        assert body["cache_salt"].endswith(":1")


def test_sessions_are_distributed_and_stay(tiny, engine, servers):
    rng = np.random.default_rng(0)
    prompts = {session: np.arange(5, 9 + session, dtype=np.int32) for session in range(6)}
    for turn in range(3):
        requests = [Request(session, ids, turn) for session, ids in prompts.items()]
        for session, out in enumerate(engine.generate(requests, Sampling(1.0, max_tokens=2))):
            more = rng.integers(5, 20, 8).astype(np.int32)
            prompts[session] = np.concatenate([prompts[session], out.ids, more])
    for fake in servers:
        begun = {tuple(body["token_ids"]) for body in fake.asked if len(body["token_ids"]) < 20}
        assert len(fake.asked) == 9
        for body in fake.asked:
            assert any(tuple(body["token_ids"][: len(first)]) == first for first in begun)
    engine.release(0)
    engine.release(2)
    engine.generate([Request(20, prompts[0][:9], 1), Request(21, prompts[0][:9], 1)], GREEDY)
    assert len(servers[0].asked) + len(servers[1].asked) == 20 and min(map(len, (s.asked for s in servers))) == 9


def test_a_seed_gives_the_same_response_at_any_server(tiny, engine, servers):
    requests = requests_of(tiny[1], 6)
    first = [out.ids.tolist() for out in engine.generate(requests, Sampling(1.0, max_tokens=6))]
    for request in requests:
        engine.release(request.session)
    again = engine.generate(list(reversed(requests)), Sampling(1.0, max_tokens=6))
    assert [out.ids.tolist() for out in reversed(again)] == first


def test_responses_are_returned_as_they_arrive(tiny, engine, servers):
    servers[1].delay = 3.0
    engine.submit(requests_of(tiny[1], 4), GREEDY)
    early = engine.collect(1.0)
    assert early and {request.session for request, _ in early} <= {0, 2}
    assert engine.collect(0) == [] or len(early) < 2
    servers[1].free.set()
    remaining = []
    while more := engine.collect():
        remaining += more
    assert sorted(request.session for request, _ in early + remaining) == [0, 1, 2, 3]
    assert engine.collect() == []


MALFORMED = [
    *("html", "deep", "empty", "no tokens", "too many", "foreign token", "text", "short", "other token", "nan"),
    *("400 digits", "minus 400 digits", "1e999", "a token of 400 digits", "surrogate", "not UTF-8", "half", "nothing"),
    *("positive", "missing", "abort", "cut", "no version", "part of a version"),
]


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_answers_are_not_read(fault):
    sound = answer_of([5, 7, 2], [-1.0, -0.5, -0.1], True, "run:1")
    terms = ServedModel((2,), 300, "run:1")
    assert parse(json.dumps(sound).encode(), 3, terms).ids.tolist() == [5, 7, 2]
    _, body = spoiled(sound, fault)
    with pytest.raises(MalformedAnswer):
        parse(body if isinstance(body, bytes) else body.encode(), 3, terms)


def test_broken_answers_are_retried(tiny, engine, servers):
    requests = requests_of(tiny[1], 6)
    target = expected(tiny, requests)
    for fault in ("error", "html", "huge", "nan", "drop"):
        before = dict(engine.counters)
        servers[0].asked.clear()
        servers[0].fault, servers[0].every = fault, 2
        assert tokens(engine, requests) == target, fault
        assert engine.counters["retries"] > before["retries"] and engine.counters["servers_lost"] == 0, fault
        assert (engine.counters["broken"] > before["broken"]) == (fault not in ("error", "drop")), fault
        for request in requests:
            engine.release(request.session)


@pytest.mark.parametrize("fault", ["html", "error"])
def test_a_server_that_always_fails_is_given_up(tiny, engine, servers, fault):
    servers[0].fault = fault
    assert_same_tokens(engine, tiny)
    assert engine.counters["servers_lost"] == 1 and engine.measures()["engine_servers"] == 1
    assert len(servers[1].asked) == 6


def test_many_connections_that_are_cut_at_once_are_one_fault(tiny, engine, servers):
    """A restarted proxy cuts all connections, although the servers behind it are healthy."""
    requests, together = requests_of(tiny[1], 12), threading.Barrier(12)

    def cut_first(fake):
        generate, cut = fake.generate, iter(range(6))

        def answer(body):
            if next(cut, None) is None:
                return generate(body)
            together.wait(20)  # all have asked before the first is cut off
            return 0, ""

        fake.generate = answer

    for fake in servers:
        cut_first(fake)
    assert tokens(engine, requests) == expected(tiny, requests)
    assert engine.counters["retries"] == 12 and engine.counters["servers_lost"] == 0


@pytest.mark.parametrize("fault", ["old weights", "mixed weights"])
def test_an_answer_from_other_weights_is_never_taken(tiny, engine, servers, fault):
    servers[0].fault = fault
    assert_same_tokens(engine, tiny)
    assert engine.counters["stale"] >= 1 and engine.counters["servers_lost"] == 1


def test_an_unnoticed_restart_is_detected_and_mended_by_the_next_update(tiny, engine, servers):
    servers[0].restarted()
    requests = requests_of(tiny[1], 6)
    assert tokens(engine, requests) == expected(tiny, requests)
    assert engine.counters["stale"] >= 1 and engine.measures()["engine_servers"] == 1
    change(tiny[0])
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 2
    for request in requests:
        engine.release(request.session)
    servers[0].asked.clear()
    assert tokens(engine, requests) == expected(tiny, requests)
    assert len(servers[0].asked) == 3


def test_a_silent_server_is_noticed_and_its_requests_go_elsewhere(tiny, servers):
    engine = engine_at(tiny, urls=[fake.url for fake in servers], timeout=60, health_timeout=3)
    servers[0].silent = True
    assert_same_tokens(engine, tiny)
    assert engine.counters["timeouts"] == 1 and engine.counters["servers_lost"] == 1 and engine.counters["retries"] == 3
    servers[0].free.set()
    engine.close()


def test_a_response_that_hangs_ends_at_its_deadline(tiny, servers):
    engine = engine_at(tiny, urls=[fake.url for fake in servers], timeout=2, health_timeout=5)
    servers[0].fault = "hang"
    assert_same_tokens(engine, tiny, 4)
    assert engine.counters["timeouts"] == 1 and engine.counters["servers_lost"] == 1
    servers[0].free.set()
    engine.close()


def test_a_dead_server_loses_nothing(tiny, engine, servers, caplog):
    requests = requests_of(tiny[1], 6)
    assert answered_while_one_dies(engine, servers, requests) == expected(tiny, requests)
    assert engine.counters["servers_lost"] == 1 and engine.counters["retries"] >= 3
    engine.load_weights(named_tensors(tiny[0]))  # it is not lost a second time
    assert [line.startswith(f"lost the vLLM server {servers[0].url}, 1 of 2") for line in caplog.messages] == [True]


def test_the_error_says_why_each_server_was_lost(tiny, engine, servers):
    for fake in servers:
        fake.fault = "old weights"
    with pytest.raises(ReplicasLost) as caught:
        engine.generate(requests_of(tiny[1], 3), GREEDY)
    assert all(fake.url in str(caught.value) for fake in servers) and "'older'" in str(caught.value)
    assert engine.collect() == []


def test_a_request_that_a_server_refuses_is_not_repeated(tiny, engine, servers):
    servers[0].fault = servers[1].fault = "refuse"
    with rejects(RequestRejected, "the prompt is no good", where="/inference/v1/generate"):
        engine.generate(requests_of(tiny[1], 1), GREEDY)
    assert len(servers[0].asked) + len(servers[1].asked) == 1
    servers[0].fault = servers[1].fault = ""
    assert len(engine.generate(requests_of(tiny[1], 3), GREEDY)) == 3


def test_an_unsuitable_server_names_the_command_to_start_it(tiny, engine, servers):
    servers[0].fault = servers[1].fault = "forbidden"
    with rejects(ReplicasLost, "`python -m gagpo.agents.engines.remote.server"):
        engine.generate(requests_of(tiny[1], 1), GREEDY)
    servers[0].fault = servers[1].fault = ""
    engine.load_weights(named_tensors(tiny[0]))
    assert len(engine.generate(requests_of(tiny[1], 3), GREEDY)) == 3


def test_an_unsuitable_server_is_given_up(tiny, engine, servers, caplog):
    servers[0].fault = "forbidden"
    assert_same_tokens(engine, tiny, 8)
    assert len(servers[1].asked) == 8 and engine.counters["servers_lost"] == 1
    (line,) = caplog.messages
    assert line.startswith(f"lost the vLLM server {servers[0].url}, 1 of 2 are left: ") and "\n" not in line


def test_new_weights_reach_every_server_and_gaps_are_reported(tiny, engine, servers):
    for update in range(3):
        change(tiny[0], update)
        engine.load_weights(named_tensors(tiny[0]))
        requests = requests_of(tiny[1], 4, update)
        assert tokens(engine, requests) == expected(tiny, requests)
        measures = engine.measures()
        assert measures["engine_gap_0"] < 1e-4 and measures["engine_gap_1"] < 1e-4
        assert (
            measures["engine_gap"] == max(measures["engine_gap_0"], measures["engine_gap_1"])
            and measures["engine_seconds_sync"] > 0
        )
    assert {fake.asked[-1]["cache_salt"].split(":")[1] for fake in servers} == {"4"}


def test_copied_weights_are_checked_while_the_model_trains_on(tiny, engine, servers):
    change(tiny[0], 1)
    laid_out = [(name, tensor.detach().clone()) for name, tensor in named_tensors(tiny[0])]
    before = expected(tiny, requests := requests_of(tiny[1], 4))
    change(tiny[0], 2)
    engine.load_weights(laid_out)
    assert engine.measures()["engine_gap"] < 1e-4
    assert tokens(engine, requests) == before != expected(tiny, requests)
    servers[0].deaf = servers[1].deaf = True
    change(tiny[0], 3)
    with rejects(ModelError, "log-probabilities"):
        engine.load_weights([(name, tensor.detach().clone()) for name, tensor in named_tensors(tiny[0])])


def test_an_untrained_copy_is_filled_with_the_weights_that_pass(tiny, engine, servers):
    """As with several ranks, where the engine's model is a copy."""
    trained = copy.deepcopy(tiny[0])
    tiny[0].requires_grad_(False)
    change(trained)
    engine.load_weights(named_tensors(trained))
    assert engine.measures()["engine_gap"] < 1e-4
    requests = requests_of(tiny[1], 4)
    assert tokens(engine, requests) == expected((trained, tiny[1]), requests)


def test_a_server_that_ignores_new_weights_is_refused(tiny, engine, servers):
    servers[1].deaf = True
    change(tiny[0])
    with rejects(ModelError, "log-probabilities", where=f"the vLLM server {servers[1].url}"):
        engine.load_weights(named_tensors(tiny[0]))


def test_an_open_update_of_another_trainer_is_ended_first(tiny, engine, servers):
    servers[0].loading = {}
    change(tiny[0])
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 2


def test_a_dead_server_is_left_out_of_an_update(tiny, engine, servers):
    servers[0].die()
    change(tiny[0])
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 1
    assert_same_tokens(engine, tiny, 4)


def test_released_requests_get_no_response(tiny, engine, servers):
    for fake in servers:
        fake.delay = 1.0
    engine.submit(requests_of(tiny[1], 4), GREEDY)
    engine.release(1)
    results = []
    while more := engine.collect():
        results += [request.session for request, _ in more]
    assert sorted(results) == [0, 2, 3]


def test_misuse_is_named(tiny, engine):
    ids = np.arange(5, 515, dtype=np.int32)
    with rejects(ValueError, "513 tokens", "512", key="max_tokens"):
        engine.generate([Request(0, ids[:510], 0)], Sampling(max_tokens=3))
    with rejects(ValueError, "0", "[0.01, 2.0]", "got 0.001", key="temperature"):
        engine.generate([Request(0, ids[:9], 0, 0.001)], Sampling(max_tokens=3))
    assert engine.generate([], Sampling()) == []
    engine.submit([Request(0, ids[:9], 0)], GREEDY)
    with rejects(InvalidArgument, "under way"):
        engine.load_weights(named_tensors(tiny[0]))


def test_close_may_be_called_twice_and_removes_the_weights(tiny, servers, tmp_path):
    engine = engine_at(tiny, urls=[servers[0].url], folder=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1 and not list(tmp_path.rglob("*.safetensors"))  # they have been read
    begun = time.monotonic()
    engine.close()
    engine.close()
    assert not list(tmp_path.iterdir()) and time.monotonic() - begun < 60
