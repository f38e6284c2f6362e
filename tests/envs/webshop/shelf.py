"""Data files and stores for the WebShop tests."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gagpo.envs.webshop.catalogue import find_sources
from gagpo.envs.webshop.generate import generated_folder
from gagpo.envs.webshop.store import Store, open_store, store_for
from gagpo.envs.webshop.tagger import RuleTagger


def row(asin: str, name: str = "red cotton shirt", **fields: Any) -> dict[str, Any]:
    """A product row in the published form."""
    return {
        "asin": asin,
        "name": name,
        "category": "fashion",
        "query": "shirt",
        "product_category": "Clothing › Tops › Shirts",
        "full_description": "A shirt.",
        "small_description": ["Soft"],
        "pricing": "$10.00",
        "customization_options": None,
        "images": ["https://images.invalid/a.jpg"],
        **fields,
    }


def options(**values: list[str]) -> dict[str, Any]:
    """``customization_options`` in the published form."""
    return {name: [{"value": value, "image": None} for value in choices] for name, choices in values.items()}


def write_files(folder: Path, rows: Any, attributes: Any = None, humans: Any = None) -> Path:
    """The data files; by default every product has the attribute ``soft`` and asks for it."""
    folder.mkdir(parents=True, exist_ok=True)
    if attributes is None:
        attributes = {
            str(r["asin"]): {
                "attributes": ["soft"],
                "instruction": f"find me a {r['name']}",
                "instruction_attributes": ["soft"],
            }
            for r in rows
        }
    (folder / "items_shuffle.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "items_ins_v2.json").write_text(json.dumps(attributes), encoding="utf-8")
    if humans is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(humans), encoding="utf-8")
    return folder


def run_script(script: str, *arguments: object) -> str:
    """The standard output of a script in a new interpreter."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def build(folder: Path, rows: Any, attributes: Any = None, humans: Any = None) -> Store:
    """A store of ``rows``, always with the rule tagger."""
    data = write_files(folder / "data", rows, attributes, humans)
    return Store(store_for(find_sources(data), folder / "stores", tagger=RuleTagger()))


@functools.cache
def shared_root() -> Path:
    """A folder for ``$GAGPO_DATA`` that the whole test run shares and that goes away with it."""
    root = Path(tempfile.mkdtemp(prefix="webshop-tests-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def generated_store() -> Store:
    """The store of the default generated catalogue, the one environments open when ``$GAGPO_DATA`` is shared_root()."""
    root = shared_root() / "webshop"
    return open_store(store_for(find_sources(generated_folder(root)), root))
