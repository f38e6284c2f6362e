"""Engines by name; :mod:`gagpo.base.registry` explains how a package or a file adds one.

An entry is a callable ``factory(model, tokenizer, max_length=None, **options)`` that returns an
:class:`gagpo.agents.engines.base.Engine`.
"""

from __future__ import annotations

from collections.abc import Callable

from gagpo.agents.engines.base import Engine
from gagpo.base.registry import Registry

SERVERS = ("vllm",)
"""Engines that sample in other processes, with weights of their own."""

ENGINES: Registry[Callable[..., Engine]] = Registry(
    "engine",
    "gagpo.engines",
    {
        "transformers": "gagpo.agents.engines.general:transformers_engine",
        "vllm": "gagpo.agents.engines.remote.engine:VLLMServerEngine",
    },
)
