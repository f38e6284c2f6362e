"""Work with git: recover a file, take over a version, find the commit of a fault."""

from __future__ import annotations

import random

from gagpo.envs.terminal.exercise import Exercise, Final
from gagpo.envs.terminal.families.family import family, sentence
from gagpo.envs.terminal.families.words import SplitWords
from gagpo.envs.terminal.tree import file

_BEGIN = "git init -q -b main"


def _commit(message: str) -> str:
    return f"git add -A && git commit -q -m '{message}'"


@family("git-recover", 2, needs="git")
def git_recover(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    stems = words.stems(4)
    lost_file = stems[0]
    tree = {f"{stem}.txt": file(f"{sentence(rng, stems)}\n") for stem in stems}
    older = sentence(rng, stems)
    text = tree[f"{lost_file}.txt"].content.decode()
    steps = [_BEGIN, _commit("begin"), f"echo {stems[1]} >> {stems[2]}.txt", _commit("change")]
    if level == 2:
        steps += [
            f"git rm -q {lost_file}.txt",
            "git commit -q -m remove",
            f"echo {older} > {stems[3]}.txt",
            _commit("more"),
        ]
        task = f"A commit removed {lost_file}.txt. Bring it back into this folder with its last content."
        commit = f"$(git rev-list -n 1 HEAD -- {lost_file}.txt)^"
        solution = (f"git checkout {commit} -- {lost_file}.txt",)
        second = (f"git log --format=%h -- {lost_file}.txt", f"git show {commit}:{lost_file}.txt > {lost_file}.txt")
    else:
        steps += [f"echo {older} > {lost_file}.txt"]
        task = f"Someone overwrote {lost_file}.txt. Bring back the content of the last commit."
        solution = (f"git checkout -- {lost_file}.txt",)
        second = (f"git show HEAD:{lost_file}.txt > /tmp/f", f"cp /tmp/f {lost_file}.txt")
    return Exercise(
        task,
        tree,
        lambda final: final.text(f"{lost_file}.txt") == text,
        solution,
        second,
        (f"cp {stems[1]}.txt {lost_file}.txt", f"git add {lost_file}.txt"),
        "\n".join(steps),
    )


@family("git-conflict", 2, needs="git")
def git_conflict(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, branch, main_line, other, first = words.stems(5)
    lines = words.stems(3)
    tree = {f"{name}.txt": file("".join(f"{line}\n" for line in lines))}
    keep, lose = (main_line, other) if level == 1 else (other, main_line)
    steps = (
        *(_BEGIN, _commit("begin"), f"git checkout -q -b {branch}", f"sed -i 's/^{lines[1]}$/{other}/' {name}.txt"),
        *(f"echo {first} > {first}.txt", _commit(branch), "git checkout -q main"),
        *(
            f"sed -i 's/^{lines[1]}$/{main_line}/' {name}.txt",
            _commit("main"),
            f"git merge -q {branch} > /dev/null || true",
        ),
    )
    expected = f"{lines[0]}\n{keep}\n{lines[2]}\n"
    side = "ours" if level == 1 else "theirs"
    marks = f"/^<<<<<<</d;/^=======/d;/^>>>>>>>/d;/^{lose}$/d"

    def check(final: Final) -> bool:
        if final.text(f"{name}.txt") != expected or final.text(f"{first}.txt") != f"{first}\n":
            return False
        # Of git's own files, nothing that the agent wrote is run: hooks and settings are left out.
        result = final.run(
            "git -c core.hooksPath=/ -c core.fsmonitor= log -1 --format=%p && git status --porcelain | wc -l"
        )
        lines_printed = result.output.text().split("\n")
        return result.status == 0 and len(lines_printed[0].split()) == 2 and lines_printed[1] == "0"

    return Exercise(
        f"A merge of the branch {branch} stopped at a conflict in {name}.txt. Keep the line {keep}, and "
        "finish the merge "
        "with a commit.",
        tree,
        check,
        (f"git checkout --{side} {name}.txt", f"git add {name}.txt", "git commit -q -m merge"),
        (f"sed -i '{marks}' {name}.txt", "git commit -q -a -m merged"),
        (f"git add {name}.txt", "git commit -q -m merge"),
        "\n".join(steps),
    )


@family("git-bisect", 2, needs="git")
def git_bisect(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    script, target = words.stems(2)
    count = 5 + 3 * level
    bad = rng.randint(1, count - 2)
    messages = words.stems(count)
    steps = [_BEGIN]
    for i, message in enumerate(messages):
        limit = 100 + i if i < bad else -1
        steps += [
            f"printf '#!/bin/sh\\n# {message}\\ntest 5 -le {limit}\\n' > {script}.sh",
            "chmod +x " + f"{script}.sh",
        ]
        steps.append(_commit(message))
    run = ("git bisect start HEAD $(git rev-list --max-parents=0 HEAD)", f"git bisect run ./{script}.sh")
    return Exercise(
        f"./{script}.sh passed in the first commit and fails in the last. Write the message of the first "
        "commit in which "
        f"it fails into {target}.txt.",
        {},
        lambda final: final.lines(f"{target}.txt") == [messages[bad]],
        (run[0], run[1], f"git log -1 --format=%s refs/bisect/bad > {target}.txt"),
        (
            f"for c in $(git rev-list --reverse HEAD); do git show $c:{script}.sh > /tmp/s; "
            f"sh /tmp/s || {{ git log -1 --format=%s $c > {target}.txt; break; }}; done",
        ),
        (f"git log -1 --format=%s > {target}.txt",),
        "\n".join(steps),
    )
