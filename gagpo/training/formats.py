"""Chooses the number formats of a run when it begins, and says which and why."""

from __future__ import annotations

import functools
from dataclasses import asdict

from gagpo.distributed.ranks import Ranks
from gagpo.model.chosen_format import ChosenFormats, formats_for, native_bfloat16, slowdown
from gagpo.model.loading import width_of
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings
from gagpo.settings.formats import formats_of, is_open
from gagpo.training.events import Event, FormatsChosen, WarningIssued


def choose_formats(folder: RunFolder, ranks: Ranks) -> list[Event]:
    """Replace ``auto`` in the settings of a run that begins; returns what to report.

    All ranks take the first one's choice: machines of different kinds must not compute in different formats.
    """
    settings = folder.settings
    events: list[Event] = []
    if is_open(settings):
        width = functools.partial(width_of, settings.model, settings.revision)
        chosen = ChosenFormats(**ranks.of_first(lambda: asdict(formats_for(settings.device, width()))))
        folder.choose_formats(chosen.training, chosen.sampling)
        events.append(FormatsChosen(str(chosen)))
    if cost := slow_format(settings):
        advice = "remove the key, or set it to float32" if folder.is_new else "a resumed run keeps its format"
        events.append(WarningIssued(f"{cost}; {advice}"))
    return events


def slow_format(settings: RunSettings) -> str:
    """What bfloat16 in the settings costs on a CPU without instructions for it; '' if it costs nothing.

    The settings may say so themselves, or another machine may have chosen it for a run that is resumed here.
    """
    key = next((key for key in ("training.dtype", "engine.dtype") if formats_of(settings)[key] == "bfloat16"), "")
    if not key or not settings.device.startswith("cpu") or native_bfloat16(settings.device)[0]:
        return ""
    return (
        f"{key}=bfloat16 is slow here: {native_bfloat16(settings.device)[1]}, and a bfloat16 product takes "
        f"{slowdown(settings.device):.0f} times as long as a float32 product"
    )
