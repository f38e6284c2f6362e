"""A person as an agent: reads observations, types actions, and sees the tokens that a model would see."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gagpo.agents.agent import EpisodeState, LanguageAgent
from gagpo.agents.context import Context, GenerationRequest, RejectedRequest
from gagpo.agents.engines.base import Response
from gagpo.base.tables import text_width
from gagpo.base.terminal import is_terminal, printable, raw
from gagpo.cli.options import say
from gagpo.data import Call, Turn
from gagpo.envs.gateway.messages import Completion
from gagpo.envs.tools import CallError, Tool, ToolCall, separate
from gagpo.envs.tools.tool import ACT
from gagpo.envs.tools.typed import read_typed, usage

LONGEST_LINE = 1 << 20  # characters of a typed line
MOST_LISTED = 200  # actions that `?` prints
MOST_IDS = 200  # token ids that are printed of a prompt


class EndOfInput(Exception):
    """The person has ended the episode: Ctrl-D, or the end of a pipe."""


class PersonAgent:
    """Asks a person for each action. Reads lines of standard input, and prints to standard output.

    tools: of the environment; actions are then calls, which :func:`gagpo.envs.tools.typed.read_typed` reads.
    multiline: whether an action may have several lines; a backslash at the end of a line continues it.
    shows_expert: whether the expert's next action is printed, which ``!`` takes.
    context: prompts of a model, whose tokens are printed; None for no tokens.
    state: the episode under way, or the last one.
    """

    def __init__(
        self,
        tools: Sequence[Tool] = (),
        multiline: bool = False,
        shows_expert: bool = False,
        context: Context | None = None,
    ):
        self.state: EpisodeState | None = None
        self._tools = tools
        self._multiline = multiline
        self._shows_expert = shows_expert
        self._context = context
        self._num_restarts = 0
        self._tokens_before: list[int] = []  # of the last prompt and response

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        """The turns that the person types. Raises: EndOfInput."""
        return [self._turn(state) for state in states]

    def forget(self, slot: int) -> None:
        """Nothing is kept for a slot."""

    def _turn(self, state: EpisodeState) -> Turn:
        self.state = state
        if state.episode.restarts > self._num_restarts:
            self._num_restarts = state.episode.restarts
            say("(the environment failed; the task starts again)")
        if state.episode.turns:
            show_result(state.episode.turns[-1])
        show(state.observation)
        request: GenerationRequest | RejectedRequest | None = None
        if self._context is not None:
            request = self._context.ask(state.episode.turns, state.observation, state.info)
            if isinstance(request, RejectedRequest):
                say(f"(the request is rejected: {request.reason})")
                return Turn.rejection(Completion(rejected=request.reason, status=request.status).action)
            self._show_prompt(request.prompt_ids.tolist())
        turn = self._read_turn(state.info)
        if self._context is None or not isinstance(request, GenerationRequest):
            return turn
        return self._sampled(request, turn, state.info)

    def _read_turn(self, info: dict[str, Any]) -> Turn:
        """The turn that the person types, without tokens."""
        expert = info.get("expert_action")
        if self._shows_expert:
            say(f"expert: {expert}" if isinstance(expert, str) else "expert: no action")
        tools = [*self._tools, *_requested_tools(info)]
        while True:
            line = self._read_line(info).strip()
            if line.startswith("?"):
                _list_actions(info, tools, line[1:].strip())
            elif line == "!" and isinstance(expert, str):
                return Turn.of_actions(separate(expert))
            elif line == "!":
                say("there is no action of an expert here; --expert shows it where there is one")
            elif line:
                # A backslash in front stands for an action that begins with one of these characters.
                action = line[1:] if line.startswith(("\\?", "\\!", "\\\\")) else line
                turn = _turn_of(action, info, tools)
                if turn is not None:
                    return turn

    def _read_line(self, info: dict[str, Any]) -> str:
        """One action, of several lines where the environment takes them."""
        lines = [read_line("> ", info.get("admissible_actions") or ())]
        while self._multiline and lines[-1].endswith("\\") and not lines[-1].endswith("\\\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(read_line(". "))
        return "\n".join(lines)

    def _sampled(self, request: GenerationRequest, turn: Turn, info: dict[str, Any]) -> Turn:
        """The turn as if the model had sampled what the person typed."""
        assert self._context is not None
        text = self._context.action_format.write(turn)
        if "request" in info:
            calls = Completion.of(turn.completion).calls
            functions = [ToolCall(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            text = self._context.call_format.write(functions) if functions else turn.action
        response_ids = self._context.response(text)
        logprobs = np.zeros(len(response_ids), np.float32)
        turn = request.read(Response(response_ids, logprobs, True))
        self._show_response(response_ids.tolist(), turn)
        return turn

    def _show_prompt(self, ids: list[int]) -> None:
        """The new part of a prompt, which the model has not read or written before."""
        assert self._context is not None
        before = self._tokens_before
        num_known = len(before) if ids[: len(before)] == before else 0
        self._tokens_before = ids
        new_ids = ids[num_known:]
        say(f"--- prompt: {len(ids)} tokens, {len(new_ids)} of them new")
        show(str(self._context.tokenizer.decode(new_ids)))
        _show_ids(new_ids)

    def _show_response(self, ids: list[int], turn: Turn) -> None:
        assert self._context is not None
        self._tokens_before = [*self._tokens_before, *ids]
        say(f"--- response: {len(ids)} tokens")
        show(str(self._context.tokenizer.decode(ids)))
        _show_ids(ids)
        errors = [call.error for call in turn.calls if call.error]
        if errors or turn.invalid:
            say(f"--- the parser finds no valid action: {'; '.join(errors) or turn.invalid}")


class WatchedAgent:
    """Prints what a model reads and writes in an episode.

    state: the episode under way, or the last one.
    """

    def __init__(self, agent: LanguageAgent):
        self.state: EpisodeState | None = None
        self._agent = agent

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        """The turns of the model."""
        turns = self._agent.decide(states)
        for state, turn in zip(states, turns, strict=True):
            self.state = state
            if state.episode.turns:
                show_result(state.episode.turns[-1])
            show(state.observation)
            if turn is not None:
                show(f"> {turn.response}")
        return turns

    def forget(self, slot: int) -> None:
        """Drop the model's cache of a slot."""
        self._agent.forget(slot)


def show(text: str) -> None:
    """Print text of an environment or a model; lines are wrapped on a terminal."""
    text = printable(text)
    if not is_terminal(sys.stdout):
        say(text)
        return
    for line in text.split("\n"):
        say(*(textwrap.wrap(line, text_width(100), replace_whitespace=False) or [""]))


def show_result(turn: Turn) -> None:
    """Print what the environment answered to a turn, apart from its observation."""
    if not turn.valid:
        say("(not a valid action)")
    if turn.reward:
        say(f"(reward {turn.reward:g})")


def read_line(prompt: str, completions: Sequence[object] = ()) -> str:
    """A line of standard input, without its end.

    completions: actions that the Tab key completes on a terminal.

    Raises: EndOfInput.
    """
    if sys.stdin.isatty() and is_terminal(sys.stdout):
        _complete([action for action in map(str, completions) if printable(action) == action])
        stdout = sys.stdout
        try:
            sys.stdout = raw(stdout)  # input() edits lines only on the terminal itself; the prompt is a constant
            return input(prompt)
        except EOFError:
            say("")
            raise EndOfInput from None
        finally:
            sys.stdout = stdout
    line = sys.stdin.readline(LONGEST_LINE)
    if not line:
        raise EndOfInput
    say(f"{prompt}{line.rstrip()}")
    return line.rstrip("\r\n")


def _complete(actions: list[str]) -> None:
    """Let the Tab key complete these actions, where Python has line editing."""
    try:
        import readline
    except ImportError:
        return

    def candidate(text: str, number: int) -> str | None:
        matching = [action for action in actions if action.startswith(text)]
        return matching[number] if number < len(matching) else None

    readline.set_completer_delims("")  # an action is completed as a whole, not word by word
    readline.set_completer(candidate)
    readline.parse_and_bind("tab: complete")


def _requested_tools(info: dict[str, Any]) -> list[Tool]:
    """The tools of a program's request; those whose names or schemas no call can have are left out."""
    tools = []
    for tool in info.get("request", {}).get("tools", ()):
        function = tool["function"]
        parameters = {"type": "object", **function["parameters"]}
        try:
            tools.append(Tool(function["name"], function["description"], parameters))
        except ValueError:
            continue
    return tools


def _turn_of(action: str, info: dict[str, Any], tools: Sequence[Tool]) -> Turn | None:
    """The turn of a typed action; None after a printed error, which costs no turn."""
    is_program = "request" in info
    if not tools or (is_program and not _is_call(action, tools)):
        turn = Turn.of(action, action)
        return replace(turn, completion=Completion(action).action) if is_program else turn
    try:
        call = read_typed(action, tools)
    except CallError as error:
        say(f"{error}; ? lists the tools")
        return None
    if not is_program:
        return Turn.of_calls(call.text, [Call(call.text)])
    function = {"name": call.name, "arguments": call.arguments}
    number = info["request"]["number"]
    completion = Completion("", [{"id": f"call{number:05d}", "type": "function", "function": function}], "tool_calls")
    return replace(Turn.of(call.text, call.text), completion=completion.action)


def _is_call(action: str, tools: Sequence[Tool]) -> bool:
    """Whether an answer to a program begins with the name of a tool, and so calls it."""
    return action.split()[0] in {tool.name for tool in tools if tool is not ACT}


def _list_actions(info: dict[str, Any], tools: Sequence[Tool], part: str) -> None:
    """Print the tools or the admissible actions. part: text that they must contain."""
    actions = [usage(tool) for tool in tools] or list(map(str, info.get("admissible_actions") or ()))
    if not actions:
        say("this environment does not list its actions; its instructions are above")
        return
    matching = [action for action in actions if part in action]
    for action in matching[:MOST_LISTED]:
        show(f"  {action}")
    if len(matching) > MOST_LISTED:
        say(f"  and {len(matching) - MOST_LISTED} more; ?WORD lists those that contain WORD")
    elif not matching:
        show(f"no action contains {part}")


def _show_ids(ids: Sequence[int]) -> None:
    hidden = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
    show(f"ids: {' '.join(map(str, ids[:MOST_IDS]))}{hidden}")
