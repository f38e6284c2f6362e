"""Pack and unpack archives, set permissions, mend links."""

from __future__ import annotations

import gzip
import io
import random
import tarfile

from gagpo.envs.terminal.exercise import Exercise, Final
from gagpo.envs.terminal.families.family import family, sentence
from gagpo.envs.terminal.families.words import SplitWords
from gagpo.envs.terminal.tree import CHANGED, Node, file, folder, link

MAX_UNPACKED = 1 << 20


def pack(content: dict[str, bytes], compressed: bool) -> bytes:
    """A tar archive with fixed times, so that a task has the same bytes everywhere."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in content.items():
            header = tarfile.TarInfo(name)
            header.size, header.mtime = len(text), CHANGED
            archive.addfile(header, io.BytesIO(text))
    return gzip.compress(data.getvalue(), mtime=CHANGED) if compressed else data.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """The regular files of an archive that an agent made; empty if it is none, or expands to more than a MiB."""
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_UNPACKED)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            members = [member for member in archive if member.isfile()][:100]
            return {
                member.name.removeprefix("./"): stream.read(MAX_UNPACKED)
                for member in members
                if (stream := archive.extractfile(member)) is not None
            }
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError):
        return {}


@family("pack-archive", 2)
def pack_archive(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    source, target = words.stems(2)
    stems = words.stems(3 + level)
    tree = {f"{source}/{stem}.txt": file(f"{sentence(rng, stems)}\n") for stem in stems}
    tree |= {f"{source}/{stem}.tmp": file("\n") for stem in words.stems(level)}
    expected = {path: node.content for path, node in tree.items() if level == 1 or path.endswith(".txt")}
    without = " without its .tmp files" if level == 2 else ""
    option = "--exclude='*.tmp' " if level == 2 else ""
    keep = "None if t.name.endswith('.tmp') else t" if level == 2 else "t"
    python = f"import tarfile; tarfile.open('{target}.tar.gz', 'w:gz').add('{source}', filter=lambda t: {keep})"
    wrong = f"tar czf {target}.tar.gz {source}" if level == 2 else f"tar czf {target}.tar.gz -C {source} ."
    return Exercise(
        f"Pack the folder {source}{without} into the compressed archive {target}.tar.gz, with paths that begin with "
        f"{source}/. The folder itself stays as it is.",
        tree,
        lambda final: _archive(final, f"{target}.tar.gz") == expected and final.unchanged(tree),
        (f"tar czf {target}.tar.gz {option}{source}",),
        (f'python3 -c "{python.replace(").add(", ", compresslevel=9).add(")}" && gzip -t {target}.tar.gz',),
        (wrong,),
    )


def _archive(final: Final, path: str) -> dict[str, bytes]:
    node = final.tree.get(path)
    if node is None or node.kind != "f" or node.content[:2] != b"\x1f\x8b":
        return {}
    return unpack(node.content)


@family("unpack-archive", 2)
def unpack_archive(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, inner, member_name, target = words.stems(4)
    stems = words.stems(3)
    content = {f"{inner}/{stem}.txt": f"{sentence(rng, stems)}\n".encode() for stem in [*stems, member_name]}
    ending = "tar.gz" if level == 2 else "tar"
    tree = {f"{name}.{ending}": file(pack(content, level == 2))}
    member = f"{inner}/{member_name}.txt"
    text = content[member].decode()
    return Exercise(
        f"Extract only {member} from {name}.{ending}, and save it as {target}.txt. Leave no other new file here.",
        tree,
        lambda final: final.text(f"{target}.txt") == text and final.files() == {f"{target}.txt", f"{name}.{ending}"},
        (f"tar xOf {name}.{ending} {member} > {target}.txt",),
        (f"tar xf {name}.{ending} -C /tmp", f"cp /tmp/{member} {target}.txt"),
        (f"tar xf {name}.{ending}", f"cp {member} {target}.txt"),
    )


@family("set-permissions", 3)
def set_permissions(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    stems = words.stems(5)
    tree: dict[str, Node] = {}
    for i, stem in enumerate(stems):
        folder = f"{words.stem()}/" if level > 1 and i % 2 else ""
        tree[f"{folder}{stem}.sh"] = file(f"#!/bin/sh\necho {stem}\n", 0o644)
        tree[f"{folder}{stem}.key"] = file(f"{stem}\n", 0o644)
    ending, mode = ("sh", 0o755) if level < 3 else ("key", 0o600)
    expected = {path: mode if path.endswith(f".{ending}") else 0o644 for path in tree}
    first = next(path for path in tree if path.endswith(f".{ending}"))
    task = "executable for everyone (mode 755)" if level < 3 else "readable and writable by its owner alone (mode 600)"
    where = "" if level == 1 else " here and below"
    return Exercise(
        f"Make every .{ending} file{where} {task}, such as {first}. Other files keep their mode.",
        tree,
        lambda final: (
            final.unchanged(tree)
            and all(path in final.tree and final.tree[path].mode == mode for path, mode in expected.items())
        ),
        (f"find . -name '*.{ending}' -exec chmod {mode:o} {{}} +",),
        (
            f"for f in $(find . -type f -name '*.{ending}'); do install -m {mode:o} $f /tmp/f; chmod "
            "--reference=/tmp/f $f; done",
        ),
        (f"chmod -R {mode | 0o100:o} .",),
    )


@family("mend-links", 2)
def mend_links(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    current, target = words.stems(2)
    releases = words.stems(3)
    tree: dict[str, Node] = {f"{target}/{release}/{current}.txt": file(f"{release}\n") for release in releases}
    old, new = rng.sample(releases, k=2)
    tree[current] = link(f"{target}/{old}")
    broken = words.stems(level) if level == 2 else []
    tree |= {stem: link(f"{target}/{stem}") for stem in broken}
    also = " Remove every symbolic link here that leads nowhere." if broken else ""
    remove = ("find . -maxdepth 1 -xtype l -delete",) if broken else ()
    expected = {path for path in tree if path not in broken}
    return Exercise(
        f"Let the symbolic link {current} lead to the folder {target}/{new} (a relative target).{also}",
        tree,
        lambda final: (
            final.files() == expected
            and final.tree[current].kind == "l"
            and final.tree[current].content.decode().rstrip("/").removeprefix("./") == f"{target}/{new}"
            and final.unchanged(tree)
        ),
        (f"ln -sfn {target}/{new} {current}", *remove),
        (*remove, f"rm {current}; ln -s {target}/{new} {current}"),
        (f"ln -sf {target}/{new} {current}", *remove),
    )


@family("mirror-folder", 2)
def mirror_folder(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    source, target = words.stems(2)
    stems = words.stems(4)
    tree: dict[str, Node] = {f"{source}/{words.stem()}/{stem}.txt": file(f"{stem}\n", 0o640) for stem in stems}
    tree[f"{source}/{stems[0]}"] = link(f"{stems[1]}.txt")
    tree[f"{source}/.{stems[2]}"] = file(f"{sentence(rng, stems)}\n", 0o600)
    tree[f"{target}/{stems[3]}.old"] = file("old\n")
    old = {} if level == 2 else {f"{target}/{stems[3]}.old": tree[f"{target}/{stems[3]}.old"]}
    copies = {path.replace(source, target, 1): node for path, node in tree.items() if path.startswith(f"{source}/")}
    expected = {**{path: node for path, node in tree.items() if path.startswith(f"{source}/")}, **copies, **old}
    task = "Make the folder {t} an exact copy of {s}, with hidden files, links and modes; what only {t} has is removed."
    if level == 1:
        task = "Copy everything in {s} into {t}, with hidden files, links and modes; what {t} has stays."
    clear = (f"rm -rf {target}", f"mkdir {target}") if level == 2 else ()
    empty = f"find {target} -mindepth 1 -delete; " if level == 2 else ""
    return Exercise(
        task.format(s=source, t=target),
        {**tree, target: folder()},
        lambda final: (
            final.files() == set(expected)
            and all(
                (final.tree[path].kind, final.tree[path].content) == (node.kind, node.content)
                and (node.kind == "l" or final.tree[path].mode == node.mode)
                for path, node in expected.items()
            )
        ),
        (*clear, f"cp -a {source}/. {target}/"),
        (f"{empty}tar cf - -C {source} . | tar xpf - -C {target}",),
        (*clear, f"cp -r {source}/* {target}/"),
    )
