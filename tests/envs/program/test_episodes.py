"""A program's requests are turns, and its end is the end of the episode."""

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.gateway.messages import Completion
from gagpo.envs.gateway.stored_episodes import COUNTS
from tests.envs.program.programs import play, running, wait
from tests.rejections import rejects

TWICE = """
brief = {"role": "system", "content": "Be brief."}
first = chat(brief, user("one"))
second = chat(brief, user("one"), answer(first), user("two"))
print("done")
print(json.dumps({"reward": 0.5, "success": second == "right" and os.environ["GAGPO_SEED"] == "7"}))
"""


def test_requests_are_turns_and_the_last_line_is_the_reward(tmp_path):
    with running(tmp_path, TWICE) as pool:
        first, second, end = play(pool, "left", "right")
        assert (first.kind, first.observation, first.info["state"]) == ("reset", "Be brief.\n\none", "one")
        assert first.info["request"]["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (second.kind, second.observation, second.reward, second.terminated) == ("step", "two", 0.0, False)
        assert second.info["request"]["extends"] == 0
        assert second.info["request"]["messages"] == [{"role": "user", "content": "two"}]
        assert (end.terminated, end.reward, end.info["success"], end.info["rewritten"]) == (True, 0.5, True, 0)
        assert all(end.info[count] == 0 for count in COUNTS)  # by which a stored episode is known
        assert "success_assumed" not in end.info, "the program reports whether it succeeds"
        assert not play(pool, "left", "wrong")[-1].info["success"]


def test_rewards_are_posted_during_an_episode(tmp_path):
    source = """
chat(user("one"))
post("/reward", {"reward": 0.25})
chat(user("two"), **{"max_tokens": 3})
post("/reward", {"reward": 1})
"""
    with running(tmp_path, source) as pool:
        first, second, end = play(pool, "yes")
        assert [first.reward, second.reward, end.reward] == [0.0, 0.25, 1.0]
        assert end.info["success"] and second.info["request"]["max_tokens"] == 3
        assert end.info["success_assumed"], "the rewards are graded, and no success is reported"
        assert second.info["request"]["extends"] is None


def test_a_python_agent_gets_a_client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_agent.py").write_text("""
async def play(task, client):
    said = await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": task["id"]}], extra_headers={"X-State": "s1"}
    )
    return {"reward": float(said.choices[0].message.content), "success": False}

def sooner(task, transcript):
    return float(len(transcript)) if transcript[0]["answer"]["content"] == "2" else -1.0
""")
    with running(tmp_path, "", command="", agent="own_agent:play") as pool:
        first, end = play(pool, "0.75")
        assert (first.observation, first.info["state"]) == ("a", "s1")
        assert (end.reward, end.info["success"]) == (0.75, False)
    with running(tmp_path, "", command="", agent="own_agent:play", reward="own_agent:sooner") as pool:
        assert play(pool, "2")[-1].reward == 1.0 and play(pool, "3")[-1].reward == -1.0
    with rejects(InvalidArgument, "no module", where="gagpo/Program-v0"):
        running(tmp_path, "", command="", agent="missing:play").__enter__()


def test_requests_at_the_same_time_are_turns_one_after_the_other(tmp_path):
    source = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as threads:
    said = list(threads.map(lambda i: chat(user("say %d" % i)), range(8)))
print(json.dumps({"reward": float(said == ["said %d" % i for i in range(8)])}))
"""
    with running(tmp_path, source) as pool:
        pool.reset(0, "a", 1)
        event = wait(pool)
        for _ in range(8):
            pool.step(0, event.observation.replace("say", "said"))
            event = wait(pool)
        assert event.terminated and event.reward == 1.0


def test_several_choices_are_several_turns(tmp_path):
    source = """
said = post("/v1/chat/completions", {"messages": [user("one")], "n": 3})
print(json.dumps({"reward": float([one["message"]["content"] for one in said["choices"]] == ["a", "b", "c"])}))
"""
    with running(tmp_path, source) as pool:
        *turns, end = play(pool, "a", "b", "c")
        assert [event.observation for event in turns] == ["one"] * 3 and end.reward == 1.0


def test_an_altered_answer_is_counted_and_an_earlier_one_keeps_its_tokens(tmp_path):
    source = """
one = chat(user("one"))
two = chat(user("one"), answer(one), user("two"))
chat(user("one"), answer(one), user("two"), answer(two + "!"), user("three"))
chat({"role": "system", "content": "Sum up."}, user("one"), answer(one), user("four"))
print('{"reward": 0}')
"""
    with running(tmp_path, source) as pool:
        *_, third, fourth, end = play(pool, "a", "b", "c")
        assert third.info["request"]["extends"] == 0 and end.info["rewritten"] == 1
        messages = {"role": "assistant", "content": "b!"}
        assert third.info["request"]["messages"] == [
            {"role": "user", "content": "two"},
            messages,
            {"role": "user", "content": "three"},
        ]
        assert fourth.info["request"]["extends"] is None and fourth.info["request"]["messages"][2]["turn"] == 0


@pytest.mark.parametrize("limit", [{"max_turns": 3}, {"tokens": 30}])
def test_a_limit_truncates_the_episode_and_keeps_its_rewards(tmp_path, limit):
    with running(tmp_path, "while True:\n    chat(user('on'))\n    post('/reward', {'reward': 1})\n", **limit) as pool:
        events = play(pool, Completion("ok", usage=(5, 10)).action)
        assert len(events) == 4 and events[-1].truncated and not events[-1].info["success"]
        assert sum(event.reward for event in events) == 3.0


def test_the_programs_own_time_is_limited(tmp_path):
    with running(tmp_path, "chat(user('on'))\ntime.sleep(1000)\n", timeout=1.0) as pool:
        assert play(pool, "ok")[-1].truncated


def test_the_bundled_variables_reach_the_program_and_its_children(tmp_path):
    source = """
import subprocess
line = 'curl -sS $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" -d @-'
body = json.dumps({"messages": [user("hello")]})
said = subprocess.run(["sh", "-c", line], input=body, capture_output=True, text=True, check=True).stdout
print(json.dumps({"reward": float(json.loads(said)["choices"][0]["message"]["content"] == "hi")}))
"""
    with running(tmp_path, source) as pool:
        assert play(pool, "hi")[-1].reward == 1.0


def test_settings_that_cannot_work_are_refused_before_anything_starts(tmp_path):
    for wrong, name in (
        ({"command": ""}, "give either"),
        ({"agent": "a:b"}, "give either"),
        ({"command": "no-such-program-here"}, "no program 'no-such-program-here'"),
        ({"command": "python 'program.py"}, "No closing quotation"),
        ({"command": ["python", 3]}, "quote it"),
        ({"command": ["python", "a\0b"]}, "a word of text"),
        ({"command": ["python", "\U0001f600" * 35_000]}, "131072 bytes"),
        ({"reward": "module"}, "module:function, got 'module'"),
        ({"reward": 5}, "module:function, got 5"),
        ({"command": "", "agent": 5}, "module:function, got 5"),
        ({"environment": "HOME,PATH=1"}, "got 'PATH=1'"),
        ({"memory": 0}, "memory must be above 0"),
        ({"tasks": "missing.jsonl"}, "cannot be read"),
    ):
        with rejects(InvalidArgument, name):
            running(tmp_path, "", **wrong).__enter__()
