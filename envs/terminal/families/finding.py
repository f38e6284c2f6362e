"""Find and move files by content, name, size and age."""

from __future__ import annotations

import random

from gagpo.envs.terminal.exercise import Exercise, Final
from gagpo.envs.terminal.families.family import family, sentence
from gagpo.envs.terminal.families.words import SplitWords
from gagpo.envs.terminal.tree import CHANGED, Node, file

_ENDINGS = ("txt", "log", "csv", "md")
DAY = 86_400


def _scattered(rng: random.Random, words: SplitWords, count: int, depth: int) -> dict[str, Node]:
    """Files of one line each with different endings, at most ``depth`` folders deep."""
    folders = [""] + [f"{words.stem()}/" for _ in range(depth)]
    stems = words.stems(count)
    return {
        f"{rng.choice(folders)}{stem}.{_ENDINGS[i % len(_ENDINGS)]}": file(f"{sentence(rng, stems)}\n")
        for i, stem in enumerate(stems)
    }


def _moved(tree: dict[str, Node], selected: set[str], target: str) -> dict[str, str]:
    """The content that each file should have in the end, by path."""
    return {
        f"{target}/{path.rpartition('/')[2]}" if path in selected else path: node.content.decode()
        for path, node in tree.items()
    }


def _all_right(final: Final, expected: dict[str, str]) -> bool:
    return final.files() == set(expected) and all(final.text(path) == text for path, text in expected.items())


@family("move-by-ending", 3)
def move_by_ending(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    target, ending = words.stem(), rng.choice(_ENDINGS)
    tree = _scattered(rng, words, 4 + 2 * level, level - 1)
    expected = _moved(tree, {path for path in tree if path.endswith(f".{ending}")}, target)
    where = "in this folder" if level == 1 else "in this folder and below"
    find = f"find . -name '*.{ending}' -not -path './{target}/*'"
    return Exercise(
        f"Move every .{ending} file {where} into the new folder {target}. Leave the others where they are.",
        tree,
        lambda final: _all_right(final, expected),
        (f"mkdir {target}", f"{find} -exec mv {{}} {target}/ \\;" if level > 1 else f"mv *.{ending} {target}/"),
        (f'mkdir -p {target} && {find} | while read -r name; do mv "$name" {target}; done',),
        (f"mkdir {target}", f"cp *.{ending} {target}/"),
    )


@family("find-by-content", 3)
def find_by_content(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    target, secret = words.stem(), words.stem()
    tree = _scattered(rng, words, 4 + 2 * level, level - 1)
    for path in rng.sample(sorted(tree), k=level):
        tree[path] = file(tree[path].content.decode().strip() + f" {secret}\n")
    answer = sorted(path for path in tree if secret in tree[path].content.decode().split())
    return Exercise(
        f"Write the paths of all files that contain the word {secret} into {target}.list, sorted, one a line, "
        "relative to this folder without './'.",
        tree,
        lambda final: final.lines(f"{target}.list") == answer and final.unchanged(tree),
        (f"grep -rlw {secret} * | LC_ALL=C sort > /tmp/names", f"mv /tmp/names {target}.list"),
        (f"find * -type f -exec grep -lw {secret} {{}} + | LC_ALL=C sort > /tmp/n; cp /tmp/n {target}.list",),
        (f"grep -rw {secret} * > /tmp/names", f"mv /tmp/names {target}.list"),
    )


@family("remove-by-size", 2)
def remove_by_size(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    bound, first = rng.choice([1000, 2000, 3000]), words.stem()
    depth = [""] + [f"{words.stem()}/" for _ in range(level - 1)]
    names = [f"{rng.choice(depth)}{stem}.bin" for stem in words.stems(4 + 2 * level)]
    tree = {name: file("x" * rng.choice([bound - 300, bound - 1, bound, bound + 1, 3 * bound])) for name in names}
    tree[f"{first}.bin"] = file("x" * (bound + 1))
    expected = {name for name, node in tree.items() if len(node.content) <= bound}
    return Exercise(
        f"Delete every file of more than {bound} bytes here and below, such as {first}.bin. Keep all others.",
        tree,
        lambda final: final.files() == expected,
        (f"find . -type f -size +{bound}c -delete",),
        (f"for f in $(find . -type f); do if [ $(stat -c %s $f) -gt {bound} ]; then rm $f; fi; done",),
        (f"find . -type f -size +{bound // 1000}k -delete",),
    )


@family("move-by-age", 2)
def move_by_age(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    target, mark = words.stem(), f"{words.stem()}.mark"
    tree = {mark: file("", changed=CHANGED)}
    for stem in words.stems(4 + 2 * level):
        tree[f"{stem}.txt"] = file(f"{stem}\n", changed=CHANGED + rng.choice([-40, -2, 2, 40]) * DAY)
    for direction, stem in ((-1, words.stem()), (1, words.stem())):
        tree[f"{stem}.txt"] = file(f"{stem}\n", changed=CHANGED + direction * DAY)
    older = level == 2
    selected = {path for path, node in tree.items() if (node.changed < CHANGED if older else node.changed > CHANGED)}
    expected = _moved(tree, selected, target)
    name, test = ("older", "! -newer") if older else ("newer", "-newer")
    find = f"find . -maxdepth 1 -type f {test} {mark} ! -name {mark}"
    comparison = "-ot" if older else "-nt"
    return Exercise(
        f"Move every file that is {name} than {mark} into the new folder {target}.",
        tree,
        lambda final: _all_right(final, expected),
        (f"mkdir {target}", f"{find} -exec mv {{}} {target}/ \\;"),
        (f"mkdir {target}; for f in *.txt; do if [ $f {comparison} {mark} ]; then mv $f {target}/; fi; done",),
        (f"mkdir {target}", f"mv *.txt {target}/"),
    )


@family("rename-by-rule", 3)
def rename_by_rule(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    old, new = rng.sample(["txt", "text", "md", "rst", "dat"], k=2)
    prefix = words.stem()
    stems = words.stems(3 + level)
    tree = {f"{stem}.{old}": file(f"{stem}\n") for stem in stems}
    tree[f"{prefix}.{rng.choice(['csv', 'ini'])}"] = file("1\n")
    before = f"{prefix}-" if level > 1 else ""
    change = str.upper if level > 2 else str
    expected = {
        (f"{before}{change(path.partition('.')[0])}.{new}" if path.endswith(f".{old}") else path): node.content.decode()
        for path, node in tree.items()
    }
    upper = " with its name in capital letters," if level > 2 else ""
    begin = f" and {prefix}- before its name" if before else ""
    stem = "$(echo ${f%.*} | tr a-z A-Z)" if level > 2 else "${f%.*}"
    python_stem = "stem.upper()" if level > 2 else "stem"
    script = (
        f"import glob, os\nfor name in glob.glob('*.{old}'):\n    stem = name.rpartition('.')[0]\n"
        f"    os.rename(name, '{before}' + {python_stem} + '.{new}')"
    )
    only = f" The file {prefix} with another ending stays." if level == 1 else ""
    return Exercise(
        f"Rename every .{old} file:{upper} give it the ending .{new}{begin}.{only}",
        tree,
        lambda final: _all_right(final, expected),
        (f"for f in *.{old}; do mv $f {before}{stem}.{new}; done",),
        (f'python3 -c "{script}"',),
        (f"for f in *.{old}; do cp $f {before}{stem}.{new}; done",),
    )
