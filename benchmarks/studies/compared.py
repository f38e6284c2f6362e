"""The studies of ``benchmarks/learning.py`` by name; those of the papers are in :mod:`benchmarks.studies.papers`."""

from __future__ import annotations

import json

from benchmarks.studies.designs import Study, preset
from benchmarks.studies.papers import PAPERS
from gagpo.algorithms import PRESETS


def cells(**changes: object) -> list[str]:
    """Overrides that train with cells of a row, GAGPO's unless named, without the reference model's KL."""
    return [f"algorithm={json.dumps({'preset': 'gagpo', 'kl': {'coefficient': 0.0}, **changes})}"]


def pretrained(task: str, turns: int, split: str = "test", chosen_on: str = "validation", *more: str) -> Study:
    """A pretrained chat model with GAGPO and GRPO; run ``gagpo sft TASK-smollm2`` first. turns: of each run.

    The adapter learns at ten times the rate of the weights.
    """
    common = ["training.iterations=60", "training.microbatch_tokens=2048", "evaluation.every=0"]
    variants = {name: preset(name, *more) for name in ("gagpo", "grpo")}
    variants["gagpo, LoRA"] = preset("gagpo", *more, "lora={rank: 32}", "optimizer.learning_rate=3e-4")
    return Study(f"configs/{task}-smollm2.yaml", variants, split, chosen_on, [*common, f"training.max_turns={turns}"])


# Small rooms, from the model that comes with the package; a run takes a minute on one core.
FIRST = "configs/alfworld-quickstart.yaml"
SHORT = ["training.max_turns=6000", "training.iterations=20", "evaluation.episodes_per_task=2", "evaluation.every=0"]
FAST = [*SHORT, "optimizer.learning_rate=1e-3"]
SHOP = "configs/webshop-quickstart.yaml"

RELEASED = "configs/alfworld-released.yaml"
SAME_TURNS = ["training.ema=false", "optimizer.lr_scheduler=constant"]
SMOLLM2_START = [
    "model=data/models/alfworld-released-smollm2",
    *("device=cuda", "engine={name: transformers, dtype: bfloat16}"),
    *("sft.base_model=smollm2-135m", "sft.lora=16", "sft.steps=40", "lora={rank: 16}"),
    *("rollout.tasks=24", "rollout.max_tokens=20", "training.microbatch_tokens=8192"),
]

BY_ROOM = ["environment.kwargs.held_out=0.35", "environment.kwargs.held_out_by=room"]
"""``gagpo sft alfworld-released`` takes them too, with the model and ``sft.episodes`` of "released-rooms"."""

FULL_ROOMS = "{train: 600, valid_seen: 72, valid_unseen: 138}"

TURN_LEVEL = {
    "gagpo": preset("gagpo"),
    "gagpo, key observation": preset("gagpo", "algorithm.credit.state_key=observation"),
    **{name: preset(name) for name in ("grpo", "gigpo", "hgpo", "graphgpo", "milegpo")},
    **{name: preset(name) for name in ("graph_value", "graph_sum")},
}
NEWER = ("rejection_sampling", "g2po", "empg", "optimal_token_baseline", "dppo", "sampo", "maxrl")
# graph_macro has a study of its own, macro-actions.
OTHERS = [name for name in PRESETS if name not in (*TURN_LEVEL, *NEWER, "graph_macro")]

STUDIES = PAPERS | {
    # The shipped configs as they are: the first rows of README.
    "quickstart-alfworld": Study(FIRST, {"GAGPO": []}),
    "quickstart-webshop": Study(SHOP, {"GAGPO": []}, "test", "validation"),
    "quickstart-math": Study("configs/math-quickstart.yaml", {"GAGPO": []}, "validation", "train"),
    "credits": Study(FIRST, TURN_LEVEL, common=FAST),
    "macro-actions": Study(  # set in advance in lab/log.md
        FIRST,
        {
            **{name: preset(name) for name in ("grpo", "gagpo", "graph_value")},
            "gagpo, macro-actions": preset("gagpo", "algorithm.credit.macro_actions=true"),
            "graph_value, macro-actions": preset("graph_macro"),
        },
        common=FAST,
    ),
    "credits-full": Study(  # the same weak starter in rooms of 20 to 48 receptacles
        FIRST,
        TURN_LEVEL,
        common=[
            f"environment.kwargs={{size: full, max_turns: 30, counts: {FULL_ROOMS}}}",
            *("training.max_turns=20000", "training.iterations=30", "optimizer.learning_rate=1e-3"),
            *("evaluation.every=0", "optimizer.lr_scheduler=constant"),
        ],
    ),
    "macro-actions-long": Study(  # those rooms with fifty turns, set in advance in lab/log.md
        FIRST,
        {name: preset(name) for name in ("grpo", "gagpo", "graph_value", "graph_macro")},
        common=[
            f"environment.kwargs={{size: full, max_turns: 50, counts: {FULL_ROOMS}}}",
            *("training.max_turns=30000", "training.iterations=30", "training.ema=false"),
            *("evaluation.episodes_per_task=2", "evaluation.every=0"),
            *("optimizer.learning_rate=1e-3", "optimizer.lr_scheduler=constant"),
        ],
    ),
    "credits-weak": Study(  # set in advance in lab/weak-start.md
        FIRST,
        {name: preset(name) for name in ("gagpo", "gigpo", "grpo")},
        common=[
            "environment.kwargs={size: alfred2, seed: 7, max_turns: 30, task_types: [look_at_obj_in_light, "
            "pick_clean_then_place_in_recep, pick_cool_then_place_in_recep, pick_heat_then_place_in_recep, "
            "pick_two_obj_and_place], counts: {train: 600, valid_seen: 100, valid_unseen: 140}}",
            *("training.max_turns=20000", "training.iterations=30", "training.ema=false"),
            *("evaluation.every=0", "optimizer.lr_scheduler=constant"),
        ],
    ),
    "smollm2-alfworld": pretrained("alfworld", 22000, "valid_unseen", "valid_seen", "algorithm.correction=none"),
    "smollm2-alfworld-gpu": Study(  # more tasks an iteration, at a higher rate that falls
        "configs/alfworld-smollm2.yaml",
        {name: preset(name, "algorithm.correction=none") for name in ("gagpo", "grpo")},
        common=[
            *("device=cuda", "rollout.tasks=32", "training.microbatch_tokens=8192", "training.iterations=32"),
            *("training.max_turns=150000", "training.save_every=32", "evaluation.every=0"),
            *("optimizer.learning_rate=6e-5", "optimizer.lr_scheduler=linear"),
        ],
    ),
    "released": Study(  # released training games, a quarter held out; run `gagpo sft alfworld-released` first
        RELEASED,
        {name: preset(name) for name in ("gagpo", "gigpo", "grpo")},
        split="train_dev",
        chosen_on="train",
        common=[*SAME_TURNS, "training.max_turns=30000", "optimizer.learning_rate=1e-3"],
    ),
    "released-rooms": Study(  # a third of the rooms held out; set in advance in lab/released-games.md
        RELEASED,
        {name: preset(name) for name in ("gagpo", "graph_macro", "grpo")},
        split="train_dev",
        chosen_on="train",
        common=[
            *(*BY_ROOM, "model=data/models/alfworld-released-rooms", "sft.episodes=137"),
            *(*SAME_TURNS, "training.max_turns=30000", "optimizer.learning_rate=1e-3"),
        ],
    ),
    "released-smollm2": Study(  # the same from an adapter on SmolLM2, on a GPU; the SFT takes SMOLLM2_START too
        RELEASED,
        {name: preset(name, "algorithm.correction=none") for name in ("gagpo", "gigpo", "grpo")},
        split="train_dev",
        chosen_on="train",
        common=[*SMOLLM2_START, *SAME_TURNS, "training.max_turns=60000"],
    ),
    "web-miniwob": Study(  # pages in a browser, unseen seeds; unseen kinds with --split; `gagpo sft web-miniwob` first
        "configs/web-miniwob.yaml",
        {"gagpo": preset("gagpo", "algorithm.credit.gamma=1.0"), "grpo": preset("grpo")},
        split="test",
        chosen_on="train",
        common=["evaluation.every=0"],
    ),
    "smollm2-web": Study(  # the same with a pretrained chat model; `gagpo sft web-smollm2` first
        "configs/web-smollm2.yaml",
        {
            "gagpo": preset("gagpo", "algorithm.credit.gamma=1.0", "algorithm.correction=none"),
            "grpo": preset("grpo", "algorithm.correction=none"),
        },
        split="test",
        chosen_on="train",
        common=["evaluation.every=0"],
    ),
    "terminal": Study(  # a shell, unseen words; held-out families with --split unseen; `gagpo sft terminal-small` first
        "configs/terminal-small.yaml",
        {name: preset("gagpo", f"algorithm.credit={{name: {name}}}") for name in ("gagpo", "grpo", "gigpo")},
        split="test",
        chosen_on="validation",
        common=[
            *("evaluation.splits=[test,unseen]", "evaluation.every=0", "training.max_turns=5000"),
            "optimizer.lr_scheduler=constant",
        ],
    ),
    "terminal-long": Study(  # three tasks in an episode, set in advance in lab/log.md; `gagpo sft terminal-long` first
        "configs/terminal-long.yaml",
        {
            **{name: preset("gagpo", f"algorithm.credit={{name: {name}}}") for name in ("gagpo", "grpo", "gigpo")},
            "graph value": preset("gagpo", "algorithm.credit={name: gagpo, proxy: graph, lam: 0}"),
        },
        split="test",
        chosen_on="validation",
        common=[
            *("evaluation.tasks=100", "evaluation.every=0", "training.max_turns=3000", "training.ema=false"),
            *("rollout.tasks=8", "optimizer.learning_rate=3e-4", "optimizer.lr_scheduler=constant"),
        ],
    ),
    "smollm2-gsm8k": Study(  # run `gagpo sft gsm8k-smollm2` first; the test problems are for `gagpo eval`, at the end
        "configs/gsm8k-smollm2.yaml",
        {name: preset(name) for name in ("gagpo", "grpo")},
        split="validation",
        chosen_on="train",
        common=["training.iterations=10", "rollout.tasks=8", "evaluation.every=0"],
    ),
    "smollm2-maths": pretrained("math", 16000),
    "smollm2-webshop": pretrained("webshop", 4000),
    "smollm2-sql": pretrained("sql", 9000, "unseen"),
    "credits-shop": Study(
        SHOP,
        TURN_LEVEL,
        split="test",
        chosen_on="validation",
        common=["training.max_turns=2500", "training.iterations=30", "evaluation.every=0"],
    ),
    "credits-household": Study(  # where one habit is not enough: rooms as ALFRED has them, fifty turns
        "benchmarks/starters/alfworld-alfred.yaml",
        TURN_LEVEL,
        common=["training.max_turns=30000", "training.ema=false", "optimizer.lr_scheduler=constant"],
    ),
    "credits-catalogue": Study(  # where the first result is mostly wrong
        SHOP,
        TURN_LEVEL,
        split="test",
        chosen_on="validation",
        common=[
            "model=data/starters/webshop-agent",
            "environment.kwargs={products: 20000, max_turns: 15}",
            *(
                "training.max_turns=5000",
                "training.iterations=30",
                "optimizer.lr_scheduler=constant",
                "evaluation.every=0",
            ),
        ],
    ),
    "algorithms": Study(FIRST, {name: preset(name) for name in ("gagpo", *OTHERS)}, common=FAST),
    "taught": Study(  # every method after as many turns of the environment
        FIRST,
        {
            "GAGPO": preset("gagpo"),
            "GRPO": preset("grpo"),
            **{name: preset(name) for name in NEWER},
            "GRPO, IcePop": cells(preset="grpo", correction={"name": "icepop", "low": 0.5, "high": 5.0}),
            "GRPO, variance filter": cells(preset="grpo", controllers={"variance_filter": {"share": 0.9}}),
        },
        common=SHORT,
    ),
    "sql": Study("configs/sql-small.yaml", {"GAGPO": preset("gagpo")}, split="unseen"),
    "maths": Study(
        "configs/math-quickstart.yaml",
        {"gagpo": preset("gagpo"), "grpo": preset("grpo")},
        split="test",
        chosen_on="validation",
        common=["evaluation.splits=[test]", "evaluation.every=0"],
    ),
}


# From starters that play well already: 60 iterations at a constant rate, the weights averaged beside them -------------

PLAIN = "optimizer.scale_by_groups=false"
LASTING = ["training.iterations=60", "optimizer.lr_scheduler=constant"]
SINGLE = "{levels: [1, 2, 3, 4], size: 60000, test_size: 480, attempts: 1, tools: false}"
ALONE = ["model=data/starters/maths-single", f"environment.kwargs={SINGLE}", *LASTING]


def rates(name: str) -> dict[str, list[str]]:
    """A method at rates that follow the groups that teach."""
    return {f"{rate} by groups": preset(name, f"optimizer.learning_rate={rate}") for rate in ("3e-4", "1e-3")}


STUDIES |= {
    # Which steps keep what a model can do; chosen on the tasks of validation.
    "steps": Study(
        "configs/math-single-small.yaml",
        {
            "3e-4": preset("grpo", PLAIN),
            "3e-4 by groups": preset("grpo"),
            "3e-4, second moment .99": preset("grpo", PLAIN, "optimizer.betas=[0.9, 0.99]"),
            "1e-4": preset("grpo", PLAIN, "optimizer.learning_rate=1e-4"),
            "3e-5": preset("grpo", PLAIN, "optimizer.learning_rate=3e-5"),
            "3e-4, KL .03": ["algorithm={preset: grpo, kl: {coefficient: 0.03}}", PLAIN],
            "3e-4, 64 problems": preset("grpo", PLAIN, "rollout.tasks=64", "training.iterations=15"),
        },
        split="validation",
        common=[*ALONE, "evaluation.splits=[validation]", "evaluation.tasks=300"],
    ),
    # One rate for a policy that learns and for one that is good already, followed by groups.
    "rates-weak": Study(FIRST, rates("gagpo"), common=["evaluation.episodes_per_task=2", "evaluation.every=0"]),
    "rates-strong": Study(
        "configs/math-single-small.yaml",
        rates("grpo"),
        split="validation",
        common=[*ALONE, "rollout.max_tokens=128", "evaluation.splits=[validation]", "evaluation.tasks=300"],
    ),
    # What is left after 60 iterations at the settings of the first runs; 500 tasks that nothing was chosen on.
    "lasting-maths": Study(
        "configs/math-single-small.yaml",
        {"GRPO": preset("grpo")},
        split="test",
        common=[*ALONE, "rollout.max_tokens=128", "evaluation.every=0"],
    ),
    "lasting-calculator": Study(
        "configs/math-quickstart.yaml",
        {"GAGPO": preset("gagpo")},
        split="test",
        common=[
            "model=data/starters/maths-agent",
            *LASTING,
            "environment.kwargs.test_size=480",
            *("evaluation.splits=[test]", "evaluation.every=0"),
        ],
    ),
    "lasting-alfred": Study(
        "benchmarks/starters/alfworld-alfred.yaml",
        {"GAGPO": preset("gagpo")},
        common=[
            "model=data/starters/alfworld-alfred",
            *LASTING,
            "environment.kwargs.seed=29",
            "environment.kwargs.counts={train: 2400, valid_seen: 138, valid_unseen: 500}",
        ],
    ),
    "lasting-shop": Study(
        "configs/webshop-quickstart.yaml",
        {"GAGPO": preset("gagpo")},
        split="test",
        common=["model=data/starters/webshop-agent", *LASTING, "evaluation.tasks=500"],
    ),
    "lasting-household": Study(
        "benchmarks/starters/alfworld-agent.yaml",
        {"GAGPO": preset("gagpo")},
        common=[
            "model=data/starters/alfworld-agent",
            *LASTING,
            "environment.kwargs.seed=29",
            "environment.kwargs.counts={train: 2400, valid_seen: 138, valid_unseen: 500}",
        ],
    ),
}

BY_SUCCESS = ["reward=success", "invalid_action_penalty=0.1"]
FALL = "optimizer.lr_scheduler=linear"
FALLING = ["training.iterations=80", FALL]

# A strong player in rooms as released games have them, which it was not made for, by reinforcement alone.
STUDIES |= {
    "lift-household": Study(
        "benchmarks/starters/alfworld-alfred.yaml",
        {"GAGPO": preset("gagpo"), "GAGPO, refusals free": preset("gagpo", "invalid_action_penalty=0")},
    ),
    "household-recipes": Study(  # a weak player in rooms as released games have them; as many episodes each
        "benchmarks/starters/alfworld-weak.yaml",
        {
            "constant rate": preset("gagpo"),
            "falling rate": preset("gagpo", FALL),
            "falling, sampled at .4": preset("gagpo", FALL, "rollout.temperature=0.4"),
            "falling, groups of 16": preset("gagpo", FALL, "rollout={tasks: 8, group_size: 16}"),
            "falling, twice as long": preset("gagpo", FALL, "training.iterations=60"),
        },
    ),
    "lift-catalogue": Study(  # 20,000 products, from short SFT on an expert that goes back
        "benchmarks/starters/webshop-browser.yaml",
        {"GAGPO": preset("gagpo")},
        split="test",
        chosen_on="validation",
    ),
    "lift-short-pages": Study(  # three results a page, from a browser that copies a second result's number
        "benchmarks/starters/webshop-browser-short.yaml",
        {
            "GAGPO": preset("gagpo"),
            "GAGPO, success alone": preset("gagpo", "reward=success"),
            "GAGPO, success alone, refusals cost": preset("gagpo", *BY_SUCCESS),
            "GAGPO, success alone, refusals cost, 1e-4": preset(
                "gagpo", *BY_SUCCESS, "training.iterations=150", "optimizer.learning_rate=1e-4"
            ),
        },
        split="test",
        chosen_on="validation",
        common=["training.iterations=30"],
    ),
    "lift-corrected": Study(  # the same pages, from a browser that was corrected where it asked for what is not there
        "benchmarks/starters/webshop-browser-corrected.yaml",
        {"GAGPO": preset("gagpo", FALL)},
        split="test",
        chosen_on="validation",
    ),
    "lift-again": Study(  # the same pages, from that browser once it was corrected itself
        "benchmarks/starters/webshop-browser-again.yaml",
        {"GAGPO": preset("gagpo", FALL)},
        split="test",
        chosen_on="validation",
    ),
    "lift-early": Study(  # from the second stage of its SFT
        "benchmarks/starters/alfworld-early.yaml",
        {"GAGPO": preset("gagpo"), "GAGPO, falling rate": preset("gagpo", *FALLING)},
        split="full.valid_unseen",
    ),
    "lift-taught": Study(  # from a player taught well and never reinforced
        "benchmarks/starters/alfworld-early.yaml",
        {"GAGPO": preset("gagpo", *FALLING)},
        split="full.valid_unseen",
        common=["model=data/starters/alfworld-taught"],
    ),
}
