"""Credit and loss in verl's own V1 worker with FSDP2; a CPU stands in for the GPU."""

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("verl.trainer.ppo.v1", reason="verl with its transfer queue is needed")
pytest.importorskip("transfer_queue")

import verl.models.transformers.monkey_patch
import verl.trainer
from hydra import compose, initialize_config_dir
from transformers import AutoModelForCausalLM
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

from gagpo.algorithms import load
from gagpo.base.errors import InvalidArgument
from gagpo.credit import advantages, intern, turns_from_tokens
from gagpo.interop import verl as adapter
from gagpo.interop.verl import register
from gagpo.objectives import Layout, policy_loss
from gagpo.sft.small_model import save_folder
from tests.rejections import rejects

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
GAGPO = load("gagpo", {"kl": {"coefficient": 0.0}})
PAGE = Path(__file__).parents[3] / "docs" / "interop.md"


class CPUPlatform(PlatformCUDA):
    """A CPU in the place of verl's accelerator."""

    device_name = vendor_name = "cpu"
    device_module = torch.cpu

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def nvtx_range(self, message):
        return nullcontext()

    def _nothing(self, *_):
        pass

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing


EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(FSDPEngineWithLMHead)


@pytest.fixture(autouse=True)
def printed(monkeypatch):
    """The module that the page prints, in registries that forget it afterwards."""
    for name in ("ADV_ESTIMATOR_REGISTRY", "POLICY_LOSS_REGISTRY"):
        monkeypatch.setattr(core_algos, name, dict(getattr(core_algos, name)))
    block = re.search(r"```python verl\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block[1], PAGE.name, "exec"), {})


def settings_of(folder, *changes):
    """verl's own settings, for a model on a CPU."""
    with initialize_config_dir(str(Path(verl.trainer.__file__).parent / "config"), version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={folder}",
                "actor_rollout_ref.model.use_remove_padding=false",
                "+actor_rollout_ref.model.override_config.attn_implementation=eager",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.actor.strategy=fsdp2",
                "actor_rollout_ref.actor.policy_loss.loss_mode=gagpo",
                "actor_rollout_ref.actor.use_dynamic_bsz=false",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                "actor_rollout_ref.actor.use_torch_compile=false",
                "actor_rollout_ref.actor.optim.lr=0.0",
                *changes,
            ],
        )


@pytest.fixture
def worker(tiny, tmp_path, monkeypatch):
    """verl's V1 worker of one rank with FSDP2, and the model it has loaded."""
    model, tokenizer = tiny
    save_folder(model, tokenizer, tmp_path / "model")
    monkeypatch.setattr(torch.cpu, "max_memory_allocated", lambda *_: 0, raising=False)
    monkeypatch.setattr(torch.cpu, "max_memory_reserved", lambda *_: 0, raising=False)
    # verl looks for a class that the installed TRL no longer has.
    monkeypatch.setattr(verl.models.transformers.monkey_patch, "is_trl_available", lambda: False)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in alone.items():  # the meeting itself is in this process
        monkeypatch.setenv(name, value)
    set_platform(CPUPlatform())
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    config = settings_of(tmp_path / "model")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    actor.engine.use_dynamic_bsz = False
    training_worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=actor.model_config,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    training_worker.reset()
    training_worker.set_loss_fn(partial(ppo_loss, config=actor))
    yield training_worker
    torch.distributed.destroy_process_group()


def columns(rows=8, padding=0):
    """Rows of 3, 4, ... response tokens in turns of two tokens, and some of padding, whose masks are empty."""
    generator = torch.Generator().manual_seed(1)
    records = []
    for row in range(rows + padding):
        prompt, response = (torch.randint(5, 40, (n,), generator=generator) for n in (4, 3 + row % rows))
        mask = torch.ones(len(response), dtype=torch.long)
        mask[2::3] = 0
        if row >= rows:
            mask[:] = 0
        records.append(
            {
                "prompts": prompt,
                "responses": response,
                "input_ids": torch.cat([prompt, response]),
                "position_ids": torch.arange(len(prompt) + len(response)),
                "response_mask": mask,
                "loss_mask": mask,
                "old_log_probs": -4 + 0.1 * torch.rand(len(response), generator=generator),
                "advantages": torch.randn(len(response), generator=generator),
            }
        )
    return records


def update(worker, rows, micro):
    """One update of verl's worker with micro-batches of so many rows; its metrics."""
    nested = {key: torch.nested.as_nested_tensor([row[key] for row in rows], layout=torch.jagged) for key in rows[0]}
    about = {"global_batch_size": len(rows), "mini_batch_size": len(rows), "epochs": 1, "seed": 1, "temperature": 1.0}
    more = {"dataloader_kwargs": {"shuffle": False}, "calculate_entropy": False, "micro_batch_size_per_gpu": micro}
    data = tensordict_utils.get_tensordict(nested, about | more)
    return tensordict_utils.get(worker.train_mini_batch(data), "metrics")


def test_the_gradient_is_that_of_the_mini_batch_however_it_is_cut(worker):
    """verl adds up micro-batches. With a mean of each, the norm was 0.59, 1.12, 2.17, 4.45 for 1, 2, 4, 8 of them."""
    rows = columns()
    full = update(worker, rows, 8)["grad_norm"][0]
    for micro in (4, 2, 1):
        assert update(worker, rows, micro)["grad_norm"][0] == pytest.approx(full, rel=2e-3)  # autocast is bf16
    assert full > 0


def test_the_norm_is_what_our_own_loss_gives(worker, tmp_path):
    """The same model, the same rows, our loss by itself: an update outside of verl."""
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager", dtype=torch.float32)
    rows = columns()
    segments = {name: [] for name in ("new", "old", "advantage", "turn", "row")}
    for location, row in enumerate(rows):
        logits = model(row["input_ids"][None]).logits[0, 3:-1].float().log_softmax(-1)
        mask = row["response_mask"].bool()
        segments["new"].append(logits.gather(1, row["responses"][:, None])[:, 0][mask])
        segments["old"].append(row["old_log_probs"][mask])
        segments["advantage"].append(row["advantages"][mask])
        starts = mask & ~torch.cat([torch.tensor([False]), mask[:-1]])
        segments["turn"].append(starts.cumsum(0)[mask] + 1000 * location)
        segments["row"].append(torch.full((int(mask.sum()),), location))
    new, old, advantage, turn, row = (torch.cat(segment) for segment in segments.values())
    loss, _ = policy_loss(new, old, advantage, Layout.of(turn, row), GAGPO)
    loss.backward()
    expected = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    assert update(worker, rows, 2)["grad_norm"][0] == pytest.approx(expected, rel=3e-2)  # verl computes in bf16


def test_rows_of_padding_change_nothing(worker):
    full = update(worker, columns(), 1)["grad_norm"][0]
    padded = update(worker, columns(padding=4), 1)["grad_norm"][0]  # four micro-batches hold nothing else
    assert padded == pytest.approx(full, rel=1e-6)


def test_advantages_are_those_of_our_credit():
    """The estimator as verl calls it: padded columns, rewards per token, groups by name, and rows of padding."""
    responses = torch.tensor([[7, 8, 3, 9, 9], [7, 8, 4, 9, 0], [7, 6, 3, 9, 9], [0, 0, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
    rewards = torch.zeros(4, 5)
    rewards[0, 4] = 1.0
    group = np.array(["a", "a", "a", "a"], dtype=object)
    estimate = core_algos.get_adv_estimator_fn("gagpo")
    token = adapter._responses.set(responses)
    try:
        advantage, returns = estimate(token_level_rewards=rewards, response_mask=mask, index=group, config=None)
    finally:
        adapter._responses.reset(token)
    turns = turns_from_tokens(responses[:3], mask[:3].bool(), rewards[:3], intern(group[:3]))
    expected = torch.zeros(4, 5)
    expected[mask.bool()] = torch.as_tensor(advantages(turns, GAGPO.credit).per_token(), dtype=torch.float32)
    assert torch.equal(advantage, expected) and torch.equal(returns, expected)
    assert advantage[0].abs().max() > 0 and not advantage[3].any()


def test_without_the_mini_batch_there_is_no_loss():
    loss = core_algos.get_policy_loss_fn("gagpo")
    with rejects(InvalidArgument, advice="V1 trainer"):  # no mini-batch is known: no mean over a micro-batch
        loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2), config=None)


def test_weights_of_a_correction_count(worker):
    rows = columns()
    full = update(worker, rows, 8)["grad_norm"][0]
    for row in rows:
        row["rollout_is_weights"] = torch.full_like(row["advantages"], 0.5)
    assert update(worker, rows, 2)["grad_norm"][0] == pytest.approx(0.5 * full, rel=2e-3)


def test_terms_of_its_own_are_refused():
    with rejects(InvalidArgument, "use_kl_loss", key="kl"):
        register(load("gagpo"))
