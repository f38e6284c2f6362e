"""Read the metadata and the tensors of a GGUF file, which may be split into parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gagpo.base.errors import GagpoError
from gagpo.base.regular_file import open_bytes

MAGIC = b"GGUF"
PACKAGES = ("gguf", "accelerate")
MOST_PARTS = 1000
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class ConversionError(GagpoError, ValueError):
    """A GGUF file cannot be converted."""


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file.

    paths: its parts in order; the first holds the metadata.
    metadata: values by key, without the vocabulary.
    tokens: size of the vocabulary.
    tensors: the reader's entries by name, still quantised and on the disk.
    """

    paths: list[Path]
    metadata: dict[str, Any]
    tokens: int
    tensors: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.paths[0]

    @property
    def architecture(self) -> str:
        """The family by llama.cpp's name, such as ``llama``."""
        return str(self.metadata.get("general.architecture"))

    def numbers(self, name: str) -> np.ndarray:
        """The tensor in float32. Raises: ConversionError for a quantisation that gguf cannot read."""
        from gguf import dequantize

        entry = self.tensors[name]
        try:
            values = dequantize(entry.data, entry.tensor_type)
        except NotImplementedError:
            type_name = entry.tensor_type.name
            raise ConversionError(
                f"tensor {name}: quantisation {type_name} is not supported", where=self.path
            ) from None
        if not np.isfinite(values).all():
            raise ConversionError(f"tensor {name} contains numbers that are not finite: it is damaged", where=self.path)
        return values


def require_packages() -> None:
    """Raise ConversionError if a package is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConversionError(
            f"GGUF files require {' and '.join(missing)}", advice="pip install -c constraints.txt -e '.[gguf]'"
        )


def require_convertible(path: Path) -> None:
    """Raise ConversionError if a package is missing, or ``path`` or another part of it is not a GGUF file."""
    require_packages()
    for path_of_part in parts_of(path):
        try:
            with open_bytes(path_of_part) as file:
                begin = file.read(len(MAGIC))
        except OSError as error:
            raise ConversionError(f"cannot be read ({error.strerror})", where=path_of_part) from None
        if begin != MAGIC:
            raise ConversionError(f"is not a GGUF file: it begins with {begin!r}", where=path_of_part)


def stem_of(path: Path) -> str:
    """The file's name without its suffix and without the number of its part."""
    match = _PART.fullmatch(path.name)
    return match["stem"] if match else path.stem


def parts_of(path: Path) -> list[Path]:
    """All parts of the file of which ``path`` is one. Raises: ConversionError naming the first that is missing."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MOST_PARTS:
        raise ConversionError(
            f"the name says part {match['number']} of {match['count']}, at most {MOST_PARTS}", where=path
        )
    files = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    for file in files:
        if not file.exists():
            raise ConversionError(
                f"cannot be read: it is missing, and a split file needs all {count} parts", where=file
            )
    return files


def read(path: Path) -> GgufFile:
    """The metadata and tensors of ``path`` and of its other parts.

    Raises: ConversionError for a damaged file, and for parts that do not belong together.
    """
    from gguf import GGUFReader

    paths, tokens = parts_of(path), 0
    tensors: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for number, file in enumerate(paths):
        try:
            reader = GGUFReader(file)
            values = dict(_metadata(reader))
        except Exception as error:  # damaged bytes fail anywhere in gguf
            raise ConversionError(f"cannot be converted: {reason_of(error)}", where=file) from error
        stated = (values.get("split.no", number), values.get("split.count", len(paths)) or 1)
        if stated != (number, len(paths)):
            raise ConversionError(
                (
                    f"is part {stated[0]} (from 0) of {stated[1]} by its metadata, and part {number} of "
                    f"{len(paths)} by its name"
                ),
                where=file,
                advice="keep the names NAME-00001-of-0000N.gguf of all parts",
            )
        if not number:
            metadata, tokens = values, _tokens(reader)
        for entry in reader.tensors:
            if entry.name in tensors:
                raise ConversionError(f"tensor {entry.name} is in the file twice", where=file)
            tensors[entry.name] = entry
    expected = metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise ConversionError(f"its parts hold {len(tensors)} tensors, its metadata says {expected}", where=paths[0])
    return GgufFile(paths, metadata, tokens, tensors)


def reason_of(error: BaseException) -> str:
    """An error of a library in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _metadata(reader: Any) -> Iterator[tuple[str, Any]]:
    """The metadata without arrays of the tokenizer, which are large."""
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer.") or name.endswith("_token_id"):
            yield name, field.contents()


def _tokens(reader: Any) -> int:
    """The number of tokens in the vocabulary."""
    field = reader.fields.get("tokenizer.ggml.tokens")
    return len(field.data) if field is not None else 0
