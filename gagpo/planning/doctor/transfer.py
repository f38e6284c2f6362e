"""Steps about new weights on their way to a vLLM server started here: through files, NCCL, a card's memory."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import torch

from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.setup import make_engine
from gagpo.planning.doctor.machine import DoctorFinding, Machine, judged, left_out, waited

START_SECONDS = 200.0
ENGINE_CARD = 1
"""The card of a server that has one of its own; the trainer is on the first."""


def check_files(machine: Machine) -> DoctorFinding:
    """Through files, to a server on another card, or on the CPU beside the trainer."""
    own = {"gpus": [ENGINE_CARD]} if machine.on_card else {}
    return _sent(machine, "file", "separate", own)


def check_broadcast(machine: Machine) -> DoctorFinding:
    """By NCCL to a server on another card."""
    return _sent(machine, "nccl", "separate", {"gpus": [ENGINE_CARD]})


def check_shared_memory(machine: Machine) -> DoctorFinding:
    """Through a card's own memory to a server on the same card."""
    return _sent(machine, "ipc", "colocated", {})


def _sent(machine: Machine, kind: str, placement: str, own: dict[str, Any]) -> DoctorFinding:
    name = f"weights by {kind}"
    if importlib.util.find_spec("vllm") is None:
        return left_out(name, "vLLM is not installed: pip install 'gagpo[vllm]' with a GPU")
    if kind != "file" and not machine.on_card:
        return left_out(name, "this way is between cards, and the device is a CPU")
    if placement == "separate" and machine.on_card and torch.cuda.device_count() <= ENGINE_CARD:
        return left_out(name, "one card: a server of its own would need another")
    model, tokenizer = machine.tiny()
    begun = time.perf_counter()
    # The engine compares the server's log-probabilities with the model's after each transfer, and raises.
    engine = make_engine(
        "vllm-server",
        model,
        tokenizer,
        dtype=machine.dtype,
        replicas=1,
        placement=placement,
        transfer=kind,
        start_deadline=START_SECONDS,
        sync_deadline=60.0,
        logs=str(machine.folder),
        **own,
    )
    try:
        started = time.perf_counter() - begun
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        if placement == "colocated":
            engine.sleep()
            engine.wake()
        with waited(machine.device):
            begun = time.perf_counter()
            engine.load_weights(named_tensors(model))
        seconds = time.perf_counter() - begun
    finally:
        engine.close()
    values = {"seconds": seconds, "start_seconds": started}
    summary = f"new weights arrive, proved by their log-probabilities, in {seconds:.2f} s; {started:.0f} s to start"
    return judged(name, True, summary, values)
