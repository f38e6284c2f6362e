"""AdamW with moments of one byte, by bitsandbytes, over whole parameters or over the parts that ranks hold of them.

bitsandbytes knows no sharded tensors: it is given each rank's part as a tensor of its own, which shares its memory with
the sharded parameter. A part is quantised in blocks of 256 numbers that lie in it, so a block never crosses two ranks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from gagpo.distributed.states import MOMENTS, STEP, StateError

Group = dict[str, Any]

BLOCK = 256  # numbers that share a scale
SMALLEST = 4096  # numbers of a parameter whose moments are in 8 bits
CODES, SCALES = ("codes1", "codes2"), ("scales1", "scales2")
_STATES, _ABSMAX, _MAPS = ("state1", "state2"), ("absmax1", "absmax2"), ("qmap1", "qmap2")


class AdamW8bit(torch.optim.Optimizer):
    """AdamW in 8 bits over ``groups``; the moments of ``exact`` parameters (by id) and of small ones are float32.

    Which they are goes by whole parameters, so that it is the same on any number of ranks. ``state`` holds
    bitsandbytes' own state of this rank's part of each parameter. paged: moments leave a full card for the host.
    """

    def __init__(self, groups: list[Group], exact: set[int], paged: bool, **options: Any):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about kernels of its own that are not used here
            import bitsandbytes

        super().__init__(groups, options)
        self._functions: Any = bitsandbytes.functional
        own = [{**group, "params": [_part_of(p) for p in group["params"]]} for group in self.param_groups]
        kind: Any = getattr(bitsandbytes.optim, "PagedAdamW8bit" if paged else "AdamW8bit")
        self._inner: Any = kind(own, **options)
        self._place = {
            p: (number, index)
            for number, group in enumerate(self.param_groups)
            for index, p in enumerate(group["params"])
        }
        self._rounded = {p: id(p) not in exact and p.numel() >= SMALLEST for p in self._place}
        usual = self._inner.get_config
        given = {place: self._rounded[p] for p, place in self._place.items()}

        def config_of(group_index: int, index: int, group: Group) -> Group:
            # The library's own register of exceptions goes by places, for all optimisers at once.
            bits = {"min_8bit_size": 0} if given[group_index, index] else {"optim_bits": 32}
            return {**usual(group_index, index, group), **bits}

        self._inner.get_config = config_of

    @property
    def parts(self) -> int:
        """In how many parts the moments are, of which this process holds one."""
        first = next(iter(self._place))
        return _ranks_of(first)[1]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every part that has a gradient."""
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update({key: value for key, value in group.items() if key != "params"})
            for p, part in zip(group["params"], inner["params"], strict=True):
                if isinstance(p, DTensor):
                    part.data = p.to_local()
                    part.grad = p.grad.to_local() if p.grad is not None and part.numel() else None  # type: ignore[attr-defined]
        self._inner.step()
        for p in self._place:
            part = self._part(p)
            if isinstance(p, DTensor) and p.grad is not None and not part.numel():  # nothing of it is here
                self._begun(p)["step"] += 1
            if isinstance(p, DTensor):
                part.grad = None
            if part in self._inner.state:
                self.state[p] = self._inner.state[part]

    def state_dict(self) -> dict[str, Any]:
        """bitsandbytes' own, of this rank's parts."""
        found: dict[str, Any] = self._inner.state_dict()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a :meth:`state_dict` of one process, as checkpoints of earlier versions hold it."""
        if self.parts > 1:
            raise StateError(
                "these moments in 8 bits were written by an earlier version, for one process: go on with processes=1, "
                "whose next checkpoint any number of processes can read"
            )
        self._inner.load_state_dict(state_dict)
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            group.update({key: value for key, value in inner.items() if key != "params"})
        for p in self._place:
            if self._part(p) in self._inner.state:
                self.state[p] = self._inner.state[self._part(p)]

    def _part(self, p: Tensor) -> Tensor:
        number, index = self._place[p]
        part: Tensor = self._inner.param_groups[number]["params"][index]
        return part

    def _begun(self, p: Tensor) -> dict[str, Any]:
        """The state of a parameter's part, made where there is none yet."""
        part, (number, index) = self._part(p), self._place[p]
        if part not in self._inner.state or not self._inner.state[part]:
            self._inner.init_state(self._inner.param_groups[number], part, number, index)
        found: dict[str, Any] = self._inner.state[part]
        self.state[p] = found
        return found

    # As named tensors (gagpo.distributed.states.NamedStates) ----------------------------------------------------------

    def tensors_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state as a checkpoint holds it: codes shaped like the parameter, and a row of scales for each rank."""
        state = self.state.get(parameter)
        if not state:
            return {}
        found = {STEP: torch.tensor(float(state["step"]))}
        if not self._rounded[parameter]:
            return found | {key: _like(parameter, state[own]) for key, own in zip(MOMENTS, _STATES, strict=True)}
        found |= {key: _like(parameter, state[own]) for key, own in zip(CODES, _STATES, strict=True)}
        return found | {key: _row(parameter, state[own]) for key, own in zip(SCALES, _ABSMAX, strict=True)}

    def wanted_of(self, parameter: Tensor, stored: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Tensors for a stored state to be read into; empty where there is none."""
        if STEP not in stored:
            return {}
        wanted = {STEP: torch.zeros((), dtype=torch.float32)}
        if not self._rounded[parameter]:
            return wanted | {key: torch.zeros_like(parameter.detach()) for key in MOMENTS}
        wanted |= {key: torch.zeros_like(parameter.detach(), dtype=torch.uint8) for key in CODES}
        return wanted | {key: torch.zeros(stored[key]) for key in SCALES if key in stored}

    @torch.no_grad()
    def take(self, parameter: Tensor, found: Mapping[str, Tensor]) -> None:
        """Take up what was read; bit for bit where as many ranks wrote it, and else rounded in the new blocks."""
        state = self._begun(parameter)
        state["step"] = int(found[STEP])
        if not self._rounded[parameter]:
            for key, own in zip(MOMENTS, _STATES, strict=True):
                state[own].copy_(_local(found[key]))
            return
        for code, scale, own, absmax, values in zip(CODES, SCALES, _STATES, _ABSMAX, _MAPS, strict=True):
            codes, scales = _local(found[code]), found[scale].to(state[absmax].device)
            if len(scales) == _ranks_of(parameter)[1]:
                own_scales = scales[_ranks_of(parameter)[0]][: len(state[absmax])]
            else:
                exact = state[values][codes.long()] * _scale_of_each(parameter, scales).view(codes.shape)
                codes, quantised = self._functions.quantize_blockwise(exact, code=state[values], blocksize=BLOCK)
                own_scales = quantised.absmax
            state[own].copy_(codes)
            state[absmax].copy_(own_scales)


def _part_of(p: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(p.to_local().detach()) if isinstance(p, DTensor) else p  # type: ignore[return-value]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _ranks_of(p: Tensor) -> tuple[int, int]:
    """The rank of this process among those that share a parameter, and how many they are."""
    return (p.device_mesh.get_local_rank(), p.device_mesh.size()) if isinstance(p, DTensor) else (0, 1)


def _like(p: Tensor, part: Tensor) -> Tensor:
    """A part of a tensor shaped like ``p`` as what it is a part of."""
    if not isinstance(p, DTensor):
        return part
    return DTensor.from_local(
        part.detach(), p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
    )


def _most(p: Tensor, ranks: int) -> int:
    """Numbers of the largest part of ``p`` over so many ranks, who share its rows as ``torch.chunk`` does."""
    rows = p.shape[0] if p.ndim else 1
    return -(-rows // ranks) * (p.numel() // max(rows, 1))


def _row(p: Tensor, scales: Tensor) -> Tensor:
    """This rank's row of the scales of all ranks, as long as the longest."""
    ranks = _ranks_of(p)[1]
    row = torch.zeros(1, math.ceil(_most(p, ranks) / BLOCK), device=scales.device)
    row[0, : len(scales)] = scales
    if not isinstance(p, DTensor):
        return row
    shape = torch.Size((ranks, row.shape[1]))
    return DTensor.from_local(row, p.device_mesh, [Shard(0)], run_check=False, shape=shape, stride=(row.shape[1], 1))


def _scale_of_each(p: Tensor, scales: Tensor) -> Tensor:
    """The scale of every number of this rank's part, of which the ranks that wrote ``scales`` had a row each."""
    rank, ranks = _ranks_of(p)
    place = torch.arange(_local(p).numel(), device=scales.device) + rank * _most(p, ranks)
    before = _most(p, len(scales))
    return scales[place // before, place % before // BLOCK]
