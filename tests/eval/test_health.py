"""Health: each rule speaks when its number is bad, in words that say what to do, and is silent without numbers."""

import random

import pytest

from gagpo.eval.health import RULES, answer_task_information, health, health_line, sentences

GOOD = {
    "zero_advantage_groups": 0.2,
    "repeated_states": 0.8,
    "clip_fraction": 0.01,
    "mismatch_kl": 2e-4,
    "entropy": 0.5,
    "invalid_rate": 0.05,
    "truncated_responses": 0.0,
    "answer_task_information": 0.9,
    "failed_episodes": 0.0,
}


def rows(count=12, **changes):
    return [{**GOOD, "iteration": i, "success_rate": 0.2 + 0.03 * i, **changes} for i in range(1, count + 1)]


def test_a_healthy_run_has_nothing_to_act_on():
    assert health_line(rows()) == ""
    assert {item.level for item in health(rows())} == {"good"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"zero_advantage_groups": 0.9}, "90 % of the groups have no advantage"),
        ({"repeated_states": 0.1}, "coarser state key"),
        ({"clip_fraction": 0.5}, "learning rate is too high"),
        ({"mismatch_kl": 0.09}, "not the same policy"),
        ({"entropy": 1e-4}, "all episodes become the same"),
        ({"invalid_rate": 0.7, "invalid_refused": 0.7, "success_rate": 0.0}, "does not use its commands"),
        ({"truncated_responses": 0.6}, "raise rollout.max_tokens"),
        ({"answer_task_information": 0.01}, "no longer depend"),
    ],
)
def test_a_bad_number_is_named_first_and_says_what_to_do(changes, said):
    results = health(rows(**changes))
    assert results[0].level == "bad" and said in results[0].sentence and said in health_line(rows(**changes))
    assert sentences(rows(**changes))[0].startswith("Act: ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("invalid_unparsed", "without an action in the response: the prompt reads another format"),
        ("invalid_cut", "cut off at the token limit: raise rollout.max_tokens or check that the vocabulary"),
        ("invalid_refused", "refused by the environment"),
    ],
)
def test_invalid_actions_are_told_by_the_kind_that_leads(name, said):
    type_names = {"invalid_unparsed": 0.1, "invalid_cut": 0.1, "invalid_refused": 0.1, name: 0.4}
    lost = rows(invalid_rate=0.6, success_rate=0.0, **type_names)
    assert f"60 % of the actions are invalid, most {said}" in health_line(lost)
    few = rows(invalid_rate=0.3, success_rate=0.0, **{key: share / 2 for key, share in type_names.items()})
    assert f"most {said}" in health_line(few)
    assert health_line(rows(invalid_rate=0.1, **{key: share / 6 for key, share in type_names.items()})) == ""


def test_a_model_that_wins_is_not_said_to_lack_the_commands():
    refused = {"invalid_rate": 0.35, "invalid_refused": 0.35, "invalid_unparsed": 0.0, "invalid_cut": 0.0}
    assert "does not use its commands" in health_line(rows(**refused, success_rate=0.0))
    messages = health_line(rows(**refused, success_rate=0.2))
    assert "does not use" not in messages and "they cost turns" in messages
    often = rows(**{**refused, "invalid_rate": 0.6, "invalid_refused": 0.6}, success_rate=0.8)
    assert "bad" not in {item.level for item in health(often)}


def test_where_episodes_fail_no_easier_tasks_are_advised():
    lost = {"zero_advantage_groups": 0.9, "failed_episodes": 30.0}
    assert "change the difficulty" in health_line(rows(zero_advantage_groups=0.9))
    assert health(rows(**lost))[0].sentence.endswith("run `gagpo check` on it before anything else")
    assert not any("difficulty" in sentence for sentence in sentences(rows(**lost)))


def test_a_rule_is_about_the_last_iterations_alone():
    assert health_line(rows(invalid_rate=0.9)[:7] + rows()[7:]) == ""
    assert "getting worse" in health_line(rows(6) + [{**GOOD, "success_rate": 0.01}] * 6)


def test_missing_and_nonfinite_numbers_say_nothing():
    assert health([]) == [] and health_line([]) == ""
    assert health([{"iteration": 1.0}]) == []
    assert all(rule([{key: float("nan") for key in GOOD}] * 12) is None for rule in RULES)


def test_information_of_answers_about_their_tasks():
    """Against the joint entropy by hand, for independent answers, and for one answer to everything."""
    pairs = [("a", "x")] * 30 + [("a", "y")] * 10 + [("b", "x")] * 10 + [("b", "y")] * 30
    assert answer_task_information(pairs) == pytest.approx(0.1308 - 1 / 160, abs=1e-4)
    rng = random.Random(0)
    drawn = [(str(rng.randrange(16)), str(rng.randrange(10))) for _ in range(1500)]
    assert answer_task_information(drawn) < 0.02
    assert answer_task_information([("a", "x"), ("b", "x")]) == 0 == answer_task_information([])


def test_an_older_sampler_is_another_policy_by_design():
    stale = rows(mismatch_kl=2.3e-2, staleness_mean=1.0, approx_kl=1.5e-2)
    assert health_line(stale) == "" and any("1.0 updates older" in item.sentence for item in health(stale))
    assert "not the same policy" in health_line(rows(mismatch_kl=2.3e-2, staleness_mean=0.0, approx_kl=1.5e-2))
    assert "not the same policy" in health_line(rows(mismatch_kl=0.3, staleness_mean=1.0, approx_kl=1.5e-2))
    assert "not the same policy" in health_line(rows(mismatch_kl=2.3e-2, staleness_mean=1.0, approx_kl=1e-5))
