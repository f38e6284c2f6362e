"""Stop strings end a response at the token that completes them."""

import re
from dataclasses import replace

import numpy as np
import pytest

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.agents.agent import EpisodeState, LanguageAgent
from gagpo.agents.context import Context
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.prompts import find_prompt
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode
from tests.rejections import rejects


def test_a_response_ends_with_the_token_that_completes_the_string(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    prompt_ids = tokenizer.encode("You stand at 12.", return_tensors="np")[0].astype(np.int32)
    free = [Request(session, prompt_ids, seed=session, max_tokens=30) for session in range(8)]
    responses = engine.generate(free, Sampling())
    texts = [tokenizer.decode(response.ids) for response in responses]
    stops = [(re.findall(r"[a-z]{2}", text) or ["nothing like it"])[-1] for text in texts]
    assert sum(stop in text for stop, text in zip(stops, texts, strict=True)) > 4
    requests = [
        Request(item.session, prompt_ids, item.seed, None, 30, (stop,)) for item, stop in zip(free, stops, strict=True)
    ]
    for response, full, stop in zip(engine.generate(requests, Sampling()), responses, stops, strict=True):
        length = len(response.ids)
        assert response.ids.tolist() == full.ids[:length].tolist()
        assert stop not in tokenizer.decode(response.ids[:-1])
        assert length == len(full.ids) or (response.stopped and stop in tokenizer.decode(response.ids))
        assert np.allclose(response.logprobs, full.logprobs[:length], atol=1e-5)


def test_the_agent_passes_them_and_the_next_prompt_adds_the_end(tiny):
    model, tokenizer = tiny
    context = Context(tokenizer, find_prompt("think-act"))
    agent = LanguageAgent(TransformersEngine(model, tokenizer), context, Sampling(max_tokens=5))
    request = agent._prepare(EpisodeState(0, Episode("t", seed=1), "You stand at 1."))
    assert request.stop == ("</action>",)
    response = context.response("<action>left</action>")
    assert tokenizer.decode(response) == "<action>left</action>"
    turn = replace(context.turn(response), prompt_ids=request.prompt_ids, response_ids=response)
    assert "left</action><|end|><|user|>This is step 2." in tokenizer.decode(context.prompt([turn], "You stand at 2."))


def test_an_engine_that_cannot_stop_exactly_is_refused(tiny):
    class Other(TransformersEngine):
        takes_stop = False

    with rejects(InvalidArgument, key="context.prompt.stop"):
        LanguageAgent(Other(*tiny), Context(tiny[1], find_prompt("think-act")), Sampling())


def test_a_server_gets_them_and_a_tag_that_it_leaves_open_is_closed():
    pytest.importorskip("flask")
    from tests.agents.chat_server import serving
    from tests.agents.test_api import ChatSettings, play

    with serving(style="<think>to <action>up</action></think><action>{}") as server:
        _, (episode,) = play(server, 1, chat=ChatSettings(find_prompt("think-act")))
    assert episode.success and server.requests[0]["stop"] == ["</action>"]
    assert [message["role"] for message in server.requests[0]["messages"]] == ["system", "user", "assistant", "user"]
