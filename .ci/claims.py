"""The claims of the pages that committed rows can prove or refute, written as the rows say them.

python .ci/claims.py    prints every claim that its page does not make in these words

A number behind a ± and a "no significant difference" are claims. Each is composed here from ``lab/results`` or
``lab/studies``; the test asks for it word by word in its page, so that new rows change the sentence or fail the test.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.studies import map as map_study
from benchmarks.studies.rows import read_rows as read_raw_rows
from gagpo.eval.statistics import holm, mean_over_seeds, paired_t, pass_at_k
from gagpo.eval.study import Method, Study, read_rows
from gagpo.eval.units import PERCENT, p_value

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "lab" / "results"
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Claim:
    """A text that a page must contain.

    page: path below the repository.
    text: as the rows say it.
    """

    page: str
    text: str

    @property
    def is_made(self) -> bool:
        return self.text in _page(self.page)


@cache
def _page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def study(name: str, baseline: str | None = None) -> Study:
    """A study of committed rows, without its averaged weights."""
    rows = [row for row in read_rows(RESULTS / f"{name}.jsonl") if not row.label.endswith(", averaged")]
    return Study.of(rows, baseline)


def method(name: str, label: str, baseline: str | None = None) -> Method:
    """One method of a study."""
    return next(each for each in study(name, baseline).methods if each.label == label)


def difference(name: str, label: str, baseline: str, signed: bool = True) -> str:
    """A paired difference in points, such as ``+2.5 ± 0.6``."""
    gap = method(name, label, baseline).gap
    assert gap is not None
    return PERCENT.spread(gap, signed=signed)


def paired_gains(name: str, label: str, baseline: str) -> list[tuple[int, float]]:
    """Each seed that both have, and success after training less the baseline's."""
    minus = {row.seed: row.after for row in method(name, baseline).rows}
    return [(row.seed, row.after - minus[row.seed]) for row in method(name, label).rows if row.seed in minus]


def is_significant(name: str, label: str, baseline: str) -> bool:
    """Whether a difference is significant after Holm's correction over its table."""
    p = method(name, label, baseline).p_holm
    return p is not None and p < SIGNIFICANT


def p_of(name: str, label: str, baseline: str) -> str:
    """Its p-value after Holm's correction."""
    p = method(name, label, baseline).p_holm
    assert p is not None
    return p_value(p)


CREDITS = {
    "small rooms, 15 turns": ("credits", "ALFWorld, small rooms"),
    "full rooms, 30 turns": ("credits-full", "ALFWorld, full rooms"),
    "rooms like the released ones, 50 turns": ("credits-household", "ALFWorld, 50 turns"),
    "WebShop": ("credits-shop", "WebShop (three seeds)"),
    "math": ("maths", "math with a calculator"),
}
"""Row of ``docs/results.md``: the study and the row of README."""


def credit_claims() -> Iterator[Claim]:
    """GAGPO against GRPO in every environment, corrected over the five rows of this table."""
    gains = [[gain for _, gain in paired_gains(name, "gagpo", "grpo")] for name, _ in CREDITS.values()]
    p_values = holm([paired_t(each) for each in gains])
    differing = []
    for (row, (name, short)), p_holm in zip(CREDITS.items(), p_values, strict=True):
        gagpo, grpo = method(name, "gagpo"), method(name, "grpo")
        cells = [PERCENT.spread(each.mean(number)) for each in (gagpo, grpo) for number in ("area", "after")]
        p = p_value(p_holm)
        gained = difference(name, "gagpo", "grpo", signed=False)
        yield Claim("docs/results.md", f"| {row} | {len(gagpo.rows)} | {' | '.join(cells)} | {gained}, {p} |")
        yield Claim("README.md", f"| {short} | {cells[1]} | {cells[3]} | {gained}, {p} |")
        if p_holm < SIGNIFICANT:
            differing.append(row)
    assert differing == ["rooms like the released ones, 50 turns", "math"], differing
    # The two studies of which ten new seeds were set to decide alone.
    new = [[gain for seed, gain in paired_gains(name, "gagpo", "grpo") if seed > 5] for name in ("maths", "credits")]
    assert {len(each) for each in new} == {10}
    p_maths, p_rooms = holm([paired_t(each) for each in new])
    assert p_rooms > SIGNIFICANT > p_maths
    yield Claim(
        "docs/results.md",
        "GAGPO differs significantly from GRPO in rooms of fifty turns and in math, there on ten new seeds alone too "
        f"({PERCENT.spread(mean_over_seeds(new[0]), signed=True)}, p = {p_value(p_maths)}).",
    )
    yield Claim(
        "docs/papers.md",
        f"with equal turns {difference('credits-household', 'gagpo', 'grpo')} in rooms of fifty turns and "
        f"{difference('maths', 'gagpo', 'grpo')} in math; elsewhere no significant difference",
    )


def ablation_claims() -> Iterator[Claim]:
    """GAGPO's options, and what the single-turn ablations can tell."""
    for label, cells in (
        ("lambda 1", "| lambda 1 is worse | 93.5 to 82.7 % |"),
        ("norm batch", "| normalising over the batch is worse | worse |"),
        ("trajectory term", "| an added episode term is worse | worse |"),
    ):
        yield Claim("docs/papers.md", f"{cells} {difference('ablations', label, 'GAGPO')} points |")
    variants = study("ablations", "GAGPO").methods[1:]
    assert not any(is_significant("ablations", each.label, "GAGPO") for each in variants)
    shown = smallest_shown("ablations", "GAGPO")
    none = f"None of GAGPO's {len(variants)} variants differs significantly (five seeds show {shown} points)."
    yield Claim("docs/results.md", none)
    yield Claim("docs/papers.md", f"no variant differs significantly; five seeds show {shown} points.")
    yield Claim("docs/papers.md", f"By GRPO's spread five seeds show {smallest_shown('ablations-apmpo')} points;")
    shares = {label: f"{100 * mean_pass_at_64(label):.1f}" for label in ("no penalty", "GRPO")}
    yield Claim(
        "docs/papers.md",
        f"without it success and pass@64 ({shares['no penalty']} and {shares['GRPO']} %) are not told apart "
        "from GRPO's.",
    )
    after = {each.label: 100 * each.mean("after").value for each in study("ablations-agpo", "GRPO").methods}
    agpo, grpo = (
        f"{after[right] - after[wrong]:.1f}"
        for right, wrong in (("AGPO", "10 % of verdicts wrong"), ("GRPO", "GRPO, 10 % of verdicts wrong"))
    )
    yield Claim("docs/papers.md", f"Wrong verdicts cost it {agpo} points, GRPO {grpo}: not told apart.")
    labels = [each.label for each in study("ablations-sapo", "GRPO").methods[1:]]
    differing = [label for label in labels if is_significant("ablations-sapo", label, "GRPO")]
    worse = ["temperatures 0.5 and 0.525", "SAPO, one step a batch", "GRPO, one step a batch"]
    assert differing == worse, differing
    lost = [f"{100 * abs(method('ablations-sapo', label, 'GRPO').gap.value):.0f}" for label in worse[1:]]  # type: ignore[union-attr]
    assert len({*lost}) == 1
    gap = difference("ablations-sapo", worse[0], "GRPO")
    yield Claim("docs/papers.md", f"both lose {lost[0]} points; temperatures of 0.5 lose {gap.lstrip('-')}.")


def single_turn_claims() -> Iterator[Claim]:
    """The single-turn presets from a start at which GRPO learns."""
    gain = f"GRPO gains {100 * gain_of('single-turn'):.1f} points"
    yield Claim("docs/papers.md", f"{gain}, and five seeds show differences of {smallest_shown('single-turn')}.")
    labels = [each.label for each in study("single-turn", "GRPO").methods[1:]]
    assert [label for label in labels if is_significant("single-turn", label, "GRPO")] == ["AGPO, asymmetric"]
    yield Claim(
        "docs/papers.md", "Only asymmetric AGPO differs significantly here (adaptive AGPO does among its ablations)"
    )
    assert is_significant("ablations-agpo", "AGPO", "GRPO")
    yield Claim("docs/papers.md", f"above, {difference('single-turn', 'APMPO', 'GRPO')}")
    yield Claim("docs/results.md", f"where {gain}, only asymmetric AGPO differs from it")


def mean_pass_at_64(label: str) -> float:
    """Mean over the seeds' mean over problems."""
    rows = [row for row in read_raw_rows(map_study.FOLDER / "pass-at-64.jsonl") if row["label"] == label]
    by_seed = [[pass_at_k(row["tries"], right, 64) for right in row["successes"]] for row in rows]
    return sum(sum(shares) / len(shares) for shares in by_seed) / len(by_seed)


def smallest_shown(name: str, baseline: str = "GRPO") -> str:
    """The smallest difference that a study shows, in points; its own note says it, and no other."""
    (note,) = study(name, baseline).detectable()
    difference_shown = re.search(r"difference of ([\d.]+) points", note)
    assert difference_shown is not None
    return difference_shown[1]


def gain_of(name: str) -> float:
    """What GRPO gained in a single-turn study, mean over seeds."""
    rows = method(name, "GRPO", "GRPO").rows
    return sum(row.after - row.before for row in rows if row.before is not None) / len(rows)


def released_claims() -> Iterator[Claim]:
    """RL on released training games."""
    means = {label: PERCENT.spread(method("released", label).mean("after")) for label in ("gagpo", "grpo", "gigpo")}
    before = method("released", "gagpo").mean("before").value
    yield Claim(
        "docs/results.md",
        f"{100 * before:.1f} % before, GAGPO {means['gagpo']}, GRPO {means['grpo']}, GiGPO {means['gigpo']}. "
        f"GAGPO minus GRPO {gained('grpo')} (p = {p_of('released', 'grpo', 'gagpo')}), GiGPO {gained('gigpo')} "
        f"(p = {p_of('released', 'gigpo', 'gagpo')})",
    )
    yield Claim("README.md", f"| {100 * before:.1f} % | {means['gagpo']} % |")
    assert is_significant("released", "gigpo", "gagpo")
    rooms = {label: PERCENT.spread(method("released-rooms", label).mean("after")) for label in ("gagpo", "grpo")}
    assert not any(is_significant("released-rooms", label, "grpo") for label in ("gagpo", "graph_macro"))
    yield Claim(
        "docs/results.md",
        f"five seeds): {100 * method('released-rooms', 'gagpo').mean('before').value:.1f} % before, GAGPO "
        f"{rooms['gagpo']}, GRPO {rooms['grpo']}, not told apart;",
    )
    yield Claim(
        "docs/results.md",
        f"on released games, where GAGPO is {gained('gigpo').lstrip('+')} points above GiGPO "
        f"(p = {p_of('released', 'gigpo', 'gagpo')})",
    )


def gained(label: str) -> str:
    """GAGPO minus another credit on released games."""
    return difference("released", "gagpo", label)


def chat_model_claims() -> Iterator[Claim]:
    """A pretrained chat model after SFT."""
    maths, rooms = "smollm2-maths", "smollm2-alfworld-gpu"
    yield Claim(
        "docs/results.md",
        f"GAGPO minus GRPO over three seeds: {difference(maths, 'gagpo', 'grpo', False)} points in math "
        f"(p = {p_of(maths, 'grpo', 'gagpo')}), {difference(rooms, 'gagpo', 'grpo', False)} in ALFWorld on the GPU "
        f"(p = {p_of(rooms, 'grpo', 'gagpo')})",
    )
    for setting, name in (
        ("math with a calculator, `test`", maths),
        ("ALFWorld, small rooms, 32 tasks an iteration", rooms),
    ):
        before = f"{100 * method(name, 'gagpo').rows[0].before:.1f}"  # type: ignore[operator]
        yield Claim(
            "docs/results.md", f"| {setting} | {before} | {seeds_of(name, 'gagpo')} | {seeds_of(name, 'grpo')} |"
        )
    for setting, name in (
        ("WebShop, 1,000 products", "smollm2-webshop"),
        ("text-to-SQL, unseen tables", "smollm2-sql"),
    ):
        before = f"{100 * method(name, 'gagpo').rows[0].before:.1f}"  # type: ignore[operator]
        yield Claim(
            "docs/results.md", f"| {setting} | {before} | {seeds_of(name, 'gagpo')} | {seeds_of(name, 'grpo')} |"
        )
    sql = method("sql", "GAGPO")
    yield Claim("docs/results.md", f"| {100 * sql.mean('before').value:.1f} | {spread_of_equal(sql)} |")


def quickstart_claims() -> Iterator[Claim]:
    """The shipped configs as they are."""
    for name, table_row in (
        ("alfworld", "ALFWorld, small generated rooms | random 2.2"),
        ("math", "math with a calculator |"),
        ("webshop", "WebShop, 1,000 generated products | first search result: the same"),
    ):
        runs = method(f"quickstart-{name}", "GAGPO")
        before, after = f"{100 * runs.mean('before').value:.1f}", PERCENT.spread(runs.mean("after"))
        yield Claim("README.md", f"| {before} % | {after} % |")
        yield Claim("docs/results.md", f"| {table_row} | {before} | {after} | `gagpo train {name}-quickstart` |")
    rooms = method("quickstart-alfworld", "GAGPO")
    after = PERCENT.spread(rooms.mean("after"))
    yield Claim("docs/index.md", f"from {100 * rooms.mean('before').value:.1f} % to {after} % of unseen games")
    yield Claim(
        "docs/environments.md",
        f"{PERCENT.spread(method('quickstart-math', 'GAGPO').mean('after'))} % with the calculator",
    )


RATE_OF_ROOMS = 0.03
"""At which every method of the map is compared."""


def map_claims() -> Iterator[Claim]:
    """Where turn-level credit pays: gains over GRPO by limit of turns and share of recognised states."""
    rows = map_study.rows_at(map_study.FOLDER, RATE_OF_ROOMS)
    gains = {name: _map_gains(map_study.Map(rows, "small"), name) for name in ("gagpo-state", "graph")}
    again = map_study.Map(rows, "small", seeds=map_study.NEW_SEEDS)
    new = {name: _map_gains(again, name)[40, 1.0] for name in ("gagpo-state", "graph")}
    macro = _map_gains(again, "graph_macro")
    gagpo, graph, gain = gains["gagpo-state"], gains["graph"], map_study.gain_text
    assert gagpo[40, 0.0] == graph[40, 0.0]
    yield Claim(
        "docs/results.md",
        f"In 40 turns GAGPO minus GRPO is {gain(gagpo[40, 1.0], None)} points of area (ten new seeds "
        f"{gain(new['gagpo-state'], None)}), graph value's gain {gain(graph[40, 1.0], None)} "
        f"({gain(new['graph'], None)}); in 10, {gain(gagpo[10, 1.0], None)} and {gain(graph[10, 1.0], None)}. Where no "
        f"state is recognised both are at {gain(graph[40, 0.0], None)} in 40 turns. `graph_macro`, ours, is at "
        f"{gain(macro[40, 1.0], None)} where all are and at {gain(macro[40, 0.0], None)} where none is (ten new seeds)",
    )
    assert all(sum(values) > 0 and len(values) == len(map_study.NEW_SEEDS) for values in macro.values())
    yield Claim("docs/results.md", "and below GRPO in none of the nine cells.")


def _map_gains(rooms: map_study.Map, method_name: str) -> dict[tuple[int, float], list[float]]:
    """Gains of a method over GRPO without noise, by limit of turns and share of recognised states."""
    return {
        (limit, share): rooms.gains(method_name, limit, share)
        for limit in rooms.limits
        for share in map_study.RECOGNISED
    }


def terminal_claims() -> Iterator[Claim]:
    """Shell tasks."""
    long = {label: method("terminal-long", label) for label in ("gagpo", "grpo", "gigpo", "graph value")}
    after = {label: PERCENT.spread(each.mean("after")) for label, each in long.items()}
    yield Claim(
        "docs/terminal.md",
        f"{100 * long['gagpo'].mean('before').value:.1f} to {after['gagpo']} % (GRPO {after['grpo']}, "
        f"GiGPO {after['gigpo']}, graph value {after['graph value']})",
    )
    gagpo = method("terminal", "gagpo")
    yield Claim("README.md", f"| {100 * gagpo.mean('before').value:.1f} % | {PERCENT.spread(gagpo.mean('after'))} % |")


def seeds_of(name: str, label: str) -> str:
    """The success after training of each seed."""
    return ", ".join(f"{100 * row.after:.1f}" for row in sorted(method(name, label).rows, key=lambda row: row.seed))


def spread_of_equal(each: Method) -> str:
    """Mean and half interval, which is shown although all seeds are equal."""
    text = PERCENT.spread(each.mean("after"))
    return text if "±" in text else f"{text} ± 0.0"


def claims() -> list[Claim]:
    """Every claim."""
    return [
        *credit_claims(),
        *ablation_claims(),
        *single_turn_claims(),
        *released_claims(),
        *chat_model_claims(),
        *quickstart_claims(),
        *map_claims(),
        *terminal_claims(),
    ]


def unproved() -> list[str]:
    """Lines with a ± in README and results that no claim covers."""
    texts = [claim.text for claim in claims()]
    lines = [line for page in ("README.md", "docs/results.md") for line in _page(page).splitlines()]
    return [
        line for line in lines if "±" in line and not line.startswith("`±`") and not any(text in line for text in texts)
    ]


def main() -> int:
    missing = [claim for claim in claims() if not claim.is_made]
    for claim in missing:
        print(f"{claim.page} does not say: {claim.text}")
    for line in unproved():
        print(f"no rows say: {line}")
    return int(bool(missing or unproved()))


if __name__ == "__main__":
    sys.exit(main())
