"""A trained model that answers conversations, with the prompts of its training.

One thread owns the engine. It takes requests from a queue, adds them to those under way at the next token, and sets
their futures; callers only put requests in and wait. It ends when the model is closed.
"""

from __future__ import annotations

import queue
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.context import GenerationRequest, RejectedRequest
from gagpo.agents.engines.base import Engine, Request, Response, Sampling
from gagpo.agents.trained_chat import ServedContext
from gagpo.base.errors import GagpoError, first_line
from gagpo.data import Turn
from gagpo.envs.gateway.conversations import Conversations
from gagpo.envs.gateway.messages import ChatRequest, Completion, GatewayError, Json

MAX_TURNS = 500  # answers whose sampled tokens are kept for the rest of their conversations
POLL_SECONDS = 0.02  # of sampling, before new requests are looked for
MAX_TEMPERATURE = 100.0
CLOSED = GatewayError(503, "the model is closed")


@dataclass
class ServedHistory:
    """The answers so far, so that a conversation goes on with the tokens that were sampled for it."""

    conversations: Conversations = field(default_factory=Conversations)
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True)
class Pending:
    """A request on its way. number: of its turn in ``history``."""

    history: ServedHistory
    number: int
    prompting: GenerationRequest
    request: Request
    answer: Future[Completion]


class ChatModel:
    """Answers requests as the model was trained to.

    name: of the model, for clients.
    agent: the model with its prompts; of its context only a :class:`ServedContext` is used.
    seed: of answers whose request has none; None for a random one.
    """

    def __init__(self, name: str, agent: LanguageAgent, seed: int | None = None):
        assert isinstance(agent.context, ServedContext)
        self.name = name
        self._engine: Engine = agent.engine
        self._context = agent.context
        self._sampling: Sampling = agent.sampling
        self._seed = seed
        self._history = ServedHistory()
        self._requests: queue.SimpleQueue[tuple[ChatRequest, Future[Completion]] | None] = queue.SimpleQueue()
        self._pending: dict[int, Pending] = {}  # by session; of the thread
        self._num_sessions = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="chat-model", daemon=True)
        self._thread.start()

    def ask(self, request: ChatRequest) -> Future[Completion]:
        """Queue a request. The future raises GatewayError for one that cannot be answered; it may be cancelled."""
        answer: Future[Completion] = Future()
        if self._is_closing:  # the thread would never take it
            _set_error(answer, CLOSED)
        else:
            self._requests.put((request, answer))
        return answer

    def close(self) -> None:
        """End the thread and the engine; requests under way are cancelled."""
        self._is_closing = True
        self._requests.put(None)
        self._thread.join()
        self._engine.close()

    # In the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._take():
            try:
                for request, response in self._engine.collect(POLL_SECONDS):
                    self._finish(self._pending.pop(request.session), response)
                    self._engine.release(request.session)
            except Exception as error:  # a thread that ended would leave every later request without an answer
                self._fail(GatewayError(500, f"the model failed: {type(error).__name__}: {first_line(error)}"))
        self._fail(CLOSED)
        while not self._requests.empty():
            item = self._requests.get()
            if item is not None:
                _set_error(item[1], CLOSED)

    def _take(self) -> bool:
        """Start the requests that wait, after at least one if none is under way; False at the end."""
        while True:
            try:
                item = self._requests.get(block=not self._pending)
            except queue.Empty:
                break
            if item is None:
                return False
            request, answer = item
            if not answer.cancelled():
                self._start(request, answer)
        for session, pending in list(self._pending.items()):
            if pending.answer.cancelled():  # its client hung up
                del self._pending[session]
                self._engine.release(session)
        return True

    def _fail(self, error: GatewayError) -> None:
        for session, pending in self._pending.items():
            self._engine.release(session)
            _set_error(pending.answer, error)
        self._pending.clear()

    def _start(self, request: ChatRequest, answer: Future[Completion]) -> None:
        try:
            pending = self._prepared(request, answer)
            self._engine.submit([pending.request], self._sampling)
            self._pending[pending.request.session] = pending
        except GatewayError as error:
            _set_error(answer, error)
        except Exception as error:  # whatever the messages of a client cause
            _set_error(answer, GatewayError(500, f"the request failed: {type(error).__name__}: {first_line(error)}"))

    def _prepared(self, request: ChatRequest, answer: Future[Completion]) -> Pending:
        if len(self._history.turns) >= MAX_TURNS:
            self._history = ServedHistory()  # those under way keep the old one
        history = self._history
        messages = self._context.complete(request.conversation)
        tools = request.functions
        if request.tool_choice == "auto":
            tools = self._context.tools_for(request.conversation, tools)
        request_info = history.conversations.add_request(request, messages, tools)
        history.turns.append(Turn.of("", ""))  # until it is answered
        limit = self._engine.max_length
        prompting = self._prompting(history, {"request": request_info}, limit)
        max_tokens = min(prompting.max_tokens or self._sampling.max_tokens, limit - len(prompting.prompt_ids))
        self._num_sessions += 1
        stop = prompting.stop if getattr(self._engine, "takes_stop", False) else ()
        seed = self._seed if request.seed is None else _whole_number(request.seed)
        if seed is None:
            seed = secrets.randbits(48)
        engine_request = Request(
            self._num_sessions, prompting.prompt_ids, seed, _temperature(request.temperature), max_tokens, stop
        )
        return Pending(history, len(history.turns) - 1, prompting, engine_request, answer)

    def _prompting(self, history: ServedHistory, info: Json, limit: int) -> GenerationRequest:
        """The prompt, below ``limit`` tokens. Raises: GatewayError for messages that cannot be shown."""
        too_long = GatewayError(400, f"the messages are too long: the model reads at most {limit} tokens")
        if self._context.exceeds(info, limit):
            raise too_long
        prompting = self._context.ask(history.turns, "", info)
        if isinstance(prompting, RejectedRequest):
            raise GatewayError(prompting.status, prompting.reason)
        if len(prompting.prompt_ids) >= limit:
            raise too_long
        return prompting

    def _finish(self, pending: Pending, response: Response) -> None:
        turn = pending.prompting.read(response)
        completion = Completion.of(turn.completion)
        pending.history.turns[pending.number] = turn
        pending.history.conversations.add_answer(completion, pending.number)
        # From here on the future cannot be cancelled, which would make setting its result an error.
        if pending.answer.set_running_or_notify_cancel():
            pending.answer.set_result(completion)


def _set_error(answer: Future[Completion], error: GagpoError) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)


def _temperature(value: object) -> float | None:
    """Raises: GatewayError for a temperature that is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TEMPERATURE:
        raise GatewayError(400, f"temperature must be a number from 0 to {MAX_TEMPERATURE:g} (got {value!r:.40})")
    return float(value)


def _whole_number(value: object) -> int:
    """Raises: GatewayError for a seed that is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise GatewayError(400, f"seed must be a whole number of at least 0 (got {value!r:.40})")
    return value
