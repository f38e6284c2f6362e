"""Tables of Hugging Face data sets, from the cache or the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gagpo.base.hub import reachable
from gagpo.base.row_files import DataMissing, single_line


def hub_tables(path: str, config: str | None) -> Mapping[str, Any]:
    """The tables of a data set by split name, from the cache or else downloaded."""
    try:
        import datasets
    except ImportError:
        raise DataMissing(
            f"reading {path} needs the datasets package", advice="pip install -c constraints.txt -e '.[data]'"
        ) from None
    was_offline = datasets.config.HF_HUB_OFFLINE
    verbosity = datasets.logging.get_verbosity()
    # The cache first: no waiting for the network, and the same rows as last time.
    for offline in (True, False):
        if not offline and (was_offline or not reachable(datasets.config.HF_ENDPOINT)):
            if was_offline:
                reason = "offline mode is set"
            else:
                reason = f"no connection to {datasets.config.HF_ENDPOINT}"
            break
        datasets.config.HF_HUB_OFFLINE = offline
        datasets.logging.set_verbosity_error()  # else it warns that it uses its cache
        try:
            return dict(datasets.load_dataset(path, config))
        except Exception as error:  # the library raises errors of a dozen unrelated classes here
            reason = single_line(error, 160)
        finally:
            datasets.config.HF_HUB_OFFLINE = was_offline
            datasets.logging.set_verbosity(verbosity)
    arguments = f"'{path}'" + (f", '{config}'" if config else "")
    raise DataMissing(
        f"data set {path} is not on this machine and could not be downloaded ({reason})",
        advice=(
            f'with a network connection, run: python -c "from datasets import load_dataset; load_dataset({arguments})"'
        ),
    )


def saved_tables(folder: Path) -> Mapping[str, Any] | None:
    """The tables of a folder that ``save_to_disk`` wrote, by split name; None for another folder.

    Raises: DataMissing for a damaged folder, or without the package that reads it.
    """
    if not any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return None
    try:
        import datasets
    except ImportError:
        raise DataMissing(
            f"reading {folder} needs the datasets package", advice="pip install -c constraints.txt -e '.[data]'"
        ) from None
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises errors of a dozen unrelated classes here
        raise DataMissing(f"not a data set that save_to_disk wrote ({single_line(error, 160)})", where=folder) from None
    return dict(saved) if isinstance(saved, dict) else {"train": saved}
