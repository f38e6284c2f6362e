"""The command ``prompts``."""

from __future__ import annotations

import itertools
import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.base.terminal import CleanStream, is_terminal, raw
from gagpo.cli.options import Json, Overrides, first_comment, print_json, say

if TYPE_CHECKING:
    from gagpo.data import Turn


class PromptAction(StrEnum):
    """What the command does."""

    SHOW = "show"
    PREVIEW = "preview"


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command()(prompts)


def prompts(
    action: Annotated[
        PromptAction | None, typer.Argument(help="`show` a shipped prompt, or `preview` a config's.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="Name of the prompt, or the config.")] = None,
    overrides: Overrides = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of the preview.")] = 3,
    env: Annotated[str | None, typer.Option(help="One of several environments of the config.")] = None,
    answer: Annotated[str | None, typer.Option(help="Response of every turn; by default the expert's.")] = None,
    as_json: Json = False,
) -> None:
    """List the shipped prompts, print one, or print what a model reads and writes turn by turn."""
    from gagpo.agents.prompts import shipped_prompts
    from gagpo.base.errors import InvalidArgument
    from gagpo.base.nearest import hint
    from gagpo.base.tables import facts, text_width

    available = shipped_prompts()
    if action is None:
        comments = {label: first_comment(path) for label, path in available.items()}
        say(*facts(list(comments.items()), text_width(most=200)))
        say("\n`gagpo prompts show NAME > mine.yaml` makes a copy to change; context.prompt=mine.yaml uses it.")
        if as_json:
            print_json(comments)
    elif name is None:
        raise InvalidArgument(
            (f"gagpo prompts {action} needs a name: one of {', '.join(available)}, or for preview a config"), key="name"
        )
    elif action is PromptAction.SHOW:
        if name not in available:
            raise InvalidArgument(f"there is no shipped prompt {name!r:.80}", advice=hint(name, available))
        print(available[name].read_text(encoding="utf-8"), end="")
    else:
        records = _preview(name, overrides or [], turns, env, answer)
        if as_json:
            print_json(records)


def _preview(config: str, overrides: list[str], turns: int, name: str | None, answer: str | None) -> list[object]:
    """Print what a model reads and writes in the first training task; returns the turns as JSON-ready values."""
    from gagpo.agents.preview import make_with_expert, preview
    from gagpo.agents.setup import make_context, tasks_of
    from gagpo.model.loading import load_tokenizer
    from gagpo.settings import load_stored
    from gagpo.settings.derived import model_or_base
    from gagpo.settings.machine import require_model

    settings = load_stored(config, overrides)
    env_settings = settings.only_environment if name is None else settings.environment_named(name)
    model = model_or_base(settings)
    require_model(model)
    tokenizer = load_tokenizer(model, settings.revision, trust_remote_code=settings.trust_remote_code)
    env = make_with_expert(env_settings.environment.id, env_settings.environment.kwargs)
    try:
        context = make_context(tokenizer, env, **dict(env_settings.context))
        task = tasks_of(env, env_settings.environment.split).require().ids[0]
        say(f"prompt {env_settings.context.prompt.label}, model {model}, task {task}")
        before: list[int] = []
        records: list[object] = []
        for number, (turn, source) in enumerate(itertools.islice(preview(env, context, task, answer), turns), 1):
            ids = turn.prompt_ids.tolist()
            cached = len(before) if ids[: len(before)] == before else 0
            before = ids + turn.response_ids.tolist()
            new_prompt = tokenizer.decode(ids)
            response = tokenizer.decode(turn.response_ids)
            counts = {"prompt_tokens": len(ids), "response_tokens": len(turn.response_ids)}
            records.append({"prompt": new_prompt, "response": response, "action": turn.action, **counts})
            say(
                f"\n--- turn {number}: the model reads {len(ids)} tokens" + f", {cached} of them known" * bool(cached),
                tokenizer.decode(ids[cached:]),
                f"--- turn {number}: it writes {len(turn.response_ids)} tokens, which are trained on ({source})",
            )
            _print_trained(response)
            say(f"--- turn {number}: the parser reads {_parsed(turn)}")
    finally:
        env.close()
    return records


def _parsed(turn: Turn) -> str:
    """What the parser made of a response."""
    if turn.calls:
        return "; ".join(call.error or call.action for call in turn.calls)
    return repr(turn.action) if turn.valid else f"no action ({turn.invalid})"


def _print_trained(text: str) -> None:
    """Print the text in green; between marks in a pipe or with NO_COLOR."""
    if not is_terminal(sys.stdout) or os.environ.get("NO_COLOR"):
        say(f">>>{text}<<<")
        return
    terminal = raw(sys.stdout)
    terminal.write("\x1b[32m")
    CleanStream(terminal).write(text)
    terminal.write("\x1b[0m\n")
