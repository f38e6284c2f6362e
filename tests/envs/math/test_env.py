"""gagpo/Math-v0: turns, attempts, feedback, rewards, states, experts, misuse."""

import json
import re
import subprocess
import sys

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import gagpo.envs  # noqa: F401 (registers the environments)
from gagpo.envs.math.env import MathEnv
from gagpo.envs.math.families import FAMILIES, LEVELS
from gagpo.envs.math.problems import SPLITS, by_id
from gagpo.envs.tasks import UnknownTask
from tests.rejections import rejects

TASK = "arithmetic-2-train-000003"  # Compute 16 - 72.


def started(**settings_):
    env = MathEnv(**settings_)
    observation, info = env.reset(options={"task": TASK})
    assert observation == "Compute 16 - 72." and by_id(TASK).answer == "-56"
    return env, info


def play(env, *actions):
    """The last step's (observation, reward, terminated, truncated, info)."""
    for action in actions:
        result = env.step(action)
    return result


def test_registered_and_accepted_by_gymnasium():
    env = gymnasium.make("gagpo/Math-v0", families="words", levels=3)
    observation, info = env.reset(seed=0)
    assert info["task_type"] == "words" and observation == by_id(info["task"]).text
    check_env(MathEnv(), skip_render_check=True)


def test_importing_it_loads_neither_torch_nor_sympy_nor_datasets():
    heavy = "{'torch', 'sympy', 'datasets', 'pyarrow'}"
    code = f"import sys, gagpo.envs.math.env, gagpo.envs.math.sources; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_a_right_answer_ends_the_episode():
    env, _ = started()
    observation, reward, terminated, truncated, info = env.step(r"It is \boxed{-56}.")
    assert (observation, reward, terminated, truncated) == ("Right.", 1.0, True, False)
    assert info["success"] and info["valid"] and info["verdict"] == "match" and info["answer"] == "-56"


def test_the_calculator_answers_and_the_episode_goes_on():
    env, _ = started()
    observation, reward, terminated, _, info = env.step("I compute <calc>16 - 72</calc>")
    assert (observation, reward, terminated) == ("Calculator: -56", 0.0, False)
    assert info["valid"] and info["calls"] == 1 and info["attempts_left"] == 3


@pytest.mark.parametrize("expression", ["1/0", "", "16 minus 72", "9^9^9^9"])
def test_a_failed_call_is_explained_and_invalid(expression):
    env, first = started()
    observation, reward, terminated, _, info = env.step(f"<calc>{expression}</calc>")
    assert observation.startswith("Calculator: ") and (reward, terminated) == (0.0, False)
    assert not info["valid"] and info["state"] == first["state"]


def test_the_later_of_call_and_answer_counts_and_the_first_of_several_calls():
    env, _ = started()
    assert env.step(r"\boxed{1} no: <calc>2 + 2</calc>")[0] == "Calculator: 4"
    assert env.step("<calc>2 + 3</calc> is 5, so <calc>5 + 5</calc>")[0] == "Calculator: 5"
    assert env.step(r"<calc>2 + 3</calc> \boxed{-56}")[0] == "Right."


@pytest.mark.parametrize(
    ("response", "answered"),
    [
        ("<calc>2 + 2", "No calculator call"),
        ("2 + 2</calc>", "No calculator call"),
        ("</calc><calc>2 + 2", "No calculator call"),
        ("</calc><calc>2 + 2</calc>", "Calculator: 4"),
        ("<calc>9<calc>2 + 2</calc>", "Calculator: 4"),
        ("<calc>" * 200_000, "No calculator call"),
        ("<calc>" * 200_000 + "2 + 2</calc>", "Calculator: 4"),
        ("<calc>" + "1" * 1_000_000 + "</calc>", "Calculator: the expression is longer"),
    ],
)
def test_calls_that_do_not_close(response, answered):
    env, _ = started()
    assert env.step(response)[0].startswith(answered)


@pytest.mark.parametrize("thought", [r"<think>\boxed{-56} <calc>1 + 1</calc></think>", r"<think>It is \boxed{-56}."])
def test_thoughts_are_neither_calls_nor_answers(thought):
    env, _ = started()
    assert env.step(thought)[0] == "No calculator call and no answer found."
    assert env.step(r"<think>\boxed{1}</think> \boxed{-56}")[0] == "Right."


def test_the_instructions_fit_the_settings():
    full = MathEnv(attempts=4).instructions
    assert "<calc>" in full and r"\boxed{}" in full and "4 attempts" in full and "gcd" in full
    single = MathEnv(attempts=1, tools=False).instructions
    assert "calc" not in single and "attempts" not in single and r"\boxed{}" in single
    example = full.split("<calc>")[1].split("</calc>")[0]
    assert started()[0].step(f"<calc>{example}</calc>")[0] == "Calculator: 35/2"


def test_attempts_run_out():
    env, _ = started(attempts=2)
    observation, reward, terminated, _, info = env.step(r"\boxed{3}")
    assert (observation, reward, terminated) == ("Wrong. Attempts left: 1.", 0.0, False) and info["attempts_left"] == 1
    observation, reward, terminated, _, info = env.step(r"\boxed{4}")
    assert (observation, reward, terminated, info["success"]) == ("Wrong.", 0.0, True, False)
    env.reset(options={"task": TASK})
    assert [play(env, rf"\boxed{{{answer}}}")[1] for answer in (1, -56)] == [0.0, 1.0]


def test_a_turn_with_neither_call_nor_answer_costs_only_the_turn():
    env, first = started()
    observation, reward, terminated, _, info = env.step("Let me think about 16 and 72.")
    assert (observation, reward, terminated) == ("No calculator call and no answer found.", 0.0, False)
    assert not info["valid"] and info["attempts_left"] == 3 and info["state"] == first["state"]


def test_single_turn_takes_one_response():
    env, _ = started(attempts=1, tools=False)
    assert env.max_turns == 1
    _, reward, terminated, truncated, info = env.step("I do not know")
    assert (reward, terminated, truncated, info["valid"], info["verdict"]) == (0.0, True, False, False, "no_answer")
    env.reset(options={"task": TASK})
    assert env.step("<calc>16 - 72</calc>")[2]  # no tool: a response without an answer
    env.reset(options={"task": TASK})
    assert env.step("16 - 72 = -56. The answer is -56.")[1] == 1.0


def test_states_are_canonical():
    def state(*actions):
        env, info = started()
        return play(env, *actions)[4]["state"] if actions else info["state"]

    assert state() == state("hm") == state("<calc>1/0</calc>")
    computed = state("<calc>16 - 72</calc>")
    assert computed == state("So: <calc>-56</calc>") == state("<calc>8 * -7</calc>", "<calc>-56</calc>")
    assert state("<calc>1</calc>", "<calc>2</calc>") == state("<calc>2</calc>", "<calc>1</calc>")
    assert state(r"\boxed{0.5}") == state(r"\boxed{\frac{1}{2}}") == state("The answer is 1/2.")
    assert state(r"\boxed{1}", "<calc>2</calc>") == state("<calc>2</calc>", r"\boxed{1}")
    different = [
        state(),
        state("<calc>1</calc>"),
        state("<calc>2</calc>"),
        state(r"\boxed{1}"),
        state(r"\boxed{2}"),
        state(r"\boxed{1}", r"\boxed{1}"),  # the same mistake twice leaves fewer attempts
    ]
    assert len(set(different)) == len(different)
    other = MathEnv()
    assert other.reset(options={"task": "arithmetic-2-train-000004"})[1]["state"] != state()


@pytest.mark.parametrize("settings_", [{}, {"attempts": 1, "tools": False}, {"max_turns": 2}, {"max_turns": 1}])
def test_the_expert_solves_every_family_and_level(settings_):
    env = MathEnv(expert=True, levels=LEVELS, **settings_)
    for family in FAMILIES:
        for level in LEVELS:
            for split in SPLITS:
                _, info = env.reset(options={"task": f"{family}-{level}-{split}-000005"})
                over = False
                while not over:
                    _, reward, terminated, truncated, info = env.step(info["expert_action"])
                    assert info["valid"]
                    over = terminated or truncated
                assert info["success"] and reward == 1.0


def test_the_expert_recovers_from_what_others_did():
    env, _ = started(expert=True, families="fractions", levels=4)
    play(env, r"\boxed{1}", "hm", "<calc>1/0</calc>")
    info = play(env, "<calc>5</calc>")[4]
    while not info["success"]:
        info = play(env, info["expert_action"])[4]


@pytest.mark.parametrize("settings_", [{}, {"attempts": 1, "tools": False}])
def test_an_imperfect_solver_answers_after_the_first_step_and_then_gives_up(settings_):
    env = MathEnv(expert="imperfect", families="words", levels=[1, 2], **settings_)
    outcomes = set()
    for index in range(20):
        _, info = env.reset(options={"task": f"words-2-train-{index:06d}"})
        while info["expert_action"] is not None:
            *_, info = env.step(info["expert_action"])
        assert info["success"] == (env.problem.steps[0][1] == env.problem.answer)
        outcomes.add(info["success"])
    assert False in outcomes


def test_without_the_calculator_the_expert_shows_its_work():
    env = MathEnv(expert=True, tools=False)
    _, info = env.reset(options={"task": "equations-2-train-000003"})
    assert info["expert_action"] == r"-112 + 16 = -96; (-96) / 8 = -12. \boxed{-12}"


@given(st.lists(st.text(max_size=80) | st.sampled_from(["<calc>", "</calc>", r"\boxed{", "<calc>" * 500]), max_size=4))
@settings(deadline=None, max_examples=75)
def test_garbage_is_never_rewarded(actions):
    env, _ = started(attempts=1)
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        assert reward == 0.0 and not info["success"]
        json.dumps(info)
        if terminated or truncated:
            break


def test_repeating_the_question_is_not_an_answer():
    env = MathEnv(levels=LEVELS, attempts=1)
    for family in ("arithmetic", "fractions"):
        for index in range(30):
            text, _ = env.reset(options={"task": f"{family}-2-train-{index:06d}"})
            expression = re.sub(r"^(What is|Compute|Find the value of) |[?.]$", "", text)
            assert not env.step(rf"\boxed{{{expression}}}")[4]["success"], text


def test_a_bold_letter_is_an_attempt_at_a_question_with_choices(tmp_path):
    path = tmp_path / "quiz.jsonl"
    path.write_text(json.dumps({"problem": "Which? (A) 1 (B) 2", "answer": "B"}) + "\n")
    env = MathEnv(data={"train": str(path)})
    env.reset(seed=0)
    *_, info = env.step("I think **B**")
    assert info["success"] and info["answer"] == "B"


def test_same_seed_same_task_in_another_process():
    code = (
        "from gagpo.envs.math.env import MathEnv; env = MathEnv(); "
        "print([env.reset(seed=7)[1]['task'], env.reset()[1]['task'], env.reset()[1]['state']])"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    env = MathEnv()
    here = [env.reset(seed=7)[1]["task"], env.reset()[1]["task"], env.reset()[1]["state"]]
    assert other.stdout == f"{here}\n"


def test_splits_share_nothing():
    env = MathEnv(levels=LEVELS)
    texts = {split: {by_id(task.id).text for task in env.tasks(split)} for split in SPLITS}
    assert not texts["train"] & texts["test"] and not texts["train"] & texts["validation"]
    assert len({env.tasks(split).hash for split in SPLITS}) == 3


def test_any_task_can_be_named_and_an_unknown_one_is_explained():
    env = MathEnv(families="arithmetic", levels=1)
    assert env.reset(options={"task": "words-4-test-000123"})[1]["split"] == "test"
    with rejects(UnknownTask, advice="arithmetic-1-train"):
        env.reset(options={"task": "arithmetic-1-train-12"})


def test_problems_from_a_file(tmp_path):
    path = tmp_path / "own.jsonl"
    rows = [{"problem": "Factor x^2 - 1.", "answer": "(x-1)(x+1)", "type": "Algebra"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = MathEnv(split="test", data={"test": str(path)}, expert=True)
    observation, info = env.reset(seed=0)
    assert (observation, info["task"], info["task_type"]) == ("Factor x^2 - 1.", "own-test-000001", "algebra")
    assert info["expert_action"] == r"\boxed{(x-1)(x+1)}"
    assert env.step(r"\boxed{x^2 + 1}")[0] == "Wrong. Attempts left: 2."
    _, reward, terminated, _, info = env.step(r"\boxed{(1 + x)(x - 1)}")
    assert (reward, terminated, info["verdict"]) == (1.0, True, "match")
    env.close()
    env.close()
    with pytest.raises(UnknownTask):
        env.reset(options={"task": TASK})


@pytest.mark.parametrize(
    ("settings_", "key", "names"),
    [
        ({"attempts": 0}, "attempts", ("1",)),
        ({"split": "dev"}, None, ("'dev'",)),
        ({"families": "geometry"}, None, ("geometry",)),
        ({"levels": 9}, None, ("level 9",)),
        ({"max_turns": 0}, "max_turns", ("1",)),
        ({"size": -1}, "size", ("test_size",)),
    ],
)
def test_bad_arguments_are_rejected(settings_, key, names):
    with rejects(ValueError, *names, key=key):
        MathEnv(**settings_)
