"""Questions to logs and tables, answered in a file."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter

from gagpo.envs.terminal.exercise import Exercise
from gagpo.envs.terminal.families.family import family
from gagpo.envs.terminal.families.words import PEOPLE, SplitWords
from gagpo.envs.terminal.tree import file


def _log(rng: random.Random, count: int) -> list[tuple[str, str, str]]:
    """Lines of a log: time, user and result, in order of time."""
    seconds = sorted(rng.sample(range(86_400), k=count))
    return [
        (f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}", rng.choice(PEOPLE), rng.choice(["ok", "ok", "failed"]))
        for s in seconds
    ]


@family("log-failures", 3)
def log_failures(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target = words.stems(2)
    rows = _log(rng, 30)
    person = rng.choice(sorted({user for _, user, result in rows if result == "failed"}))
    rows.append(("23:59:59", person, "ok"))
    rows.append(("23:59:59", f"{person}x", "failed"))
    failures = [(time, user) for time, user, result in rows if result == "failed"]
    tree = {f"{name}.log": file("".join(f"{time} login {user} {result}\n" for time, user, result in rows))}
    answers = {
        1: (f"how many logins of {person} failed", [str(sum(user == person for _, user in failures))]),
        2: (
            f"at what time the last login of {person} failed",
            [[time for time, user in failures if user == person][-1]],
        ),
        3: ("who had at least one failed login, sorted, each once, one a line", sorted({user for _, user in failures})),
    }
    text, expected = answers[level]
    commands = {
        1: (f"grep -c ' {person} failed' {{}}", f"awk '$3==\"{person}\"&&$4==\"failed\"' {{}} | wc -l",
            f"grep -c {person} {{}}"),
        2: (f"grep ' {person} failed' {{}} | tail -1 | cut -d' ' -f1",
            f"awk '$3==\"{person}\"&&$4==\"failed\"{{t=$1}}END{{print "
            f"t}}' {{}}", f"grep {person} {{}} | tail -1 | cut -c1-8"),
        3: ("grep failed {} | cut -d' ' -f3 | LC_ALL=C sort -u", "awk '$4==\"failed\"{print $3}' {} | "
                                                                 "LC_ALL=C sort | uniq",
            "cut -d' ' -f3 {} | LC_ALL=C sort -u"),
    }  # fmt: skip
    solution, second, wrong = (command.replace("{}", f"{name}.log") for command in commands[level])
    return Exercise(
        f"Find out from {name}.log {text}, and write it into {target}.",
        tree,
        lambda final: final.lines(target) == expected and final.unchanged(tree),
        (f"{solution} > {target}",),
        (f"{second} > {target}",),
        (f"{wrong} > {target}",),
    )


@family("log-ranking", 2)
def log_ranking(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target = words.stems(2)
    users = rng.sample(PEOPLE, k=4)
    rows = [user for i, user in enumerate(users) for _ in range(3 + 2 * i)]
    rng.shuffle(rows)
    noise = [f"# {user}" for user in users]
    lines = [f"{i:03} GET /{rng.choice(noise)[2:]} {user}" for i, user in enumerate(rows)]
    tree = {f"{name}.log": file("\n".join(lines) + "\n")}
    ranking = [f"{user} {count}" for user, count in Counter(rows).most_common()]
    expected = ranking[:1] if level == 1 else ranking
    request = (
        "The user with the most requests and their number" if level == 1 else "Every user and their number of requests"
    )
    head = " | head -1" if level == 1 else ""
    counted = (
        f"awk '{{{{print ${{}}}}}}' {name}.log | sort | uniq -c | sort -rn{head} | awk '{{{{print $2,$1}}}}' > {target}"
    )
    python = (
        "import collections; c = collections.Counter(l.split()[3] for l in "
        f"open('{name}.log')).most_common({level * level**2}); "
        "print(*[f'{u} {n}' for u, n in c], sep='\\n')"
    )
    return Exercise(
        f"The last column of {name}.log is a user. {request}, separated by a space, belong into {target}"
        f"{'' if level == 1 else ', most requests first, one user a line'}.",
        tree,
        lambda final: final.lines(target) == expected and final.unchanged(tree),
        (counted.format(4),),
        (f'python3 -c "{python}" > {target}',),
        (counted.format(2),),
    )


@family("csv-total", 3)
def csv_total(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target = words.stems(2)
    categories = words.stems(3)
    rows = [(rng.choice(categories), rng.randint(1, 99), rng.randint(1, 9)) for _ in range(8 + 4 * level)]
    rows += [(category, 7, 2) for category in categories]
    selected_item = categories[0]
    tree = {f"{name}.csv": file("item,price,count\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))}
    totals = {
        1: ("the sum of all prices", sum(b for _, b, _ in rows)),
        2: (
            f"the sum of the prices of all rows with the item {selected_item}",
            sum(b for a, b, _ in rows if a == selected_item),
        ),
        3: (
            f"the sum of price times count of all rows with the item {selected_item}",
            sum(b * c for a, b, c in rows if a == selected_item),
        ),
    }
    text, total = totals[level]
    value = "$2*$3" if level == 3 else "$2"
    condition = f'$1=="{selected_item}"' if level > 1 else "NR>1"
    python_value = "int(r['price']) * int(r['count'])" if level == 3 else "int(r['price'])"
    python_condition = f" if r['item'] == '{selected_item}'" if level > 1 else ""
    python = f"import csv; print(sum({python_value} for r in csv.DictReader(open('{name}.csv')){python_condition}))"
    wrong = {1: "{s+=$3}END{print s}", 2: "{s+=1}END{print s}", 3: "{s+=$2}END{print s}"}[level]
    return Exercise(
        f"Write {text} in {name}.csv into {target}.",
        tree,
        lambda final: final.lines(target) == [str(total)] and final.unchanged(tree),
        (f"awk -F, '{condition}{{s+={value}}}END{{print s}}' {name}.csv > {target}",),
        (f'python3 -c "{python}" > {target}',),
        (f"awk -F, '{condition}{wrong}' {name}.csv > {target}",),
    )


@family("ask-sqlite", 2)
def ask_sqlite(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target = words.stems(2)
    table = f"{words.stem()}_rows"  # so that it is no keyword of SQL
    people = rng.sample(PEOPLE, k=8)
    amounts = rng.sample(range(10, 99), k=len(people))
    teams = words.stems(2)
    rows = [(person, amount, rng.choice(teams)) for person, amount in zip(people, amounts, strict=True)]
    rows[0] = (*rows[0][:2], teams[0])
    tree = {f"{name}.db": file(_database(table, rows))}
    if level == 1:
        best = max(rows, key=lambda row: row[1])
        text, expected = "the name with the largest amount", best[0]
        sql, wrong = (
            f"SELECT name FROM {table} ORDER BY amount DESC LIMIT 1",
            f"SELECT name FROM {table} ORDER BY amount LIMIT 1",
        )
    else:
        text, expected = (
            f"the sum of the amounts of the team {teams[0]}",
            str(sum(b for _, b, c in rows if c == teams[0])),
        )
        sql, wrong = f"SELECT SUM(amount) FROM {table} WHERE team = '{teams[0]}'", f"SELECT COUNT(amount) FROM {table}"

    def command(query: str) -> str:
        python = f"import sqlite3; print(sqlite3.connect('{name}.db').execute(\\\"{query}\\\").fetchone()[0])"
        return f'python3 -c "{python}" > {target}'

    other = (
        f"import sqlite3; rows = sqlite3.connect('{name}.db').execute('SELECT amount, name, team FROM "
        f"{table}').fetchall(); "
        + ("print(max(rows)[1])" if level == 1 else f"print(sum(a for a, _, t in rows if t == '{teams[0]}'))")
    )
    return Exercise(
        f"The SQLite database {name}.db has a table {table} with the columns name, amount and team. Write {text} into "
        f"{target}.",
        tree,
        lambda final: final.lines(target) == [expected],
        (command(sql),),
        (f'python3 -c "{other}" > {target}',),
        (command(wrong),),
    )


def _database(table: str, rows: list[tuple[str, int, str]]) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE {table} (name TEXT, amount INTEGER, team TEXT)")
    connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
    connection.commit()
    data = bytearray(connection.serialize())
    data[96:100] = bytes(4)  # the version of the library that wrote it
    connection.close()
    return bytes(data)
