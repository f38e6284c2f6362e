"""Agents whose model runs behind a server that fails, hangs and limits requests."""

import threading
import time

import pytest

pytest.importorskip("flask")

from gagpo.agents.agent import EpisodeState
from gagpo.agents.api import settings as api_settings
from gagpo.agents.api.agent import ApiAgent, ChatSettings
from gagpo.agents.api.client import ApiClient, ApiError, ContextFull
from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode, episode_from_record, episode_record
from gagpo.envs.pool import WorkerPool
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.eval.summary import result_lines
from tests.agents.chat_server import serving
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
ASK = [{"role": "user", "content": "You stand at 3. Go to door 1."}]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.05)


def client_of(server, **changes):
    return ApiClient(ApiSettings("m", server.url, **{"timeout": 1.0, **changes}))


def play(server, count=12, concurrency=4, chat=None, **changes):
    agent = ApiAgent(client_of(server, **changes), chat or ChatSettings(find_prompt("plain")))
    with WorkerPool(CORRIDOR, {"max_turns": 20}, workers=0) as pool:
        jobs = group_jobs([f"door-{i % 8:02d}" for i in range(count)], 1, 0)
        episodes, _ = rollout(agent, pool, jobs, concurrency=concurrency, deterministic=False)
    return agent, episodes


def test_a_server_that_fails_in_every_way_costs_time_only():
    with serving(faults=("error", "limit", "hang", "garbage", "empty"), rate=0.15) as server:
        agent, episodes = play(server, count=8, attempts=20)
    assert len(episodes) == 8 and all(episode.success for episode in episodes)
    spent = agent.client.spent
    answered = sum(len(episode.turns) for episode in episodes)
    assert spent.requests == len(server.requests) == sum(episode.info["requests"] for episode in episodes)
    assert answered < spent.requests and spent.unanswered < spent.requests - answered  # a refusal is an answer
    assert (spent.prompt, spent.completion, spent.cached) == tuple(n * answered for n in (10, 2, 4))


def test_a_server_that_was_never_reached_is_given_up_at_the_first_refusal():
    client = ApiClient(ApiSettings("m", "http://127.0.0.1:9/v1"))
    with rejects(ApiError, where="http://127.0.0.1:9/v1/chat/completions", advice="--base-url"):
        client.submit(ASK, 0.0, 8).result(30)
    assert client.spent.requests == 1
    client.close()


def test_retries_are_announced_once(caplog):
    with serving(faults=("error",), rate=0.9) as server:
        client = client_of(server, attempts=50)
        client.submit(ASK, 0.0, 8).result(30)
        client.close()
    assert len(server.requests) > 2
    (messages,) = [record.getMessage() for record in caplog.records if record.name == "gagpo"]
    assert "status 500" in messages and "trying again, 49 times at most" in messages


def test_episodes_go_on_while_others_wait():
    with serving(delay=0.05) as server:
        _, episodes = play(server, count=8, concurrency=8)
        assert server.most > 2
    assert [episode.task for episode in episodes] == [f"door-{i:02d}" for i in range(8)]


def test_the_conversation_grows_by_appending():
    with serving() as server:
        play(server, count=1, chat=ChatSettings(find_prompt("plain"), admissible=True))
    for item, two in zip(server.requests, server.requests[1:], strict=False):
        assert two["messages"][: len(item["messages"])] == item["messages"]
        assert len(two["messages"]) == len(item["messages"]) + 2


@pytest.mark.parametrize("history", ["full", 1])
def test_a_turn_keeps_the_messages_that_were_sent(history):
    with serving(style="<action>{}</action>") as server:
        _, (episode,) = play(server, 1, chat=ChatSettings(find_prompt("tags"), "Walk.", history=history))
    assert len(episode.turns) == len(server.requests) > 1
    for number, (turn, request) in enumerate(zip(episode.turns, server.requests, strict=True)):
        new = request["messages"][-1:] if number and history == "full" else request["messages"]
        assert turn.sent == "\n\n".join(f"[{item['role']}]\n{item['content']}" for item in new)
    assert "Walk." in episode.turns[0].sent


def test_reasoning_stays_in_the_episode_and_out_of_the_conversation():
    for options in ({"reasoning": "hm"}, {"style": "<think>hm</think>{}"}):
        with serving(**options) as server:
            _, (episode,) = play(server, 1, chat=ChatSettings(find_prompt("plain")))
        assert all(turn.response == "<think>hm</think>left" and turn.action == "left" for turn in episode.turns)
        messages = {message["content"] for message in server.requests[-1]["messages"] if message["role"] == "assistant"}
        assert messages == {"left"}


def test_a_window_is_one_message():
    with serving() as server:
        play(server, 1, chat=ChatSettings(find_prompt("tags"), "Walk.", history=1))
    assert all(len(request["messages"]) == 1 for request in server.requests)


def test_a_conversation_that_is_too_long_ends_its_episode():
    with serving(faults=["long"], rate=1.0) as server:
        with pytest.raises(ContextFull):
            client_of(server).submit(ASK, 0.0, 5).result()
        _, (episode,) = play(server, 1)
    assert (episode.outcome, episode.success, episode.turns) == ("truncated", False, [])


def test_errors_that_retries_cannot_fix_are_raised_at_once():
    with serving(faults=["key"], rate=1.0) as server:
        with rejects(ApiError, "OPENAI_API_KEY"):
            client_of(server).submit(ASK, 0.0, 5).result()
        assert len(server.requests) == 1


def test_a_lost_server_stops_all_episodes():
    with serving(faults=["error"], rate=1.0) as server, rejects(ApiError, "it happens"):
        play(server, count=20, concurrency=10, attempts=2)


def test_no_request_follows_an_error_and_finished_episodes_are_delivered():
    """An episode's next request follows its environment's answer, so an error of ``on_finish`` is the last event."""
    finished = []

    def on_finish(episode):
        finished.append(episode)
        if len(finished) == 3:
            requests.append(len(server.requests) + server.under_way)
            raise OSError("the disk is full")

    requests = []
    with serving(delay=0.02) as server:
        agent = ApiAgent(client_of(server), ChatSettings(find_prompt("plain")), concurrency=2)
        with (
            WorkerPool(CORRIDOR, {"max_turns": 20}, workers=0) as pool,
            pytest.raises(OSError, match="the disk is full"),
        ):
            jobs = group_jobs([f"door-{i % 8:02d}" for i in range(12)], 1, 0)
            rollout(agent, pool, jobs, concurrency=8, deterministic=False, on_finish=on_finish)
        agent.close()
        settled = wait_for(lambda: server.under_way == 0)
    assert (
        settled and len(finished) == 3 and len(server.requests) <= requests[0] + 2
    )  # at most what two threads had begun


def test_answers_given_before_an_error_still_end_their_episodes():
    """The server refuses one conversation while the others' environments are at their last step."""
    with serving(refused="Go to door 7.") as server:
        agent, finished = ApiAgent(client_of(server, timeout=60.0), ChatSettings(find_prompt("plain"))), []
        slow = CORRIDOR.replace("Corridor", "Sleepy")
        with (
            WorkerPool(slow, {"max_turns": 1, "seconds": 1.0}, workers=3) as pool,
            rejects(ApiError, "such key"),
        ):
            jobs = group_jobs(["door-01", "door-07", "door-02"], 1, 0)
            rollout(agent, pool, jobs, concurrency=3, deterministic=False, on_finish=finished.append)
    assert {episode.task for episode in finished} == {"door-01", "door-02"}
    assert agent.client.spent.completion == 2 * 2


def test_no_request_follows_an_interruption():
    def interrupt(episode):
        raise KeyboardInterrupt

    with serving(delay=0.02) as server:
        agent = ApiAgent(client_of(server), ChatSettings(find_prompt("plain")), concurrency=1)
        with WorkerPool(CORRIDOR, {"max_turns": 20}, workers=0) as pool, pytest.raises(KeyboardInterrupt):
            jobs = group_jobs(["door-11", "door-00", "door-01", "door-02"], 1, 0)
            rollout(agent, pool, jobs, concurrency=4, deterministic=False, on_finish=interrupt)
        requests = len(server.requests)
        assert wait_for(lambda: server.under_way == 0) and len(server.requests) <= requests + 1
        states = [EpisodeState(0, Episode("t"), "You stand at 1. Go to door 2.")]
        assert agent.decide(states)[0].action == "right"  # nothing of the interrupted rollout is left in its way


@pytest.mark.parametrize("end", ["stop", "length"])
def test_an_answer_at_the_limit_is_cut(end):
    with serving(end=end, style="<think>{}") as server:
        _, (episode,) = play(server, count=1, chat=ChatSettings(find_prompt("tags")))
    assert {(turn.cut, turn.invalid) for turn in episode.turns} == {
        (end == "length", "cut off" if end == "length" else "not parsed")
    }


def wait_for(condition, seconds=30.0):
    """Whether ``condition`` comes true before long, and stays so for a moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            time.sleep(0.2)
            if condition():
                return True
        time.sleep(0.01)
    return False


def test_a_limit_on_the_cost_is_kept():
    prices = {"input_price": 1e6, "cached_price": 5e5, "output_price": 2e6}
    with serving() as server:
        client = client_of(server, limit_cost=20.0, **prices)
        assert client.submit(ASK, 0.0, 5).result().usage.cost == 6 + 4 * 0.5 + 2 * 2
        client.submit(ASK, 0.0, 5).result()
        with rejects(ApiError, "$24.00", "$20.00", key="limit_cost"):
            client.submit(ASK, 0.0, 5).result()
    with rejects(InvalidArgument, key="limit_cost"):
        ApiSettings("m", limit_cost=1.0)


def test_openai_gets_the_token_limit_by_its_newer_name(monkeypatch):
    with serving() as server:
        monkeypatch.setattr(api_settings, "OPENAI", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        for client in (ApiClient(ApiSettings("m")), client_of(server)):
            client.submit(ASK, 0.0, 5).result()
    limits = [{name: request[name] for name in request if name.startswith("max_")} for request in server.requests]
    assert limits == [{"max_completion_tokens": 5}, {"max_tokens": 5}]


def test_tokens_are_estimated_where_the_server_does_not_count():
    with serving(usage=False) as server:
        usage = client_of(server).submit(ASK, 0.0, 5).result().usage
    assert (usage.prompt, usage.completion) == (len(ASK[0]["content"]) // 4, 1)


def test_retry_after_sets_the_pause(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 60.0)
    with serving(faults=["limit"], rate=1.0) as server, rejects(ApiError, "3 tries", "slow down"):
        client_of(server, attempts=3).submit(ASK, 0.0, 5).result()
    assert len(server.requests) == 3


def test_a_server_on_this_machine_is_asked_past_the_proxy(dead_proxy):
    with serving() as server:
        client_of(server, attempts=1).submit(ASK, 0.0, 4).result()


def test_turns_are_returned_in_the_order_of_the_states():
    with serving() as server:
        agent = ApiAgent(client_of(server), ChatSettings(find_prompt("plain")))
        states = [EpisodeState(slot, Episode("t"), f"You stand at {slot}. Go to door 2.") for slot in (1, 5, 0)]
        assert [turn.action for turn in agent.decide(states)] == ["right", "left", "right"]


@pytest.mark.parametrize("prompt", ["plain", "tools"])
def test_an_answer_that_is_withheld_is_a_turn_of_its_own_kind(prompt):
    with serving(end="content_filter", style="{}") as server:
        _, (episode,) = play(server, count=1, chat=ChatSettings(find_prompt(prompt)))
    assert {turn.invalid for turn in episode.turns} == {"withheld"} and {turn.action for turn in episode.turns} == {""}
    assert episode_from_record(episode_record(episode)).turns[0].invalid == "withheld"
    panel = EvaluatedTaskSet(CORRIDOR, "test", "0" * 16, 1)
    result = EvalResult.from_episodes([episode], panel, "openai:m", 0.4)
    (attempt,) = result.every_try
    assert (attempt.invalid, attempt.withheld) == (0, attempt.turns) and attempt.turns == len(server.requests)
    assert f"{attempt.turns} refused or filtered by the server" in " ".join(result_lines(result, 200))
    assert EvalResult.from_json(result.to_json()) == result and result.summary()["withheld"] == attempt.turns


def test_only_results_with_withheld_answers_tell_of_them():
    with serving() as server:
        _, episodes = play(server, count=1)
    result = EvalResult.from_episodes(episodes, EvaluatedTaskSet(CORRIDOR, "test", "0" * 16, 1), "openai:m", 0.4)
    assert "withheld" not in result.to_json() and "server" not in " ".join(result_lines(result, 200))


def test_a_client_starts_its_thread_with_the_first_request():
    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "chat server"]

    before = len(threads())
    with serving() as server:
        client = client_of(server)
        assert len(threads()) == before
        client.submit(ASK, 1.0, 4).result()
        assert len(threads()) == before + 1
        client.close()
    unused = client_of(server)
    unused.close()
    with rejects(ApiError, "closed"):
        unused.submit(ASK, 1.0, 4)
