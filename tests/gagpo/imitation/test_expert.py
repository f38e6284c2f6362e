"""The expert's actions become rows with a cross-entropy loss; a policy learns from them without reward."""

import copy
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gagpo.agents.agent import ChatFormat
from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.prompts import find_prompt
from gagpo.algorithms import load
from gagpo.credit import Credit
from gagpo.envs.testing import CorridorEnv
from gagpo.envs.tools import ToolCall
from gagpo.envs.tools.storeroom import TOOLS
from gagpo.imitation.imitation import expert_metrics, expert_rows
from gagpo.learning.batch import Supervision, build_rows
from gagpo.learning.update import Updater
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.register import REGISTER
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError
from gagpo.settings import load as load_run
from gagpo.training.trainer import Trainer, train

ALONE = {"preset": "gagpo", "credit_weight": 0.0, "kl": {"coefficient": 0.0}, "expert": {}}
QUICK = {"splits": [], "before": False}


class Untaught(CorridorEnv):
    """A corridor that nobody knows the way through."""

    expert_action = CorridorEnv.__mro__[1].expert_action


gymnasium.register("gagpo-test/Untaught-v0", entry_point=Untaught)


def played(context, *experts, group=0):
    made = Episode("t", group=group)
    for expert in experts:
        turn = Turn("", "right", "right", expert=expert)
        turn.prompt_ids = context.prompt(made.turns, f"You stand at {len(made.turns)}.")
        turn.response_ids = context.response("right")
        turn.logprobs = np.full(len(turn.response_ids), -0.5, np.float32)
        made.turns.append(turn)
    return made


@pytest.mark.parametrize("prompt", ["plain", "tags"])
def test_a_row_is_what_was_read_and_the_experts_action_in_the_learners_words(tiny, prompt):
    context = Context(tiny[1], find_prompt(prompt))
    episodes = [played(context, "left", None, "", group=5), played(context, "right", "go " * 200, "\ud800", group=3)]
    rows = expert_rows(episodes, {"": ChatFormat(context, 40)})
    assert [(row.turn_K[0], row.group) for row in rows] == [(0, 1), (3, 0)]
    assert np.concatenate([row.token_K for row in rows]).tolist() == list(range(sum(len(r.token_K) for r in rows)))
    for row, (one, number), action in zip(rows, ((0, 0), (1, 0)), ("left", "right"), strict=True):
        prompt_ids = episodes[one].turns[number].prompt_ids
        assert np.array_equal(row.ids[: len(prompt_ids)], prompt_ids)
        words = tiny[1].decode(row.ids[row.place_K], skip_special_tokens=True)
        assert words == (action if prompt == "plain" else f"<action>{action}</action>")
        assert row.ids[-1] == tiny[1].eos_token_id
    assert expert_metrics(episodes, rows) == {"expert_turns": 2 / 6, "expert_agreement": 1 / 4}


def test_the_gradient_is_that_of_cross_entropy(tiny):
    """Against torch's own cross-entropy on the whole model, row by row; a step of plain descent shows the gradient."""
    model, tokenizer = tiny
    context = Context(tokenizer, find_prompt("plain"))
    episodes = [played(context, "left", "right"), played(context, "left", group=1)]
    rows = build_rows(episodes)
    taught = Supervision(expert_rows(episodes, {"": ChatFormat(context, 40)}), 0.7)
    tokens = sum(len(row.token_K) for row in rows)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    total = torch.zeros(())
    for row in taught.rows:
        logits = plain(torch.as_tensor(row.ids[None].astype(np.int64))).logits[0]
        total = total + F.cross_entropy(
            logits[row.place_K - 1], torch.as_tensor(row.ids[row.place_K]).long(), reduction="sum"
        )
    mean = total / sum(len(row.token_K) for row in taught.rows)
    gradient = dict(zip(before, torch.autograd.grad(0.7 * mean, list(plain.parameters())), strict=True))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = load("gagpo", {"kl": {"coefficient": 0.0}})
    updater = Updater(model, optimizer, algorithm, max_grad_norm=1e9)
    credit = Credit(np.zeros(3), np.asarray([len(t.response_ids) for e in episodes for t in e.turns]))
    assert credit.tokens == tokens
    learned = updater.update(rows, credit, np.random.default_rng(0), supervision=taught)
    assert learned["expert_loss"] == pytest.approx(mean.item(), rel=1e-5)
    assert learned["loss"] == pytest.approx(0.7 * mean.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        moved = (before[name] - parameter.detach()) / 0.1
        assert moved.numpy() == pytest.approx(gradient[name].numpy(), rel=1e-3, abs=1e-5), name


def trained(config, place):
    folder = RunFolder.create(place, load_run(config))
    train(folder, quiet=True)
    return folder.metrics(), checkpoints.latest(place / "checkpoints").model


@pytest.mark.slow
def test_a_policy_learns_from_the_expert_alone_and_then_from_its_own_successes(corridor, tmp_path):
    config = corridor(algorithm=ALONE, training={"iterations": 7, "save_every": 7}, evaluation=QUICK)
    rows, model = trained(config, tmp_path / "expert")
    assert rows[0]["success_rate"] < 0.1 and np.mean([row["success_rate"] for row in rows[-3:]]) > 0.15
    assert rows[-1]["expert_loss"] < 0.5 * rows[0]["expert_loss"]
    assert rows[-1]["expert_agreement"] > rows[0]["expert_agreement"] + 0.3
    assert all(name in REGISTER for name in rows[0])

    sampled = {"iterations": 10, "save_every": 10}
    rate = {"learning_rate": 1e-3}
    config = corridor(algorithm="rejection_sampling", model=model, training=sampled, optimizer=rate, evaluation=QUICK)
    own, _ = trained(config, tmp_path / "own")
    success = [row["success_rate"] for row in own]
    assert np.mean(success[-5:]) > np.mean(success[:2]) + 0.1
    assert max(row["train_tokens_read"] for row in own) < 1  # failures are not read


def test_an_environment_without_an_expert_is_refused_before_anything_is_made(corridor, tmp_path):
    config = corridor(algorithm=ALONE, environment={"id": "gagpo-test/Untaught-v0", "kwargs": {}})
    folder = RunFolder.new(tmp_path / "run", load_run(config))
    with pytest.raises(SettingsError, match=r"Untaught-v0 has none: implement expert_action"):
        Trainer(folder, quiet=True)
    assert not folder.path.exists()


MIXED = [
    {"name": "long", "id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 16}},
    {
        "name": "tagged",
        "id": "gagpo.envs.testing:gagpo-test/Corridor-v0",
        "context": {"prompt": "tags"},
        "max_tokens": 24,
    },
]


def mixed(corridor, *more, **changes):
    usual = {"environment": None, "environments": [*MIXED, *more], "algorithm": ALONE, "evaluation": QUICK}
    rollout = {"tasks": 4, "samples": 2}
    return corridor(**{**usual, "rollout": rollout, "training": {"iterations": 1}, **changes})


def test_the_experts_of_several_envs_teach_each_in_its_own_words(tiny):
    """Lines in the corridor, tool calls in the storeroom, several at once, each no longer than may be said there."""
    both = "\n".join(ToolCall("price", {"item": thing}).text for thing in ("lamp", "rope"))
    envs = {
        "long": ChatFormat(Context(tiny[1], find_prompt("plain")), 8),
        "room": ChatFormat(Context(tiny[1], find_prompt("tools"), tools=TOOLS), 200),
        "curt": ChatFormat(Context(tiny[1], find_prompt("tools"), tools=TOOLS), 20),
    }
    episodes = [replace(played(envs["long"].context, "left"), environment="long")]
    episodes += [replace(played(envs[name].context, both, group=1), environment=name) for name in ("room", "curt")]
    rows = expert_rows(episodes, envs)
    assert [row.turn_K[0] for row in rows] == [0, 1]
    read = [envs[name].context.turn(row.ids[row.place_K]) for name, row in zip(("long", "room"), rows, strict=True)]
    assert (read[0].action, read[1].action, len(read[1].calls)) == ("left", both, 2)
    assert all(turn.valid for turn in read)


def test_a_mixture_learns_from_the_experts_it_has_and_names_environments_without_one(corridor, tmp_path):
    untaught = {"name": "quiet", "id": "gagpo-test/Untaught-v0", "kwargs": {"max_turns": 4}}
    config = mixed(corridor, untaught, training={"iterations": 2}, rollout={"tasks": 3, "samples": 2})
    with pytest.warns(UserWarning, match=r"no expert in quiet \(gagpo-test/Untaught-v0\)"):
        rows, _ = trained(config, tmp_path / "run")
    assert rows[-1]["expert_loss"] < rows[0]["expert_loss"] and 0 < rows[0]["expert_turns"] < 1
    config = mixed(corridor, environments=[untaught, {**untaught, "name": "mute"}])
    with pytest.raises(SettingsError, match=r"quiet \(.*\), mute \(.*\) has none"):
        Trainer(RunFolder.new(tmp_path / "other", load_run(config)), quiet=True)
    other = {**MIXED[0], "kwargs": {"expert": "random"}}
    with pytest.raises(ValueError, match=r"environments.long.kwargs.expert=random is not the expert"):
        load_run(mixed(corridor, environments=[other, MIXED[1]]))


class Raving(CorridorEnv):
    """An expert who says whatever comes to his mind."""

    def expert_action(self):
        return (None, "", 7, ["left"], "\ud800", "left " * 500, "\x00", "left")[self.place % 8]


gymnasium.register("gagpo-test/Raving-v0", entry_point=Raving)


def test_what_an_expert_must_not_say_is_not_learned(corridor, tmp_path):
    """Numbers, lists, halves of characters, novels: such turns have no expert, and the others teach as ever."""
    env = {"id": "gagpo-test/Raving-v0", "kwargs": {"max_turns": 16}}
    config = corridor(algorithm=ALONE, environment=env, training={"iterations": 1}, evaluation=QUICK)
    folder = RunFolder.create(tmp_path / "run", load_run(config))
    train(folder, quiet=True)
    (row,) = folder.metrics()
    assert 0 < row["expert_turns"] < 0.5 and np.isfinite(row["expert_loss"]) and row["failed_episodes"] == 0


def test_another_player_in_the_experts_place_is_refused(corridor):
    config = corridor(algorithm=ALONE, environment={"kwargs": {"expert": "random"}})
    with pytest.raises(ValueError, match=r"expert=random is not the expert"):
        load_run(config)
