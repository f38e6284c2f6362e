"""Export of a trained model: a Hugging Face folder with a model card of its results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gagpo.base import durable
from gagpo.base.errors import GagpoError, first_line
from gagpo.runs.run_folder import RunFolder, named
from gagpo.settings import RunSettings, SettingsError
from gagpo.training.model_card import CARD, model_card

if TYPE_CHECKING:
    from gagpo.agents.exported_template import ExportedTemplate


TEMPLATE = "chat_template.jinja"


def names_a_run(source: str) -> bool:
    """Whether ``source`` names a run: a folder, or ``runs/X@20``, ``runs/X@best``."""
    return Path(source).is_dir() or named(Path(source))[1] is not None


def export(
    source: str, out: Path, adapter: bool = False, trust_remote_code: bool = False, licence: str | None = None
) -> Path:
    """Write the model of ``RUN``, ``RUN@ITERATION`` or ``RUN@best`` to the folder ``out``, whole or not at all.

    The folder holds float32 weights as safetensors with any adapter merged, config, tokenizer, chat template and a
    model card. The template contains the prompt of training; where it cannot, the card says so.

    adapter: write only the adapter instead, in peft's format.
    trust_remote_code: run code that comes with the model or that the run names, such as an environment with
        instructions for the prompt. The run's own setting is ignored: the run folder may come from somebody else.
    licence: identifier of the hub for the model card, such as ``apache-2.0``; by default the base model's.

    Raises:
        SettingsError: there is no such checkpoint or no adapter, or ``out`` exists.
        CheckpointError: the checkpoint is damaged.
    """
    run, which = named(Path(source))
    settings = RunFolder.open(run).stored_settings()
    if out.exists():
        raise SettingsError("exists", where=out, advice="choose a folder that does not exist")
    from gagpo.agents.engines.base import write_stop_tokens
    from gagpo.model import adapters  # torch: slow to import
    from gagpo.model.loading import load_model, load_tokenizer, save
    from gagpo.runs import keeping

    checkpoint = keeping.find_checkpoint(run, which, settings.training)
    if adapter and not adapters.is_adapter(Path(checkpoint.model)):
        raise SettingsError(f"run {run} trains all weights and has no adapter", advice="export it without --adapter")
    tokenizer = load_tokenizer(checkpoint.model, trust_remote_code=trust_remote_code)
    template = _template(run, settings, tokenizer, trust_remote_code)
    card = model_card(run, checkpoint, adapter, licence, template.missing)
    with durable.replacing_folder(out) as folder:
        if adapter:
            shutil.copytree(checkpoint.model, folder, dirs_exist_ok=True)
            _name_base_absolutely(folder / adapters.CONFIG)
        else:
            model = load_model(checkpoint.model, trust_remote_code=trust_remote_code)
            write_stop_tokens(model, tokenizer)
            save(model, tokenizer, folder)
        if template.text is not None:
            (folder / TEMPLATE).write_text(template.text, encoding="utf-8")
        (folder / CARD).write_text(card, encoding="utf-8")
    return out


def _template(run: Path, settings: RunSettings, tokenizer: Any, trust_remote_code: bool) -> ExportedTemplate:
    """The chat template with the prompt of training."""
    from gagpo.agents.exported_template import ExportedTemplate, exported_template
    from gagpo.eval.chat import context_of_run

    try:
        return exported_template(context_of_run(run, settings, tokenizer, trust_remote_code))
    except (GagpoError, OSError) as error:  # an environment that cannot be made here must not prevent an export
        return ExportedTemplate(None, first_line(error, 1000))


def _name_base_absolutely(config: Path) -> None:
    """Let an adapter name its base model's folder so that peft finds it from everywhere; hub names stay.

    Raises: SettingsError if the base is an adapter itself: peft would load the adapter without it.
    """
    from gagpo.model.pretrained import base_of, folder_of

    record = json.loads(config.read_text(encoding="utf-8"))
    name = record["base_model_name_or_path"]
    if base_of(name) != name:
        raise SettingsError(
            f"is an adapter itself, on {base_of(name)}",
            key="--adapter",
            where=name,
            advice="export the run without --adapter",
        )
    base = Path(folder_of(name))
    if base.is_dir():
        record["base_model_name_or_path"] = str(base.resolve())
        config.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
