"""Weights that are read in slices: a model without weights is sharded, then each rank reads its shards from the files.

A whole model in each process would take as much host memory as there are ranks on a machine, and would have to fit one
GPU before it is divided. Slices are read by safetensors itself: a rank needs no word from the others, and no more
memory than one slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from gagpo.base.errors import first_line
from gagpo.base.memory import freed_at_once
from gagpo.model import adapters
from gagpo.model.dtypes import bound_kernels, dtype_of
from gagpo.model.loading import ModelError, available_name, choose_path, commit_of, require_finite, with_attention
from gagpo.model.sharding import with_gathered_weights
from gagpo.model.starters import find, is_starter
from gagpo.model.weights import NamedTensor, copy_tensors

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_FILES = "_gagpo_weight_files"

Shard = tuple[Tensor, tuple[int, ...]]
"""A tensor or this rank's shard of it, and its first index in each dimension of the whole tensor."""


@dataclass(frozen=True)
class StoredTensors:
    """The safetensors files of a model.

    name: of the model, for errors.
    paths: the file of each tensor.
    """

    name: str
    paths: Mapping[str, Path]

    def read(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill tensors by their names in the files: of a sharded one this rank's shard, converted to its format.

        Raises: ModelError for a file that cannot be read.
        """
        self._fill({name: _shard_of(tensor) for name, tensor in tensors.items()})

    def host_shards(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """This rank's shards of tensors like these, in host memory. Raises: ModelError as :meth:`read`."""
        shards = {name: _shard_of(tensor) for name, tensor in tensors.items()}
        on_host = {name: (torch.empty_like(shard, device="cpu"), offset) for name, (shard, offset) in shards.items()}
        self._fill(on_host)
        return [shard for shard, _ in on_host.values()]

    def tensors(self, names: Iterable[str]) -> Iterator[NamedTensor]:
        """The tensors of these names, one in memory at a time."""
        for name in names:
            with safe_open(self.paths[name], framework="pt") as file:
                yield name, file.get_tensor(name)

    @torch.no_grad()
    def _fill(self, shards: Mapping[str, Shard]) -> None:
        missing = sorted(shards.keys() - self.paths.keys())
        if missing:
            raise ModelError(f"has no tensor {missing[0]!r}", where=self.name)
        for path in sorted({self.paths[name] for name in shards}):
            try:
                with safe_open(path, framework="pt") as file:
                    for name, (shard, offset) in shards.items():
                        if self.paths[name] == path and shard.numel():  # none where there are more ranks than rows
                            ends = zip(offset, shard.shape, strict=True)
                            stored = file.get_slice(name)[tuple(slice(begin, begin + size) for begin, size in ends)]
                            shard.copy_(stored)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"cannot be read: {first_line(error)}", where=path) from None


def _shard_of(tensor: Tensor) -> Shard:
    """What this rank holds of a tensor, and where it begins in the whole tensor."""
    if not isinstance(tensor, DTensor):
        return tensor, (0,) * tensor.dim()
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local().detach(), offset


def empty_model(
    name: str, dtype: str = "float32", *, trust_remote_code: bool = False, revision: str | None = None
) -> torch.nn.Module | None:
    """The model that :func:`gagpo.model.loading.load_model` loads, with its parameters on the device ``meta``.

    Buffers are real: they are computed when a model is built, and no file has them. :func:`read_shards` gives it
    weights.

    Returns None where files must be read whole: for a merged adapter, for files in other formats than safetensors, and
    for tensors that transformers renames, splits or converts.

    Raises: ModelError as ``load_model``.
    """
    bound_kernels()
    if is_starter(name) and find(name).base is not None:
        return None
    resolved = available_name(name, revision, trust_remote_code)
    if resolved is None:
        return None
    files = files_of(resolved, revision)
    model = _built(resolved, dtype, trust_remote_code, revision)
    if not files.paths or model is None or not _holds(files, model):
        return None
    # Buffers in the files are small, and each rank needs them whole.
    files.read({key: tensor for key, tensor in model.state_dict(keep_vars=True).items() if not tensor.is_meta})
    if not Path(resolved).is_dir():
        model.config._commit_hash = commit_of(resolved, revision)
    setattr(model, _FILES, files)
    empty: torch.nn.Module = model.eval()
    return empty


def _built(name: str, dtype: str, trust_remote_code: bool, revision: str | None) -> Any:
    """The model of a config without weights; None if transformers would change the tensors of its files."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.conversion_mapping import get_model_conversion_mapping

    source: dict[str, Any] = {
        "local_files_only": Path(name).is_dir(),
        "trust_remote_code": trust_remote_code,
        "revision": revision or "main",
    }
    try:
        config = AutoConfig.from_pretrained(name, **source)
        if getattr(config, "quantization_config", None) is not None:
            return None

        def build(implementation: str) -> Any:
            return AutoModelForCausalLM.from_config(
                config, dtype=dtype_of(dtype), attn_implementation=implementation, trust_remote_code=trust_remote_code
            )

        with _parameters_on_meta():
            model = with_attention(build)
        if get_model_conversion_mapping(model, add_legacy=False):
            return None
        if dtype != "float32" and getattr(model, "_keep_in_fp32_modules_strict", None):
            return None  # these stay in float32, by rules of transformers' own
        with suppress(OSError):  # the file is optional
            model.generation_config = GenerationConfig.from_pretrained(name, **source)
        return model
    except Exception:  # a damaged config fails anywhere in transformers; reading the files whole says how
        return None


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """A context in which modules make their parameters on the device ``meta``, where they take no memory.

    ``torch.device("meta")`` would do the same to buffers, such as the frequencies of rotary embeddings, whose numbers
    no file has.
    """
    register = torch.nn.Module.register_parameter

    def register_on_meta(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _holds(files: StoredTensors, model: torch.nn.Module) -> bool:
    """Whether the files hold each of the model's tensors once, in its shape, and nothing else."""
    expected: dict[str, Tensor] = {}
    counted: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in counted:  # tied tensors are stored under their first name
            counted.add(id(tensor))
            expected[name] = tensor
    if expected.keys() != files.paths.keys():
        return False
    for path in set(files.paths.values()):
        with safe_open(path, framework="pt") as file:
            for name, holder in files.paths.items():
                if holder == path and tuple(file.get_slice(name).get_shape()) != tuple(expected[name].shape):
                    return False
    return True


def files_of(name: str, revision: str | None = None) -> StoredTensors:
    """The safetensors files of a folder or a hub name; without tensors if none can be read."""
    from transformers.utils.hub import cached_file, get_checkpoint_shard_files

    # Only the files that transformers would read: a repository may have others next to them.
    where: dict[str, Any] = {"revision": revision or "main", "local_files_only": Path(name).is_dir()}
    try:
        single = cached_file(name, SINGLE, _raise_exceptions_for_missing_entries=False, **where)
        paths = [single] if single else []
        if not paths:
            index = cached_file(name, INDEX, _raise_exceptions_for_missing_entries=False, **where)
            paths = get_checkpoint_shard_files(name, index, **where)[0] if index else []
        tensors: dict[str, Path] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                tensors |= dict.fromkeys(file.keys(), Path(path))
    except Exception:  # damaged files fail anywhere; reading them whole says how
        return StoredTensors(name, {})
    return StoredTensors(name, tensors)


def unread_files(model: torch.nn.Module) -> StoredTensors | None:
    """The files of a model of :func:`empty_model`; None for a model with weights."""
    files: StoredTensors | None = getattr(model, _FILES, None)
    return files


@contextmanager
def stand_ins(model: torch.nn.Module) -> Iterator[None]:
    """A context in which empty parameters are on the host, each one number repeated.

    peft makes an adapter on the device of its layer. On ``meta`` its initial numbers would be lost.
    """
    empty = [parameter for parameter in model.parameters() if parameter.is_meta]
    shapes = [parameter.data for parameter in empty]
    for parameter in empty:
        # ``data`` does not change a tensor's device: the objects themselves trade places.
        host = torch.nn.Parameter(torch.zeros((), dtype=parameter.dtype).expand(parameter.shape))
        torch.utils.swap_tensors(parameter, host)
    try:
        yield
    finally:
        for parameter, meta in zip(empty, shapes, strict=True):
            torch.utils.swap_tensors(parameter, torch.nn.Parameter(meta, parameter.requires_grad))


@freed_at_once()
def read_shards(model: torch.nn.Module, device: torch.device) -> None:
    """Give a sharded model of :func:`empty_model` its weights, and check it as every model that is loaded.

    All ranks call it together: the check gathers weights.

    device: of the shards.
    Raises: ModelError for damaged weights, and for a model whose log-probabilities neither attention gives.
    """
    files = unread_files(model)
    if files is None:
        return
    for parameter in model.parameters():
        if parameter.is_meta:
            torch.utils.swap_tensors(parameter, _allocated(parameter, device))
    files.read(dict(adapters.base_tensors(model)))
    delattr(model, _FILES)
    require_finite(files.name, model)
    with torch.no_grad():
        with_gathered_weights(model, lambda: choose_path(files.name, model))


def _allocated(parameter: torch.nn.Parameter, device: torch.device) -> torch.nn.Parameter:
    """A parameter like one on ``meta``, with memory for this rank's shard alone.

    Its numbers are arbitrary: callers fill all of them, and a tensor that the files lack is an error.
    """
    # Of a DTensor this allocates the shard, on ``device`` even if the mesh is of GPUs: ``DTensor.from_local`` would
    # move the shard of an offloaded model to a GPU.
    return torch.nn.Parameter(torch.empty_like(parameter.detach(), device=device), parameter.requires_grad)


def follow_attention(copied: torch.nn.Module, policy: torch.nn.Module) -> None:
    """Give a copy, made before the policy was checked, the attention that the check chose."""
    implementation = policy.config._attn_implementation  # type: ignore[union-attr]
    if implementation != copied.config._attn_implementation:  # type: ignore[union-attr]
        copied.set_attn_implementation(implementation)  # type: ignore[operator]


@freed_at_once()
def fill_copy(copied: torch.nn.Module, tensors: Iterable[NamedTensor], device: torch.device) -> None:
    """Give a copy of a model of :func:`empty_model` memory on ``device``, and these weights."""
    for parameter in copied.parameters():  # all of them are on ``meta``
        torch.utils.swap_tensors(parameter, _allocated(parameter, device))
    copied.to(device)  # its buffers
    copy_tensors(copied, tensors)
