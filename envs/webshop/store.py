"""A catalogue, built once into read-only files that all processes map into memory and share.

A store is a folder named by a hash of its inputs. It holds the products as JSON with an array of offsets, the sorted
asins for binary search, the prices, the goals and their splits, and the search index. It is written to a temporary
folder and renamed, under a lock, so a half-built store is never visible. The manifest lists the size and hash of every
file; a damaged store is rejected when it is opened.

Texts are stored as in the data files. A store opened with ``exact`` returns them unchanged and lists the goals of the
published environment. Otherwise texts are cleaned, and goals that cannot be reached are left out.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gagpo.base import durable, lock
from gagpo.base.errors import GagpoError
from gagpo.envs.tasks import Task, TaskSet, UnknownTask
from gagpo.envs.webshop.catalogue import (
    Annotation,
    Instruction,
    Product,
    Sources,
    read_annotations,
    read_humans,
    read_products,
)
from gagpo.envs.webshop.goals import (
    KINDS,
    MAX_GOALS,
    Goal,
    digest_of,
    human_goals,
    price_of,
    product_rng,
    solvable_goals,
    split_goals,
    synthetic_goals,
)
from gagpo.envs.webshop.published import Labels
from gagpo.envs.webshop.reward import is_solvable
from gagpo.envs.webshop.rows import CatalogueError
from gagpo.envs.webshop.search import IndexBuilder, SearchIndex, searched_text
from gagpo.envs.webshop.tagger import Tagger, default_tagger

FORMAT = 2  # part of the folder's name: another version never opens these files
CACHED_PRODUCTS = 2_048
MAX_HASHED = 512 << 20  # bytes; of a larger store only the file sizes are compared, because hashing it takes seconds
LOCK_TIMEOUT = 3_600.0  # seconds; the full catalogue takes minutes to build

_LABELS = "labels.json"
_FIELDS = tuple(Product.__dataclass_fields__)


class UnknownProduct(GagpoError, KeyError):
    """An asin that is not in the catalogue."""


class Store:
    """A built catalogue, opened read-only. Opening is cheap, and processes share its memory.

    exact: use the published environment's texts, goals and search. Its search index, which rounds text lengths as
        Lucene does, and the lists of its hidden searches are built next to the store at the first use.

    Raises:
        CatalogueError: the store is damaged or has another format; names the file.
    """

    def __init__(self, folder: Path, exact: bool = False):
        self.folder = folder
        self.exact = exact
        self.manifest: dict[str, Any] = _verified_manifest(folder)
        try:
            self._products = _Blobs(folder, "products")
            self._asins = _mapped(folder / "asins.npy")
            self._order = _mapped(folder / "order.npy")
            self._prices = _mapped(folder / "prices.npy")
            self._goals = {goal_kind: _Blobs(folder, f"goals-{goal_kind}") for goal_kind in KINDS}
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise _unusable(folder, "", error) from None
        self.product: Callable[[int], Product] = functools.lru_cache(CACHED_PRODUCTS)(self._product)
        """The product at a number (0 to ``len(store) - 1``, in catalogue order)."""
        self._goal_numbers: dict[str, dict[str, int]] = {}
        self._tasks: dict[tuple[str, str], TaskSet] = {}
        index = self._exact_index() if exact else folder / "index"
        try:
            self.index = SearchIndex(index)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise _unusable(index if exact else folder, "", error) from None

    def __len__(self) -> int:
        return len(self._asins)

    def _product(self, number: int) -> Product:
        try:
            product = _unpack(self._products[number])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _unusable(self.folder, f"products.bin, row {number + 1}: ", error) from None
        return product if self.exact else product.tidy()

    def number(self, asin: str) -> int:
        """The number of the product; raises UnknownProduct."""
        key = asin.encode("utf-8", "replace")
        index = int(np.searchsorted(self._asins, key))
        if index == len(self) or self._asins[index] != key:
            raise UnknownProduct(f"the catalogue has no product {asin[:40]!r}", where=self.folder)
        return int(self._order[index])

    def price(self, number: int) -> float:
        """The price in dollars that is compared with a budget."""
        return float(self._prices[number])

    def goal(self, task: str) -> Goal:
        """The goal of a task id of either kind; raises UnknownTask."""
        goal_kind = _kind_of(task)
        self.tasks(goal_kind, "test")  # loads the numbers of this kind
        number = self._goal_numbers[goal_kind].get(task)
        if number is None:
            raise UnknownTask(f"there is no goal {task[:40]!r}", where=self.folder)
        try:
            values = json.loads(self._goals[goal_kind][number])
            values["attributes"] = tuple(values["attributes"])
            values["options"] = tuple((name, value) for name, value in values["options"])
            goal = Goal(**values)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise _unusable(self.folder, f"goals-{goal_kind}.bin, row {number + 1}: ", error) from None
        return goal if self.exact else goal.tidy()

    def tasks(self, kind: str, split: str) -> TaskSet:
        """The tasks of one split and one kind of goals."""
        if (kind, split) not in self._tasks:
            path = self.folder / f"tasks-{kind}{'-exact' if self.exact else ''}.json"
            numbers: dict[str, int] = {}
            try:
                rows = json.loads(path.read_text(encoding="utf-8"))
                for name, entries in rows.items():
                    tasks = [Task(id, name, type, digest, str(number)) for id, type, digest, number in entries]
                    numbers.update((id, number) for id, _, _, number in entries)
                    self._tasks[kind, name] = TaskSet(name, tasks, self._advice(kind))
            except (OSError, ValueError, TypeError, AttributeError) as error:
                raise _unusable(self.folder, f"{path.name}: ", error) from None
            self._goal_numbers[kind] = numbers
        return self._tasks[kind, split]

    @functools.cached_property
    def labels(self) -> Labels:
        """What the hidden searches of the published environment list; requires ``exact``. Read when first needed."""
        path = self._exact_index() / _LABELS
        try:
            labels = json.loads(path.read_text(encoding="utf-8"))
            return Labels(labels["category"], labels["query"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unusable(path.parent, f"{path.name}: ", error) from None

    def _exact_index(self) -> Path:
        """The folder of the index with Lucene's text lengths and of the lists of hidden searches, built if missing."""

        def build(folder: Path) -> None:
            builder = IndexBuilder()
            labels: dict[str, dict[str, list[int]]] = {"category": {}, "query": {}}
            for number in range(len(self)):
                product = _unpack(self._products[number])
                builder.add(searched_text(product.tidy()))
                labels["category"].setdefault(product.category, []).append(number)
                labels["query"].setdefault(product.query, []).append(number)
            builder.save(folder, rounded=True)
            (folder / _LABELS).write_text(json.dumps(labels), encoding="utf-8")

        return build_once(self.folder.with_name(f"{self.folder.name}-exact"), build)

    def _advice(self, kind: str) -> str:
        number = self.manifest["exact_goals" if self.exact else "goals"][kind]
        return f"The catalogue {self.manifest['sources']} yields {number} {kind} goals."


def _kind_of(task: str) -> str:
    if task.rpartition("-")[2].startswith("h"):
        return "human"
    return "synthetic"


@functools.cache
def open_store(folder: Path, exact: bool = False) -> Store:
    """The store in ``folder``, shared by all environments of the process."""
    return Store(folder, exact)


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return ``folder``, filled by ``build`` if missing; other processes that need it wait.

    build: called with a temporary folder, which is renamed afterwards.

    Raises:
        TimeoutError: another process holds the lock for an hour.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock.alone(Path(f"{folder}.lock"), LOCK_TIMEOUT, f"building {folder}"):
            if not folder.is_dir():
                with durable.replacing_folder(folder) as unfinished:
                    build(unfinished)
    return folder


def store_for(sources: Sources, root: Path, seed: int = 0, tagger: Tagger | None = None) -> Path:
    """The folder of the store for ``sources`` below ``root``, built if missing.

    A file with the same path, size and modification time counts as unchanged.

    Raises:
        CatalogueError: bad data.
    """
    tagger = tagger or default_tagger()
    paths = [path for path in (sources.products, sources.attributes, sources.humans) if path]
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(json.dumps([FORMAT, seed, tagger.name, stamps]).encode()).hexdigest()[:16]
    return build_once(root / f"store-{key}", lambda folder: _build(folder, sources, seed, tagger))


class _GoalCollector:
    """Makes the goals of products, in catalogue order.

    goals: by kind; at most ``MAX_GOALS`` of each.
    unsolvable_ids: ids of goals for which even their own product does not earn a reward of 1.
    counts: what is left out, by reason.
    """

    def __init__(self, seed: int, counts: Counter[str]):
        self.seed = seed
        self.counts = counts
        self.goals: dict[str, list[Goal]] = {goal_kind: [] for goal_kind in KINDS}
        self.unsolvable_ids: set[str] = set()

    def add(self, product: Product, annotation: Annotation | None, human_instructions: Sequence[Instruction]) -> float:
        """Add the goals of ``product``; returns its price in dollars."""
        rng = product_rng(product.asin, self.seed)
        price = price_of(product, rng)
        if annotation and annotation.instruction:
            if annotation.instruction.attributes:
                goals = list(synthetic_goals(product, annotation.instruction, price, rng, self.counts))
                self.goals["synthetic"] += goals
                cleaned = product.tidy()
                self.unsolvable_ids.update(goal.id for goal in goals if not is_solvable(goal, cleaned, price))
            else:
                self.counts["instructions_without_attributes"] += 1
        # A separate generator, because synthetic instructions must not change the human goals.
        human_rng = product_rng(f"{product.asin}:human", self.seed)
        self.goals["human"] += human_goals(product, human_instructions, price, human_rng)
        for goals in self.goals.values():
            # Published product files are in random order, so the first goals are a fair sample.
            self.counts["goals_too_many"] += len(goals[MAX_GOALS:])
            self.unsolvable_ids.difference_update(goal.id for goal in goals[MAX_GOALS:])
            del goals[MAX_GOALS:]
        return price


def _build(folder: Path, sources: Sources, seed: int, tagger: Tagger) -> None:
    """Write the store of ``sources`` into ``folder``, reading the product file once."""
    counts: Counter[str] = Counter()
    annotations = read_annotations(sources.attributes)
    humans = read_humans(sources.humans) if sources.humans else {}
    collector = _GoalCollector(seed, counts)
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
            index.add(searched_text(product.tidy()))
            prices.append(collector.add(product, annotations.get(product.asin), humans.get(product.asin, ())))
    if not asins:
        raise CatalogueError(f"has no usable product (left out: {dict(counts) or 'none'})", where=sources.products)
    for path, rows in ((sources.attributes, annotations), (sources.humans, humans)):
        if rows and not rows.keys() & set(asins):
            raise CatalogueError(
                f"names no product of {sources.products.name}", where=path, advice="were two data sets mixed up?"
            )
    index.save(folder / "index")
    _write_asins(folder, asins)
    np.save(folder / "prices.npy", np.array(prices, np.float64))
    numbers = {}
    exact_numbers = {}
    for goal_kind, goals in collector.goals.items():
        solvable = solvable_goals(goals, collector.unsolvable_ids, counts)
        _write_goals(folder, goal_kind, goals, solvable, content.hexdigest())
        numbers[goal_kind] = len(solvable)
        exact_numbers[goal_kind] = len(goals)
    manifest = {
        "format": FORMAT,
        "products": len(asins),
        "goals": numbers,
        "exact_goals": exact_numbers,
        "tagger": tagger.name,
        "seed": seed,
        "content": content.hexdigest(),
        "sources": str(sources.products),
        "left_out": {reason: number for reason, number in counts.items() if number},
        "files": {str(path.relative_to(folder)): _fingerprint(path) for path in sorted(folder.rglob("*.*"))},
    }
    manifest["seal"] = _seal(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _write_goals(folder: Path, kind: str, goals: list[Goal], solvable: list[Goal], catalogue: str) -> None:
    """Write all ``goals``, and two lists of tasks: all goals for ``exact`` environments, ``solvable`` ones for others.

    catalogue: hash of the catalogue, part of the tasks' digests.
    """
    with _BlobWriter(folder, f"goals-{kind}") as writer:
        for goal in goals:
            writer.add(json.dumps(goal.__dict__, ensure_ascii=False).encode())
    numbers = {goal.id: number for number, goal in enumerate(goals)}
    _write_tasks(folder / f"tasks-{kind}.json", split_goals(solvable), numbers, catalogue)
    _write_tasks(folder / f"tasks-{kind}-exact.json", split_goals(goals), numbers, catalogue)


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


def _write_tasks(path: Path, splits: dict[str, list[Goal]], places: dict[str, int], catalogue: str) -> None:
    """Write the id, type, digest and number of each goal, by split."""
    rows = {
        split: [[goal.id, goal.type, digest_of(goal, catalogue), places[goal.id]] for goal in goals]
        for split, goals in splits.items()
    }
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")


def _fingerprint(path: Path) -> tuple[int, str]:
    """The size and SHA-256 of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _seal(manifest: dict[str, Any]) -> str:
    """The SHA-256 of everything else in the manifest."""
    content = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _verified_manifest(folder: Path) -> dict[str, Any]:
    name = "manifest.json"
    try:
        manifest = json.loads((folder / name).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r}, this version reads {FORMAT}")
        if manifest["seal"] != _seal(manifest):
            raise ValueError("its content was changed after it was written")
        files = manifest["files"]
        is_hashed = sum(size for size, _ in files.values()) <= MAX_HASHED
        for name, (size, digest) in files.items():
            path = folder / name
            if path.stat().st_size != size:
                raise ValueError(f"{path.stat().st_size} bytes instead of {size}")
            if is_hashed and _fingerprint(path)[1] != digest:
                raise ValueError("its content was changed after it was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unusable(folder, f"{name}: ", error) from None
    return dict(manifest)


def _unusable(folder: Path, place: str, error: Exception) -> CatalogueError:
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = str(error)
    if isinstance(error, KeyError):
        reason = f"lacks {reason}"
    return CatalogueError(
        f"not a usable store ({place}{reason})", where=folder, advice="delete the folder to rebuild it"
    )


def _mapped(path: Path) -> np.ndarray:
    # asarray: the same mapped pages without numpy.memmap's own slow indexing.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


class _BlobWriter:
    """Writes byte strings to ``<name>.bin`` and their offsets to ``<name>.npy``."""

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
    """The strings that :class:`_BlobWriter` wrote, mapped into memory."""

    def __init__(self, folder: Path, name: str):
        self._offsets = _mapped(folder / f"{name}.npy")
        with (folder / f"{name}.bin").open("rb") as file:
            # Mapped read-only: worker processes share the pages, and only those that are read take memory. An empty
            # file cannot be mapped.
            self._data: mmap.mmap | bytes
            if self._offsets[-1]:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            else:
                self._data = b""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._data[self._offsets[number] : self._offsets[number + 1]].decode()
