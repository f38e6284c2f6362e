"""Low-rank adapters (LoRA, Hu et al. 2021) inside a model: inject, disable, merge, save and load.

An adapted linear layer computes ``W x + (alpha / rank) B A x``. peft's layers are put into the model in place, so its
class and attention stay. B starts at zero. peft's own merge is not used, since it rounds twice in half precision.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from gagpo.base.errors import GagpoError, first_line
from gagpo.model.disk_errors import disk_errors

ALL_LINEAR = "all-linear"
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base.json"  # ours, next to peft's two files
_NAME = "default"  # peft's, of a model's only adapter
PREFIX = "base_model.model."  # of the tensors in peft's files
_PLAIN = {"bias": ("none",), "use_dora": (False,), "use_rslora": (False,), "fan_in_fan_out": (False, True)}
_EMPTY = ("modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "layer_replication")


class AdapterError(GagpoError, ValueError):
    """An adapter cannot be made or used."""


@dataclass(frozen=True)
class Base:
    """The model that an adapter belongs to: folder or hub name, revision of a hub model, and :func:`digest`."""

    model: str
    revision: str | None
    digest: str

    @classmethod
    def of(cls, name: str, model: torch.nn.Module) -> Base:
        return cls(name, getattr(model.config, "_commit_hash", None), digest(model))


def require_peft() -> None:
    """AdapterError unless peft can be imported."""
    if importlib.util.find_spec("peft") is None:
        raise AdapterError(
            "lora needs peft, which is not installed",
            key="lora",
            advice="pip install -c constraints.txt -e '.[lora]', or leave lora out",
        )


def inject(model: Any, rank: int, alpha: float, targets: str | Sequence[str], seed: int = 0) -> None:
    """Put a new adapter into ``model``; only its parameters require gradients then.

    targets: ``all-linear`` (every linear layer but the output layer), or endings of names of linear layers.
    seed: of the initial A.

    Raises: AdapterError if the model has no such layers, naming those it has.
    """
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    if is_adapted(model):
        raise AdapterError("the model has an adapter already", advice="merge it first")
    layers = _target_layers(model, targets)
    transposed = any(isinstance(model.get_submodule(name), Conv1D) for name in layers)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, fan_in_fan_out=transposed)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with _hidden_family(model):
                inject_adapter_in_model(config, model, _NAME)
        except (ValueError, NotImplementedError) as error:
            raise AdapterError(
                f"{type(model).__name__} takes no adapter: {first_line(error)}", advice="leave lora out"
            ) from None
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_of_adapter(name))


class _ProductInFormatOfInput(torch.autograd.Function):
    """``x W^T`` with a frozen matrix W that is stored in another format than x.

    The matrix is converted in both passes. Autograd alone would keep the converted copy of every layer from the forward
    to the backward pass, and the memory that the smaller format saves would be taken again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return torch.nn.functional.linear(x, matrix.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (matrix,) = ctx.saved_tensors
        return gradient @ matrix.to(gradient.dtype), None


def _product(layer: Any, matrix: Tensor, x: Tensor) -> Tensor:
    result: Tensor = _ProductInFormatOfInput.apply(x, matrix)  # type: ignore[no-untyped-call]
    return result if layer.bias is None else result + layer.bias


class _HalfLinear(torch.nn.Linear):
    """A linear layer with a frozen matrix in bfloat16, and inputs in any format."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype or torch.is_autocast_enabled(x.device.type):  # autocast converts the inputs
            return super().forward(x)
        return _product(self, self.weight, x)


class _HalfConv1D(Conv1D):
    """The same for GPT-2's layer, whose matrix is transposed."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype or torch.is_autocast_enabled(x.device.type):
            transposed: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return transposed
        return _product(self, self.weight.t(), x)


def halve_base(model: Any) -> None:
    """Store the frozen matrices of a model with adapter in bfloat16, in place.

    With ``training.dtype: bfloat16`` a linear layer rounds its weights to bfloat16 anyway, so updates are
    bit-identical. Runs are bit-identical if the model was published in bfloat16; otherwise the adapter is merged into
    the rounded weights for sampling. Embeddings, gains and a tied output layer stay in float32. In float32 a layer
    converts its matrix for each product, see
    :class:`_ProductInFormatOfInput`.
    """
    embedded = model.get_input_embeddings().weight
    for layer in model.modules():  # one at a time, so that only one more matrix is held
        linear = isinstance(layer, torch.nn.Linear | Conv1D)
        if linear and not layer.weight.requires_grad and layer.weight is not embedded:
            layer.weight.data = layer.weight.data.to(torch.bfloat16)
            layer.__class__ = _HalfConv1D if isinstance(layer, Conv1D) else _HalfLinear


@contextmanager
def _hidden_family(model: Any) -> Iterator[None]:
    """Hide the model's family from peft, which would take ``gate_proj`` and the like for the weights of all experts.

    It does so for families that once had a linear layer per expert, even for dense layers and shared experts.
    """
    is_instance_attribute = "model_type" in vars(model.config)
    before = model.config.model_type
    model.config.model_type = ""
    try:
        yield
    finally:
        model.config.model_type = before
        if not is_instance_attribute:
            del model.config.model_type


def _target_layers(model: Any, targets: str | Sequence[str]) -> list[str]:
    """Full names of the linear layers that ``targets`` names, in the model's order."""
    out = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not out
    ]
    if targets == ALL_LINEAR and linear:
        return linear
    endings = sorted({name.rpartition(".")[2] for name in linear})
    targets = [targets] if isinstance(targets, str) else list(targets)
    for target in targets or [""]:
        if not any(_matches(name, target) for name in linear):
            raise AdapterError(
                f"lora.targets: {type(model).__name__} has no linear layer {target!r} to adapt",
                key="lora.targets",
                advice=f"choose {ALL_LINEAR} or some of {', '.join(endings) or 'none'}",
            )
    return [name for name in linear if any(_matches(name, target) for target in targets)]


def _matches(name: str, target: str) -> bool:
    return bool(target) and f".{name}".endswith(f".{target}")


def _is_of_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def adapted_layers(model: torch.nn.Module) -> dict[str, Any]:
    """The layers with an adapter, by their names in the model without one."""
    modules = model.named_modules()
    return {name: module for name, module in modules if hasattr(module, "base_layer") and hasattr(module, "lora_A")}


def is_adapted(model: torch.nn.Module) -> bool:
    """Whether the model has an adapter."""
    return bool(adapted_layers(model))


@contextmanager
def disabled(model: torch.nn.Module) -> Iterator[None]:
    """A context in which the model computes without its adapter."""
    layers = list(adapted_layers(model).values())
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def base_tensors(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the model without adapter, once, by its own name."""
    for name, parameter in model.named_parameters():
        if not _is_of_adapter(name):
            yield name.replace(".base_layer.", "."), parameter.detach()


def merged_tensors(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The same with the adapter added to the weights; one sum exists at a time."""
    layers = adapted_layers(model)
    for name, tensor in base_tensors(model):
        owner, _, last = name.rpartition(".")
        yield name, _sum(layers[owner], tensor) if last == "weight" and owner in layers else tensor


@torch.no_grad()
def _sum(layer: Any, weight: Tensor) -> Tensor:
    delta: Tensor = layer.get_delta_weight(_NAME)  # float32, and so is the sum
    return weight + delta


def merge(model: torch.nn.Module) -> torch.nn.Module:
    """Add the adapter to the weights and remove its layers, in place; a model without adapter stays as it is."""
    for name, layer in adapted_layers(model).items():
        plain = layer.get_base_layer()
        plain.weight.data.copy_(_sum(layer, plain.weight.data))
        model.set_submodule(name, plain)
    if hasattr(model, "peft_config"):
        del model.peft_config
    return model.requires_grad_(True)


def digest(model: torch.nn.Module) -> str:
    """SHA-256 over names, shapes and float32 values of the parameters without the adapter."""
    return digest_of(base_tensors(model))


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The :func:`digest` of a model with these parameters, in its order."""
    total = hashlib.sha256()
    for name, tensor in tensors:
        total.update(f"{name} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.float().contiguous().cpu().numpy().data)
    return total.hexdigest()


def adapter_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The adapter's parameters by their names in peft's files."""
    ending = f".{_NAME}.weight"
    return {
        PREFIX + name.removesuffix(ending) + ".weight": parameter
        for name, parameter in model.named_parameters()
        if _is_of_adapter(name)
    }


@dataclass(frozen=True)
class AdapterForm:
    """An adapter without its numbers.

    targets: names of the adapted layers.
    fan_in_fan_out: whether the layers hold their matrices transposed, as GPT-2's do.
    shapes: of the tensors, by their names in peft's files.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    fan_in_fan_out: bool
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: Any) -> AdapterForm | None:
        """The form of a model's adapter; None without one."""
        if not is_adapted(model):
            return None
        config = model.peft_config[_NAME]
        shapes = {name: tuple(parameter.shape) for name, parameter in adapter_parameters(model).items()}
        return cls(config.r, config.lora_alpha, tuple(config.target_modules), config.fan_in_fan_out, shapes)

    def write_config(self, folder: Path, targets: Sequence[str], base: Base | None = None) -> None:
        """Write peft's config of the adapter, with its keys always in the same order."""
        record = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base and base.model,
            "revision": base and base.revision,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": self.fan_in_fan_out,
            "target_modules": list(targets),
            "inference_mode": True,
        }
        (folder / CONFIG).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def write_for_engine(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write an adapter that an engine loads next to a base that it holds already.

        Engines compare the last part of a layer's name with the targets; the tensors say which layers have an adapter.
        """
        self.write_config(folder, sorted({target.rpartition(".")[2] for target in self.targets}))
        content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        _write_weights(content, folder)


def save(model: Any, base: Base, folder: Path, tensors: dict[str, Tensor] | None = None) -> None:
    """Write the adapter as peft does, and ``base.json`` with the model that it belongs to.

    tensors: written instead of the parameters, by the names of :func:`adapter_parameters`.
    """
    adapter_form = AdapterForm.of(model)
    assert adapter_form is not None
    if tensors is None:
        tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in adapter_parameters(model).items()}
    write(adapter_form, base, folder, tensors)


def write(form: AdapterForm, base: Base, folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write an adapter of the given form and tensors, as :func:`save` does."""
    folder.mkdir(parents=True, exist_ok=True)
    form.write_config(folder, sorted(form.targets), base)
    (folder / BASE).write_text(json.dumps(asdict(base), indent=1) + "\n", encoding="utf-8")
    _write_weights(tensors, folder)


def _write_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    with disk_errors(folder / WEIGHTS):
        save_file(dict(tensors), str(folder / WEIGHTS), metadata={"format": "pt"})


@torch.no_grad()
def load(model: torch.nn.Module, folder: Path, base: Base | None = None) -> None:
    """Fill the adapter of ``model`` from ``folder``.

    base: of the model, if known already.

    Raises: AdapterError for tensors of another model, and for an adapter that was made on other weights.
    """
    expected = digest_of_base(folder)
    if expected is not None and expected != (base.digest if base else digest(model)):
        raise AdapterError(f"the adapter in {folder} was made on other weights than those of its base model now")
    path = folder / WEIGHTS
    tensors = tensors_of(path)
    parameters = adapter_parameters(model)
    different = sorted(parameters.keys() ^ tensors.keys())
    if different:
        fault = "missing" if different[0] in parameters else "not of this model"
        raise AdapterError(f"tensor {different[0]!r} is {fault}", where=path)
    for name, parameter in parameters.items():
        if tensors[name].shape != parameter.shape:
            shape = tuple(parameter.shape)
            raise AdapterError(f"tensor {name!r} has shape {tuple(tensors[name].shape)}, not {shape}", where=path)
        if not bool(torch.isfinite(tensors[name]).all()):
            raise AdapterError(f"tensor {name!r} is not finite", where=path)
        parameter.copy_(tensors[name])


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter rather than a model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").exists()


def base_of(folder: Path) -> tuple[str, str | None]:
    """Name and revision of an adapter's base model. Raises: AdapterError if the folder names none."""
    config = _read(folder / CONFIG)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(name, str) or not name or not isinstance(revision, str | None):
        raise AdapterError(
            "does not name its base model (base_model_name_or_path)",
            key="base_model_name_or_path",
            where=folder / CONFIG,
        )
    if is_adapter(Path(name)):
        raise AdapterError(
            f"the base of {folder} is an adapter itself ({name})", advice="merge that first: gagpo export RUN FOLDER"
        )
    return name, revision


class PlainLora(NamedTuple):
    """What an adapter's config says: ``W x + (alpha / rank) B A x`` in the layers that ``targets`` names."""

    rank: int
    alpha: float
    targets: str | list[str]
    fan_in_fan_out: bool


def config_of(folder: Path) -> PlainLora:
    """The config of the adapter in ``folder``. Raises: AdapterError for anything but plain LoRA."""
    path = folder / CONFIG
    config = _read(path)
    unsupported = [key for key, allowed in _PLAIN.items() if config.get(key, allowed[0]) not in allowed]
    unsupported += [key for key in _EMPTY if config.get(key)]
    if config.get("peft_type") != "LORA" or unsupported:
        key = unsupported[0] if unsupported else "peft_type"
        raise AdapterError(f"is not a plain LoRA adapter ({key})", where=path, advice="merge it with peft")
    rank = config.get("r")
    alpha = config.get("lora_alpha")
    targets = config.get("target_modules")
    is_list_of_names = isinstance(targets, list) and all(isinstance(target, str) for target in targets)
    has_targets = isinstance(targets, str) or is_list_of_names
    if not isinstance(rank, int) or not 1 <= rank <= 2**16 or not isinstance(alpha, int | float) or not has_targets:
        raise AdapterError("r, lora_alpha or target_modules has a value that peft does not write", where=path)
    return PlainLora(rank, alpha, targets, bool(config.get("fan_in_fan_out")))  # type: ignore[arg-type]


def read_into(model: torch.nn.Module, folder: Path) -> None:
    """Inject and load the adapter of ``folder``. Raises: AdapterError for anything but plain LoRA."""
    config = config_of(folder)
    inject(model, config.rank, config.alpha, config.targets)
    load(model, folder)


def digest_of_base(folder: Path) -> str | None:
    """The :func:`digest` of the model that the adapter in ``folder`` was made on; None if it does not say."""
    return _read(folder / BASE).get("digest") if (folder / BASE).exists() else None


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of an adapter's file, by their names in peft's files. Raises: AdapterError if it cannot be read."""
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"cannot be read: {first_line(error)}", where=path) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"cannot be read: {error}", where=path) from None
    return record
