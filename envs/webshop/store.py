"""A catalogue built once into read-only files that all processes map into memory and share.

A store is a folder, named by what went into it: products one after the other as JSON with an array of offsets, asins
sorted for binary search, the prices that count, goals, their splits, and the search index. It is written to a
temporary folder and renamed, under a lock, so that a half-built store is never seen.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.envs.tasks import Task, TaskSet, UnknownTask
from gagpo.envs.webshop.catalogue import CatalogueError, Product, Sources, read_annotations, read_humans, read_products
from gagpo.envs.webshop.goals import (
    KINDS,
    MOST_GOALS,
    Goal,
    digest_of,
    human_goals,
    price_of,
    product_rng,
    split_goals,
    synthetic_goals,
    without_doubles,
)
from gagpo.envs.webshop.search import IndexBuilder, SearchIndex
from gagpo.envs.webshop.tagger import Tagger, default_tagger

FORMAT = 1
REMEMBERED_PRODUCTS = 2_048
LOCK_TIMEOUT = 3_600.0  # seconds; the full catalogue takes minutes to build

_FIELDS = tuple(Product.__dataclass_fields__)


class UnknownProduct(GagpoError, KeyError):
    """An asin the catalogue does not hold."""

    def __str__(self) -> str:
        return str(self.args[0])


class Store:
    """A built catalogue, opened read-only. Cheap to open; what many processes open exists once in memory."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest: dict[str, Any] = _read_manifest(folder)
        self._products = _Blobs(folder, "products")
        self._asins = _mapped(folder / "asins.npy")
        self._order = _mapped(folder / "order.npy")
        self._prices = _mapped(folder / "prices.npy")
        self._remembered: OrderedDict[int, Product] = OrderedDict()
        self.index = SearchIndex(folder / "index")
        self._goals = {kind: _Blobs(folder, f"goals-{kind}") for kind in KINDS}
        self._goal_numbers: dict[str, dict[str, int]] = {}
        self._tasks: dict[tuple[str, str], TaskSet] = {}

    def __len__(self) -> int:
        return len(self._asins)

    def product(self, number: int) -> Product:
        """The product at ``number`` (0 to ``len(store) - 1``, catalogue order)."""
        product = self._remembered.get(number)
        if product is None:
            product = self._remembered[number] = _unpack(self._products[number])
            if len(self._remembered) > REMEMBERED_PRODUCTS:
                self._remembered.popitem(last=False)
        return product

    def number(self, asin: str) -> int:
        """Where the product is; raises UnknownProduct."""
        key = asin.encode("utf-8", "replace")
        place = int(np.searchsorted(self._asins, key))
        if place == len(self) or self._asins[place] != key:
            raise UnknownProduct(f"{self.folder}: the catalogue has no product {asin[:40]!r}")
        return int(self._order[place])

    def price(self, number: int) -> float:
        """The price in dollars that is held against a budget."""
        return float(self._prices[number])

    def goal(self, task: str) -> Goal:
        """The goal of a task id, of either kind; raises UnknownTask."""
        kind = "human" if task.rpartition("-")[2].startswith("h") else "synthetic"
        if kind not in self._goal_numbers:
            for split in ("train", "validation", "test"):
                self.tasks(kind, split)
        number = self._goal_numbers[kind].get(task)
        if number is None:
            raise UnknownTask(f"{self.folder}: there is no goal {task[:40]!r}")
        values = json.loads(self._goals[kind][number])
        values["attributes"] = tuple(values["attributes"])
        values["options"] = tuple((name, value) for name, value in values["options"])
        return Goal(**values)

    def tasks(self, kind: str, split: str) -> TaskSet:
        """The tasks of one split of one kind of goals."""
        if (kind, split) not in self._tasks:
            rows = json.loads((self.folder / f"tasks-{kind}.json").read_text(encoding="utf-8"))
            numbers: dict[str, int] = {}
            for name, entries in rows.items():
                first = len(numbers)
                numbers.update((id, first + i) for i, (id, _, _) in enumerate(entries))
                tasks = [Task(id, name, type, digest, str(numbers[id])) for id, type, digest in entries]
                self._tasks[kind, name] = TaskSet(name, tasks, self._advice(kind))
            self._goal_numbers[kind] = numbers
        return self._tasks[kind, split]

    def _advice(self, kind: str) -> str:
        return f"The catalogue {self.manifest['sources']} yields {self.manifest['goals'][kind]} {kind} goals."


@functools.cache
def open_store(folder: Path) -> Store:
    """The store in ``folder``; environments of one process share it."""
    return Store(folder)


def store_for(sources: Sources, root: Path, seed: int = 0, tagger: Tagger | None = None) -> Path:
    """The folder of the store built from ``sources`` below ``root``; it is built if it is not there.

    Files count as the same while path, size and time of change are; what was in them is hashed while building. Other
    processes that want the same store wait for the one that builds it. Raises CatalogueError for bad data and
    TimeoutError when another process holds the lock for an hour.
    """
    tagger = tagger or default_tagger()
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources.paths]
    key = hashlib.sha256(json.dumps([FORMAT, seed, tagger.name, stamps]).encode()).hexdigest()[:16]
    folder = root / f"store-{key}"
    if not (folder / "manifest.json").is_file():
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"store-{key}.lock", LOCK_TIMEOUT):
            if not (folder / "manifest.json").is_file():
                with fresh_folder(folder) as unfinished:
                    _build(unfinished, sources, seed, tagger)
    return folder


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder`` that takes its place when the block ends well, and vanishes otherwise."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        if folder.exists():
            shutil.rmtree(folder)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _build(folder: Path, sources: Sources, seed: int, tagger: Tagger) -> None:
    counts: Counter[str] = Counter()
    annotations = read_annotations(sources.attributes)
    humans = read_humans(sources.humans) if sources.humans else {}
    goals: dict[str, list[Goal]] = {kind: [] for kind in KINDS}
    asins: list[str] = []
    prices: list[float] = []
    index = IndexBuilder()
    content = hashlib.sha256(json.dumps([FORMAT, seed, tagger.name]).encode())
    with _BlobWriter(folder, "products") as writer:
        for product in _tagged(read_products(sources.products, annotations, counts), tagger):
            blob = _pack(product)
            content.update(blob)
            writer.add(blob)
            asins.append(product.asin)
            index.add(searched_text(product))
            rng = product_rng(product.asin, seed)
            price = price_of(product, rng)
            prices.append(price)
            annotation = annotations.get(product.asin)
            if annotation and annotation.instruction:
                if annotation.instruction.attributes:
                    goals["synthetic"] += synthetic_goals(product, annotation.instruction, price, rng, counts)
                else:
                    counts["instructions_without_attributes"] += 1
            # A generator of its own: whether a catalogue also has synthetic instructions must not change human goals.
            human_rng = product_rng(f"{product.asin}:human", seed)
            goals["human"] += human_goals(product, humans.get(product.asin, ()), price, human_rng)
            for kind in KINDS:
                # Published product files are in random order, so that the first goals are a fair sample.
                counts["goals_too_many"] += len(goals[kind][MOST_GOALS:])
                del goals[kind][MOST_GOALS:]
    if not asins:
        raise CatalogueError(f"{sources.products}: holds no usable product (left out: {dict(counts) or 'none'})")
    for path, named in ((sources.attributes, annotations), (sources.humans, humans)):
        if named and not named.keys() & set(asins):
            raise CatalogueError(f"{path}: names no product of {sources.products.name}; were two data sets mixed up?")
    index.save(folder / "index")
    _write_asins(folder, asins)
    np.save(folder / "prices.npy", np.array(prices, np.float64))
    numbers = {}
    for kind in KINDS:
        kept = without_doubles(goals[kind], counts)
        numbers[kind] = len(kept)
        _write_goals(folder, kind, split_goals(kept), content.hexdigest())
    manifest = {
        "format": FORMAT,
        "products": len(asins),
        "goals": numbers,
        "tagger": tagger.name,
        "seed": seed,
        "content": content.hexdigest(),
        "sources": str(sources.products),
        "left_out": {what: number for what, number in counts.items() if number},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def searched_text(product: Product) -> str:
    """What the search sees of a product: title, description, first feature and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.title, product.description, *product.bullets[:1], options)).lower()


def _tagged(products: Iterator[Product], tagger: Tagger) -> Iterator[Product]:
    while batch := [product for _, product in zip(range(1_024), products, strict=False)]:
        for product, nouns in zip(batch, tagger.nouns(product.title for product in batch), strict=True):
            yield replace(product, nouns=nouns)


def _pack(product: Product) -> bytes:
    return json.dumps([getattr(product, name) for name in _FIELDS], ensure_ascii=False).encode()


def _unpack(blob: str) -> Product:
    values = dict(zip(_FIELDS, json.loads(blob), strict=True))
    for name in ("bullets", "prices", "attributes", "nouns"):
        values[name] = tuple(values[name])
    values["options"] = {name: tuple(choices) for name, choices in values["options"].items()}
    return Product(**values)


def _write_asins(folder: Path, asins: list[str]) -> None:
    encoded = np.array([asin.encode() for asin in asins])
    order = np.argsort(encoded, kind="stable")
    np.save(folder / "asins.npy", encoded[order])
    np.save(folder / "order.npy", order.astype(np.int64))


def _write_goals(folder: Path, kind: str, splits: dict[str, list[Goal]], catalogue: str) -> None:
    with _BlobWriter(folder, f"goals-{kind}") as writer:
        rows: dict[str, list[list[str]]] = {}
        for split, goals in splits.items():
            rows[split] = []
            for goal in goals:
                goal = replace(goal, digest=digest_of(goal, catalogue))
                writer.add(json.dumps(goal.__dict__, ensure_ascii=False).encode())
                rows[split].append([goal.id, goal.type, goal.digest])
    (folder / f"tasks-{kind}.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        size = (folder / "products.bin").stat().st_size
        if manifest["format"] != FORMAT or size != int(np.load(folder / "products.npy", mmap_mode="r")[-1]):
            raise InvalidArgument("another format or size")
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CatalogueError(f"{folder}: not a usable store ({error}); delete it and it is built anew") from None
    return manifest


def _mapped(path: Path) -> np.ndarray:
    # asarray: the same mapped pages without numpy.memmap's own slow indexing.
    return np.asarray(np.load(path, mmap_mode="r"))


class _BlobWriter:
    """Byte strings one after the other in ``<name>.bin``, their offsets in ``<name>.npy``."""

    def __init__(self, folder: Path, name: str):
        self._path = folder / f"{name}.npy"
        self._file = (folder / f"{name}.bin").open("wb")
        self._offsets = [0]

    def __enter__(self) -> _BlobWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        np.save(self._path, np.array(self._offsets, np.int64))

    def add(self, blob: bytes) -> None:
        self._file.write(blob)
        self._offsets.append(self._offsets[-1] + len(blob))


class _Blobs:
    """What :class:`_BlobWriter` wrote, mapped into memory."""

    def __init__(self, folder: Path, name: str):
        self._offsets = _mapped(folder / f"{name}.npy")
        with (folder / f"{name}.bin").open("rb") as file:
            # An empty file cannot be mapped.
            self._data: mmap.mmap | bytes = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._offsets[-1] else b""
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._data[self._offsets[number] : self._offsets[number + 1]].decode()
