"""Two examples for the help of every command."""

from __future__ import annotations

import typer

EXAMPLES: dict[str, tuple[str, str]] = {
    "train": (
        "gagpo train --resume runs/alfworld-quickstart",
        "gagpo train alfworld-quickstart seed=1,2,3 algorithm.credit=gagpo,grpo --jobs 2",
    ),
    "sft": ("gagpo sft alfworld-small", "gagpo sft mine.yaml sft.steps=1200 --overwrite"),
    "eval": (
        "gagpo eval runs/alfworld-quickstart --out after.json",
        "gagpo eval random --like runs/alfworld-quickstart",
    ),
    "compare": ("gagpo compare chance.json after.json", "gagpo compare runs/a runs/b --json"),
    "report": (
        "gagpo report runs/alfworld-quickstart",
        "gagpo report GAGPO=runs/a GRPO=runs/b --curves both.png --x turns",
    ),
    "view": ("gagpo view runs/alfworld-quickstart --open", "gagpo view runs --out pages"),
    "check": ("gagpo check gagpo/ALFWorld-v0 -k size=small", "gagpo check walk:Walk-v0 --json"),
    "play": ("gagpo play gagpo/ALFWorld-v0 --expert", "gagpo play gagpo/Storeroom-v0 --model starter:alfworld"),
    "plan": (
        "gagpo plan alfworld-qwen --gpu-memory 80",
        "gagpo plan alfworld-quickstart --run runs/alfworld-quickstart",
    ),
    "doctor": ("gagpo doctor", "gagpo doctor --device cuda --processes 8 --dtype bfloat16"),
    "profile": ("gagpo profile alfworld-quickstart", "gagpo profile mine.yaml training.dtype=bfloat16 --iterations 5"),
    "export": (
        "gagpo export runs/alfworld-quickstart@best model",
        "gagpo export runs/alfworld-quickstart --push OWNER/NAME",
    ),
    "chat": ("gagpo chat starter:maths", "gagpo chat runs/alfworld-quickstart@best --temperature 0"),
    "serve": ("gagpo serve runs/alfworld-quickstart", "gagpo serve starter:maths --port 8001"),
    "models": ("gagpo models get smollm2-135m", "gagpo models get other-model.Q8_0.gguf --to models/other"),
    "new": ("gagpo new mine.yaml --like alfworld-small", "gagpo new walk"),
    "list": ("gagpo list", "gagpo list --runs elsewhere/runs --json"),
    "prompts": ("gagpo prompts show tags > mine.yaml", "gagpo prompts preview alfworld-quickstart --turns 3"),
}


def add_to(app: typer.Typer) -> None:
    """Add the examples to every command; KeyError for a command without."""
    for command in app.registered_commands:
        name = str(command.name or getattr(command.callback, "__name__", ""))
        command.epilog = "\n\n".join(["For example:", *EXAMPLES[name]])
