"""Count, sort, join, filter and replace with standard tools."""

from __future__ import annotations

import random
from collections import Counter

from gagpo.envs.terminal.exercise import Exercise
from gagpo.envs.terminal.families.family import family, sentence
from gagpo.envs.terminal.families.words import PEOPLE, SplitWords
from gagpo.envs.terminal.tree import file


@family("count-lines", 3)
def count_lines(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, word = words.stems(2)
    answer_file = words.stem()
    fillers = words.stems(4)
    lines = [sentence(rng, [*fillers, word], 3) for _ in range(8 + 4 * level)]
    lines += [f"{word} {word} {word}", f"{fillers[1]}{word}x {fillers[2]}", fillers[3]]
    rng.shuffle(lines)
    tree = {f"{name}.txt": file("\n".join(lines) + "\n")}
    if level == 1:
        text, answer = f"Count the lines of {name}.txt", len(lines)
        commands = (f"wc -l < {name}.txt", f"grep -c '' {name}.txt", f"wc -w < {name}.txt")
    elif level == 2:
        text, answer = f"Count the lines of {name}.txt that contain {word}", sum(word in line for line in lines)
        commands = (f"grep -c {word} {name}.txt", f"grep {word} {name}.txt | wc -l", f"wc -l < {name}.txt")
    else:
        text = f"Count how often {word} occurs as a word of its own in {name}.txt"
        answer = sum(line.split().count(word) for line in lines)
        each = f"tr -s ' ' '\\n' < {name}.txt | grep -cx {word}"
        commands = (f"grep -ow {word} {name}.txt | wc -l", each, f"grep -c {word} {name}.txt")
    solution, second, wrong = (f"{command} > {answer_file}" for command in commands)
    return Exercise(
        f"{text}, and write the number into the file {answer_file}.",
        tree,
        lambda final: final.lines(answer_file) == [str(answer)] and final.unchanged(tree),
        (solution,),
        (second,),
        (wrong,),
    )


@family("sort-lines", 3)
def sort_lines(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target = words.stem(), words.stem()
    stems = words.stems(5)
    lines = [f"{rng.randint(1, 300)} {rng.choice(stems)}" for _ in range(10)] + [f"9 {stems[0]}", f"10 {stems[1]}"]
    lines += lines[:2]
    rng.shuffle(lines)
    tree = {f"{name}.txt": file("\n".join(lines) + "\n")}
    unique = sorted(set(lines), key=lambda line: (int(line.split()[0]), line))
    if level == 3:
        unique = unique[::-1][:5]
    expected = unique if level > 1 else sorted(lines)
    how, command, wrong = {
        1: ("sorted alphabetically (byte by byte)", "LC_ALL=C sort", "LC_ALL=C sort -n"),
        2: ("sorted by the number, equal lines once", "LC_ALL=C sort -u | LC_ALL=C sort -s -n", "LC_ALL=C sort -u"),
        3: (
            "that are the five different ones with the largest numbers, largest first",
            "LC_ALL=C sort -u | LC_ALL=C sort -n -r | head -5",
            "LC_ALL=C sort -n -r | head -4",
        ),
    }[level]
    key = "(int(l.split()[0]), l)" if level > 1 else "l"
    chosen = {1: "lines", 2: "set(lines)", 3: "set(lines)"}[level]
    end = "[::-1][:5]" if level == 3 else ""
    python = (
        f"lines = open('{name}.txt').read().splitlines()\nresult = sorted({chosen}, key=lambda l: {key}){end}\n"
        f"open('{target}.txt', 'w').write('\\n'.join(result) + '\\n')"
    )
    return Exercise(
        f"Write the lines of {name}.txt {how} into {target}.txt.",
        tree,
        lambda final: final.lines(f"{target}.txt") == expected and final.unchanged(tree),
        (f"cat {name}.txt | {command} > {target}.txt",),
        (f'python3 -c "{python}"',),
        (f"cat {name}.txt | {wrong} > {target}.txt",),
    )


@family("join-tables", 2)
def join_tables(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    first, second, target = words.stems(3)
    people = rng.sample(PEOPLE, k=8)
    ages = {person: rng.randint(20, 60) for person in people[:6]}
    cities = {person: rng.choice(words.stems(4)) for person in people[2:]}
    items = list(cities.items())
    rng.shuffle(items)
    tree = {
        f"{first}.txt": file("".join(f"{person} {age}\n" for person, age in ages.items())),
        f"{second}.txt": file("".join(f"{person} {city}\n" for person, city in items)),
    }
    rows = {person: [str(ages[person]), cities[person]] for person in people if person in ages and person in cities}
    columns = [2, 1] if level == 2 else [1, 2]
    expected = [" ".join([person, *(rows[person][column - 1] for column in columns)]) for person in sorted(rows)]
    order = "-o 0,2.2,1.2 " if level == 2 else ""
    awk_columns = "$2,a[$1]" if level == 2 else "a[$1],$2"
    names = f"{second}, {first}" if level == 2 else f"{first}, {second}"
    return Exercise(
        f"Join {first}.txt and {second}.txt by their first column: for everyone in both, one line with the name and "
        f"the values of {names}, separated by spaces and sorted by name, in {target}.txt.",
        tree,
        lambda final: final.lines(f"{target}.txt") == expected and final.unchanged(tree),
        (
            f"sort {first}.txt > /tmp/a",
            f"sort {second}.txt > /tmp/b",
            f"join {order}/tmp/a /tmp/b > {target}.txt",
        ),
        (
            f"awk 'NR==FNR{{a[$1]=$2;next}} $1 in a{{print $1,{awk_columns}}}' {first}.txt {second}.txt | "
            f"sort > {target}.txt",
        ),
        (f"paste -d ' ' {first}.txt {second}.txt > {target}.txt",),
    )


@family("filter-rows", 3)
def filter_rows(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target = words.stems(2)
    people = rng.sample(PEOPLE, k=8 + level)
    bound = rng.randint(30, 70)
    points_of_others = rng.sample(
        [points for points in range(1, 100) if points not in (bound, bound + 1)], k=len(people)
    )
    rows = [*zip(people, points_of_others, strict=True), ("zoe", bound), ("yan", bound + 1), ("xu", 100)]
    rng.shuffle(rows)
    tree = {f"{name}.csv": file("name,points\n" + "".join(f"{person},{points}\n" for person, points in rows))}
    selected = [(person, points) for person, points in rows if points > bound]
    header = "name,points"
    if level == 1:
        expected = [person for person, _ in selected]
        how, printed = "the names alone, without the header,", "$1"
    elif level == 2:
        expected = [header, *(f"{person},{points}" for person, points in selected)]
        how, printed = "the whole rows after the header", "$0"
    else:
        expected = [header, *(f"{person},{points}" for person, points in sorted(selected, key=lambda row: -row[1]))]
        how, printed = "the header and then the whole rows, most points first,", "$0"
    first = "" if level == 1 else "NR==1||"
    after = " | (read -r h; echo $h; sort -t, -k2 -n -r)" if level == 3 else ""
    condition = f"NR>1&&$2>{bound}"
    loop = "p[0]" if level == 1 else "l"
    start = "" if level == 1 else "print(lines[0]); "
    key = "; rows.sort(key=lambda l: -int(l.split(',')[1]))" if level == 3 else ""
    python = (
        f"lines = open('{name}.csv').read().split(); {start}"
        f"rows = [l for l in lines[1:] if int(l.split(',')[1]) > {bound}]{key}\n"
        f"for l in rows:\n    p = l.split(',')\n    print({loop})"
    )
    return Exercise(
        f"From {name}.csv, write {how} of everyone with more than {bound} points into {target}.csv.",
        tree,
        lambda final: final.lines(f"{target}.csv") == expected and final.unchanged(tree),
        (f"awk -F, '{first}{condition}{{print {printed}}}' {name}.csv{after} > {target}.csv",),
        (f'python3 -c "{python}" > {target}.csv',),
        (f"awk -F, '{first}NR>1&&$2>={bound}{{print {printed}}}' {name}.csv{after} > {target}.csv",),
    )


@family("replace-word", 3)
def replace_word(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    old, new = words.stems(2)
    stems = words.stems(3 + level)
    folders = [""] + [f"{words.stem()}/" for _ in range(level - 1)]
    tree = {}
    for i, stem in enumerate(stems):
        ending = "cfg" if level == 3 and i % 2 else "txt"
        content = f"{sentence(rng, [*stems, old], 4)}\n{old} and {old}{stem}\n"
        tree[f"{folders[i % len(folders)]}{stem}.{ending}"] = file(content)
    expected = {
        path: " ".join(_replaced(word, old, new) for word in node.content.decode().split(" "))
        if path.endswith(".txt")
        else node.content.decode()
        for path, node in tree.items()
    }
    return Exercise(
        f"In every .txt file here and below, replace the word {old} by {new}. Longer words that contain {old} stay.",
        tree,
        lambda final: (
            final.files() == set(expected) and all(final.text(path) == text for path, text in expected.items())
        ),
        (f"find . -name '*.txt' -exec sed -i 's/\\b{old}\\b/{new}/g' {{}} +",),
        (
            "python3 -c \"import pathlib, re\nfor p in pathlib.Path('.').rglob('*.txt'): "
            f"p.write_text(re.sub(r'\\b{old}\\b', '{new}', p.read_text()))\"",
        ),
        (f"find . -name '*.txt' -exec sed -i 's/{old}/{new}/g' {{}} +",),
    )


def _replaced(word: str, old: str, new: str) -> str:
    """SplitWords are separated by spaces and line ends."""
    return "\n".join(new if line == old else line for line in word.split("\n"))


@family("most-frequent", 2)
def most_frequent(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target = words.stems(2)
    stems = words.stems(5)
    counts = {stem: 3 + 2 * i for i, stem in enumerate(stems)}
    drawn = [stem for stem, count in counts.items() for _ in range(count)]
    rng.shuffle(drawn)
    lines = [" ".join(drawn[i : i + 4]) for i in range(0, len(drawn), 4)]
    tree = {f"{name}.txt": file("\n".join(lines) + "\n")}
    ranking = [word for word, _ in Counter(drawn).most_common()]
    count = 1 if level == 1 else 3
    expected = ranking[:count]
    request = "most frequent word" if level == 1 else "three most frequent words, most frequent first, one a line,"
    count_words = f"tr -s ' ' '\\n' < {name}.txt | sort | uniq -c | sort -n"
    python = (
        f"import collections; print(*[w for w, _ in collections.Counter(open('{name}.txt').read().split())"
        f".most_common({count})], sep='\\n')"
    )
    return Exercise(
        f"Write the {request} of {name}.txt into {target}.txt.",
        tree,
        lambda final: final.lines(f"{target}.txt") == expected and final.unchanged(tree),
        (f"{count_words} -r | head -{count} | awk '{{print $2}}' > {target}.txt",),
        (f'python3 -c "{python}" > {target}.txt',),
        (f"{count_words} | head -{count} | awk '{{print $2}}' > {target}.txt",),
    )
