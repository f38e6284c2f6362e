"""A damaged manifest is reported as such, and no other file is blamed."""

import os
import random

import pytest

from gagpo.base import manifest
from tests.rejections import rejects


@pytest.fixture
def folder(tmp_path):
    for name in ("config.json", "weights/é.bin", "weights/b.bin"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 5)
    manifest.write(tmp_path)
    manifest.verify(tmp_path)
    return tmp_path


def damages(healthy, rng):
    """Every byte changed once by one bit and once to another printable, left out and doubled; every length."""
    for location, byte in enumerate(healthy):
        before, after = healthy[:location], healthy[location + 1 :]
        yield before + bytes([byte ^ 1 << rng.randrange(8)]) + after
        yield before + bytes([byte % 94 + 33]) + after
        yield before + after
        yield before + bytes([byte, byte]) + after
        yield before


def test_every_damage_to_a_manifest_blames_the_manifest(folder):
    path = folder / "manifest.json"
    healthy = path.read_bytes()
    for damaged in damages(healthy, random.Random(0)):
        if damaged == healthy:
            continue
        path.write_bytes(damaged)
        with rejects(manifest.ManifestError, "damaged", where=path):
            manifest.verify(folder)


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": "x", "files": {}}', "[" * 100_000], ids=range(4))
def test_a_manifest_that_is_none_is_named(folder, text):
    (folder / "manifest.json").write_text(text)
    with rejects(manifest.ManifestError, where="manifest.json"):
        manifest.verify(folder)


def test_a_manifest_that_is_a_pipe_is_refused_in_one_line(folder):
    path = folder / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    assert manifest.has_one(folder)
    with rejects(manifest.ManifestError, where="manifest.json"):
        manifest.verify(folder)


@pytest.mark.parametrize("target", ["folder", "file", "missing", "same"])
@pytest.mark.parametrize("where", ["notes", "weights/notes", "weights/b.bin"])
def test_a_link_below_a_folder_is_refused_wherever_it_leads(folder, tmp_path_factory, target, where):
    """One to a folder was not listed, and one to a file with the listed content was followed."""
    private = tmp_path_factory.mktemp("private")
    (private / "file").write_text("key")
    (private / "same").write_bytes((folder / "weights/b.bin").read_bytes())
    link = folder / where
    link.unlink(missing_ok=True)
    link.symlink_to(private if target == "folder" else private / target)
    if link.is_file():  # also where somebody else's manifest lists the file behind the link
        manifest.write(folder)
    with rejects(manifest.ManifestError, "link", where=link):
        manifest.verify(folder)


def test_a_pipe_below_a_folder_is_refused(folder):
    os.mkfifo(folder / "weights/pipe")
    with rejects(manifest.ManifestError, "regular file", where="pipe"):
        manifest.verify(folder)
