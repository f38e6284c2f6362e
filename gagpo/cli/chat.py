"""The commands ``chat`` and ``serve``: a trained model answers a person, or the clients of a server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from gagpo.base.options import Flag, Options
from gagpo.cli import servers
from gagpo.cli.field_options import request_values, with_field_options
from gagpo.cli.options import Json, print_json, say

if TYPE_CHECKING:
    from gagpo.envs.gateway.messages import Completion
    from gagpo.interop.chat_model import ChatModel

ENVIRONMENT = re.compile(r"(gagpo/|.+:).+-v\d+")


class ChatOptions(Options):
    """A trained model that answers. Fields are options of both commands, their descriptions its help."""

    model: Annotated[str, Flag()] = Field(
        description="A run folder (runs/X; runs/X@20, @best, @ema), a model folder, or a hub model."
    )
    environment: Annotated[str | None, Flag("--env")] = Field(
        None, description="Name of the environment, in a run of several."
    )
    temperature: Annotated[float | None, Flag()] = Field(
        None, ge=0, description="Sampling temperature; the run's, else 0.4. A client may send another."
    )
    max_tokens: Annotated[int | None, Flag()] = Field(
        None, ge=1, description="Token limit of an answer; the run's, else 512."
    )
    seed: Annotated[int | None, Flag()] = Field(None, ge=0, description="Seed of the answers; by default random.")
    device: Annotated[str | None, Flag()] = Field(None, description="cpu, cuda, ...")
    revision: Annotated[str | None, Flag()] = Field(None, description="Branch, tag or commit of a hub model.")
    trust_remote_code: Annotated[bool, Flag("--trust-remote-code")] = Field(
        False, description="Run code that comes with the model or run; read it first."
    )


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command()(chat)
    app.command()(serve)


@with_field_options(ChatOptions)
def chat(*, as_json: Json = False, **options: object) -> None:
    """Talk to a trained model, with the prompt and the tools of its training.

    A line is a message; a pipe may send them too, one per line. Ctrl-D ends. The line after a tool call is its answer.
    """
    messages: list[dict[str, Any]] = []
    with _chat_model(options) as chat_model:
        say(f"{chat_model.name}; Ctrl-D ends the conversation", "")
        try:
            while True:
                _exchange(chat_model, messages)
        except EOFError:
            pass
    if as_json:
        print_json({"model": chat_model.name, "messages": messages})


def _exchange(chat_model: ChatModel, messages: list[dict[str, Any]]) -> None:
    """One message of the person, and the answer. Raises: EOFError at the end of the input."""
    from gagpo.cli.person import EndOfInput, read_line, show
    from gagpo.envs.gateway.messages import ChatRequest, GatewayError

    calls = messages[-1].get("tool_calls", []) if messages else []
    lines = []
    try:
        for call in calls or [None]:
            lines.append(read_line("> " if call is None else f"{call['function']['name']} answers> "))
    except EndOfInput:
        raise EOFError from None
    if not calls and not lines[0].strip():
        return
    new = [{"role": "user", "content": line} for line in lines]
    if calls:
        new = [
            {"role": "tool", "content": line, "tool_call_id": call["id"]}
            for line, call in zip(lines, calls, strict=True)
        ]
    try:
        completion = chat_model.ask(ChatRequest.of({"messages": [*messages, *new]})).result()
    except GatewayError as error:  # such as a conversation that is too long
        say(f"({error})")
        return
    messages += [*new, completion.message]
    show(_text(completion))


def _text(completion: Completion) -> str:
    """An answer for a person, with its calls."""
    lines = [completion.content] if completion.has_text_part else []
    for call in completion.calls_with_text_arguments:
        lines.append(f"[calls {call['function']['name']} {call['function']['arguments']}]")
    if completion.finish == "length":
        lines.append("(cut off at the token limit; --max-tokens raises it)")
    return "\n".join(lines)


@with_field_options(ChatOptions)
def serve(
    *,
    host: Annotated[str, typer.Option(help="0.0.0.0 accepts connections from other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000,
    api_key: Annotated[
        str, typer.Option(envvar="GAGPO_API_KEY", help="Key that clients must send; without one, any is accepted.")
    ] = "",
    **options: object,
) -> None:
    """Serve a trained model to OpenAI's and Anthropic's clients, with the prompt and the tools of its training."""
    import asyncio

    from gagpo.base.errors import InvalidArgument, MissingPackage

    model = str(options["model"])
    if ENVIRONMENT.fullmatch(model):
        raise InvalidArgument("is an environment, not a model", where=model, advice=servers.advice(model))
    try:
        from gagpo.interop.model_server import ModelServer
    except ImportError as error:
        raise MissingPackage(
            f"gagpo serve needs starlette and uvicorn ({error})", advice="install the extra gateway"
        ) from None
    with _chat_model(options) as chat_model:
        server = ModelServer(chat_model, host, port, api_key)
        say(f"serving {chat_model.name} at {server.address}/v1")
        asyncio.run(server.serve())


@contextmanager
def _chat_model(options: Mapping[str, object]) -> Iterator[ChatModel]:
    """The loaded model, which is closed at the end."""
    from gagpo.eval.chat import chat_source
    from gagpo.eval.models import request_of
    from gagpo.interop.chat_model import ChatModel

    values = request_values(ChatOptions, options)
    seed = values.pop("seed", None)
    source = chat_source(request_of(**values))
    chat_model = ChatModel(source.name, source.agent, seed)
    try:
        yield chat_model
    finally:
        chat_model.close()
