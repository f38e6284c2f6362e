"""Problems from data sets and files: columns, gold answers, splits, missing data.

The rows are our own, in the columns of each preset's data set.
"""

import json

import datasets
import pytest
from datasets.naming import camelcase_to_snakecase, filename_prefix_for_split

from gagpo.base.errors import InvalidArgument
from gagpo.base.row_files import BadRow, DataMissing
from gagpo.envs.math import sources, tables
from gagpo.envs.math.env import MathEnv
from gagpo.envs.math.problems import SPLITS
from gagpo.envs.math.sources import PRESETS, Source, gold_of, load
from gagpo.envs.math.verify.pool import VerifyPool
from gagpo.envs.math.verify.verifier import Verifier
from gagpo.envs.tasks import EmptySplit
from tests.rejections import rejects

SAMPLES = {
    # preset: (rows in its columns, their gold answers)
    "gsm8k": (
        [
            {"question": "Mia bakes 3 trays of 12 rolls. How many rolls?", "answer": "3*12=<<3*12=36>>36\n#### 36"},
            {"question": "A car costs 12 times 1,000 dollars and 45 more.", "answer": "Add them.\n#### 12,045"},
            {"question": "It was 3 degrees and fell by 8.", "answer": "3-8=-5\n#### -5"},
        ],
        ["36", "12,045", "-5"],
    ),
    "math": (
        [
            {"problem": "Halve $\\frac{2}{7}$.", "solution": r"It is $\boxed{\frac{1}{7}}$.", "type": "Prealgebra"},
            {"problem": "Solve $x^2=9$.", "solution": r"So $x=\pm3$: $\boxed{-3,3}$.", "level": "Level 2"},
            {"problem": "Simplify $\\sqrt{50}$.", "solution": r"$\boxed{5\sqrt{2}}$", "level": "Level 3"},
            {"problem": "Where do they meet?", "solution": r"At $\boxed{\left( 1, \frac{5}{2} \right)}$."},
        ],
        [r"\frac{1}{7}", "-3,3", r"5\sqrt{2}", r"\left( 1, \frac{5}{2} \right)"],
    ),
    "math-500": (
        [
            {"problem": "Convert 5 to base 2.", "solution": "...", "answer": "101_2", "subject": "Number Theory"},
            {"problem": "Which way is up?", "solution": "...", "answer": r"\text{north}", "subject": "Geometry"},
            {"problem": "For which x is x > 2?", "solution": "...", "answer": r"(2,\infty)", "subject": "Algebra"},
        ],
        ["101_2", r"\text{north}", r"(2,\infty)"],
    ),
    "aime": ([{"id": 0, "problem": "How many lattice paths?", "solution": "...", "answer": "070"}], ["070"]),
    "aime-2024": ([{"id": 1, "problem": "Find m + n.", "solution": "...", "answer": "33", "year": 2024}], ["33"]),
    "amc-2023": ([{"question": "How far is it?", "answer": 27.0, "id": 0}], ["27"]),
    "aime-2025": ([{"problem": "Find the sum of the bases.", "answer": "81", "id": "0"}], ["81"]),
    "amc": (
        [
            {"id": 0, "problem": "How many triangles?", "answer": 142.0, "url": "none"},
            {"id": 1, "problem": "What is the mean?", "answer": 2.5, "url": "none"},
        ],
        ["142", "2.5"],
    ),
    "minerva": (
        [
            {"question": "How many joules?", "answer": "4.5e33"},
            {"question": "State the energy.", "answer": r"\frac{1}{2} m v^{2}"},
        ],
        ["4.5e33", r"\frac{1}{2} m v^{2}"],
    ),
    "olympiadbench": (
        [
            {"question": "Find the least n.", "final_answer": ["$2^{1009}$"], "is_multiple_answer": False},
            {"question": "Find all n.", "final_answer": ["$3$", "$5$"], "is_multiple_answer": True},
            {"question": "Find all pairs.", "final_answer": ["$(1,2),(2,1)$"], "subfield": "Number Theory"},
        ],
        ["$2^{1009}$", "3, 5", "$(1,2),(2,1)$"],
    ),
}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def pool():
    with VerifyPool() as pool:
        yield pool


@pytest.mark.parametrize("preset", PRESETS)
def test_gold_answers_of_every_preset_score_against_themselves(preset, tmp_path, pool):
    rows, golds = SAMPLES[preset]
    path = write(tmp_path / "sample.jsonl", rows)
    loaded = load({"test": f"{preset}:{path}"})
    problems = [loaded.problem(task.id) for task in loaded.tasks("test")]
    assert [problem.answer for problem in problems] == golds
    assert [problem.id for problem in problems] == [f"sample-test-{n:06d}" for n in range(1, len(rows) + 1)]
    verifier = Verifier(pool=pool)
    for problem in problems:
        assert verifier.verify(problem.answer, rf"\boxed{{{problem.answer}}}").reason == "match"
        assert verifier.verify(problem.answer, r"\boxed{-123456}").reason == "mismatch"


def cached(cache, source, splits_):
    """Put tables into the cache of the datasets library."""
    owner, name = source.path.split("/")
    config = source.config or "default"
    folder = cache / f"{owner}___{camelcase_to_snakecase(name)}" / config / "0.0.0" / "0123456789abcdef"
    folder.mkdir(parents=True)
    splits = datasets.SplitDict()
    for split, rows in splits_.items():
        table = datasets.Dataset.from_list(rows)
        file = folder / f"{filename_prefix_for_split(camelcase_to_snakecase(name), split)}.arrow"
        with datasets.arrow_writer.ArrowWriter(path=str(file), features=table.features) as writer:
            for row in rows:
                writer.write(row)
            writer.finalize()
        splits.add(datasets.SplitInfo(name=split, num_examples=len(rows), dataset_name=name))
    names = {"dataset_name": camelcase_to_snakecase(name), "config_name": config, "version": "0.0.0"}
    datasets.DatasetInfo(features=table.features, splits=splits, **names).write_to_directory(str(folder))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(tables, "reachable", lambda endpoint: False)
    sources._load.cache_clear()
    return tmp_path / "cache"


def test_a_cached_data_set_needs_no_network(cache):
    rows, golds = SAMPLES["gsm8k"]
    cached(cache, PRESETS["gsm8k"], {"train": rows[1:], "test": rows[:1]})
    loaded = load("gsm8k")
    assert [loaded.problem(task.id).answer for task in loaded.tasks("test")] == golds[:1]
    assert [task.id for task in loaded.tasks("train")] == ["gsm8k-train-000001", "gsm8k-train-000002"]
    with rejects(EmptySplit, key="split", advice="train, test"):
        loaded.tasks("validation").require()
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_data_set_of_one_split_is_divided(cache):
    source = Source("somebody/sums")
    rows = [{"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(20) for b in range(20)]
    cached(cache, source, {"train": rows})
    loaded = load("somebody/sums")
    sizes = {split: len(loaded.tasks(split)) for split in SPLITS}
    assert sum(sizes.values()) == 400 and sizes["train"] > 250 and min(sizes.values()) > 15


def test_a_data_set_lacks_the_split_that_is_asked_for(cache):
    rows = [{"problem": "1+1", "answer": "2"}]
    cached(cache, Source("somebody/sums"), {"train": rows, "dev": rows})
    with rejects(ValueError, "'test'", key="split", advice="train"):
        load({"test": "somebody/sums"})


def saved_gsm8k(folder, count):
    """A folder with GSM8K's file names: ``count`` training problems and three for the test."""
    folder.mkdir(exist_ok=True)
    rows = [{"question": f"Mia has {n} cups and {n % 7} plates.", "answer": f"#### {n}"} for n in range(count + 3)]
    write(folder / "train.jsonl", rows[3:])
    write(folder / "test.jsonl", rows[:3])
    return f"gsm8k:{folder}"


def test_a_tenth_of_the_training_problems_validates(tmp_path):
    loaded = load(saved_gsm8k(tmp_path / "copy", 400))
    texts = {split: {problem.text for problem in loaded.problems[split].values()} for split in SPLITS}
    assert len(texts["test"]) == 3 and len(texts["train"]) + len(texts["validation"]) == 400
    assert 20 < len(texts["validation"]) < 60 and not texts["train"] & texts["validation"]
    assert next(iter(loaded.problems["validation"])).startswith("copy-validation-")
    more = load(saved_gsm8k(tmp_path / "longer", 500)).problems
    assert texts["validation"] < {problem.text for problem in more["validation"].values()}


def test_a_part_of_the_training_problems_is_no_split_of_its_own(tmp_path):
    source = saved_gsm8k(tmp_path / "copy", 40)
    assert len(load({"train": source}).problems["train"]) == 40
    with rejects(ValueError, "'validation'", key="split", advice="train"):
        load({"validation": source})


def test_a_preset_of_a_missing_folder_names_the_download(tmp_path):
    with rejects(DataMissing, "openai/gsm8k", advice="data=gsm8k"):
        load(f"gsm8k:{tmp_path}/nowhere")


def test_missing_data_set_names_the_command(cache):
    with pytest.raises(DataMissing) as error:
        load("gsm8k")
    message = str(error.value)
    assert "\n" not in message and "openai/gsm8k is not on this machine" in message
    assert """python -c "from datasets import load_dataset; load_dataset('openai/gsm8k', 'main')\"""" in message
    assert message.endswith("or name a folder that holds its files: data=gsm8k:FOLDER")


def test_a_file_is_divided_by_content_and_the_same_everywhere(tmp_path):
    rows = [{"question": f"What is {a} * {b}?", "answer": a * b} for a in range(15) for b in range(15)]
    loaded = load(write(tmp_path / "products.jsonl", rows))
    splits = {split: {loaded.problem(t.id).text for t in loaded.tasks(split)} for split in SPLITS}
    assert sum(map(len, splits.values())) == 225 and all(splits.values())
    shuffled = load(write(tmp_path / "again.jsonl", rows[::-1]))
    assert {shuffled.problem(task.id).text for task in shuffled.tasks("test")} == splits["test"]


def test_held_out_problems_are_dropped_from_training(tmp_path):
    held = [{"problem": "What is 1 + 1?", "answer": "2"}]
    train = [{"problem": "What  is 1 + 1?\n", "answer": "2"}, {"problem": "What is 2 + 2?", "answer": "4"}]
    loaded = load({"train": write(tmp_path / "a.jsonl", train), "test": write(tmp_path / "b.jsonl", held)})
    assert [loaded.problem(task.id).text for task in loaded.tasks("train")] == ["What is 2 + 2?"]
    assert len(loaded.tasks("test")) == 1 and loaded.repeated == [f"{tmp_path / 'a.jsonl'}, row 1"]


GOLDS = [
    ("so\n#### 1,007", "hashes", "1,007"),
    (r"\boxed{1} or rather \boxed{\frac{1}{2}}", "boxed", r"\frac{1}{2}"),
    (142.0, "plain", "142"),
    (-3, "plain", "-3"),
    (2.5, "plain", "2.5"),
    (["$3$", "$5$"], "plain", "3, 5"),
    (["$7$"], "plain", "$7$"),
    ("  12 ", "plain", "12"),
]


@pytest.mark.parametrize(("value", "how", "gold"), GOLDS)
def test_gold_answers_of_cells(value, how, gold):
    assert gold_of(value, how) == gold


@pytest.mark.parametrize(
    ("value", "how", "name"),
    [("36", "hashes", "####"), ("36", "boxed", "boxed"), (float("nan"), "plain", "number")],
)
def test_cells_without_a_gold_answer(value, how, name):
    with rejects(ValueError, name):
        gold_of(value, how)


@pytest.mark.parametrize(
    ("data", "key", "names"),
    [
        ("gsm9k", "data", ("gsm9k", "gsm8k")),
        ("file.txt", "data", ("file.txt",)),
        ({"trian": "gsm8k"}, None, ("trian",)),
        ({}, "data", ()),
        ({"path": "a.jsonl", "question": "q"}, None, ("question",)),
        ({"path": "a.jsonl", "gold": "magic"}, None, ("magic",)),
        ({"test": 3}, "data", ("data 3",)),
        ({"test": ["a.jsonl"]}, "data", ("['a.jsonl']",)),
        ({"test": {"gold": "boxed"}}, "data", ()),
        ({"path": 5}, "path", ("5",)),
        ({"path": "a.jsonl", "splits": 5}, "splits", ("5",)),
    ],
)
def test_bad_names_are_refused(data, key, names):
    with rejects(ValueError, *names, key=key):
        load(data)


def test_a_missing_file_is_one_line(tmp_path):
    with rejects(DataMissing, "none.jsonl", advice="JSON"):
        load(str(tmp_path / "none.jsonl"))


def test_loading_is_cached(tmp_path):
    path = write(tmp_path / "a.jsonl", SAMPLES["amc"][0])
    assert load({"test": path}) is load({"test": path})


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 4?"}]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"prompt": MESSAGES[1:], "reward_model": {"style": "rule", "ground_truth": "7"}, "data_source": "x"}, ""),
        ({"prompt": MESSAGES, "answer": 7}, ""),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "3 + 4?"}]}], "answer": "7"}, ""),
        ({"prompt": [*MESSAGES, {"role": "assistant", "content": "7"}], "answer": "7"}, "one user message"),
        ({"prompt": [*MESSAGES, *MESSAGES], "answer": "7"}, "got 2 user messages"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "7"}, "one user message with text"),
        ({"prompt": ["3 + 4?"], "answer": "7"}, "'prompt'"),
        ({"prompt": MESSAGES, "reward_model": {"style": "model"}}, "'answer'"),
    ],
)
def test_a_prompt_may_be_a_list_of_messages(tmp_path, row, name):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "train.PARQUET"
    parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    if name:
        with rejects(BadRow, name, where="train.PARQUET, row 1"):
            load(str(path))
    else:
        (problem,) = load({"train": str(path)}).problems["train"].values()
        assert (problem.text, problem.answer) == ("3 + 4?", "7")


@pytest.mark.parametrize("name", ["x.CSV", "x.ndjson", "x.NDJSON", "x.JsonL", "a/b", "x.rows"])
def test_an_existing_file_is_read_and_never_taken_for_a_hub_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    content = "problem,answer\n3 + 4?,7\n" if name.endswith("CSV") else '{"problem": "3 + 4?", "answer": "7"}\n'
    (tmp_path / name).write_text(content)
    (problem,) = load({"train": name}).problems["train"].values()
    assert problem.answer == "7"


@pytest.mark.parametrize("name", ["x.jsonl.gz", "data/x.csv.ZIP", "x.xlsx"])
def test_a_packed_file_is_refused_by_its_suffix(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    with rejects(BadRow, name[name.rindex(".") :], where=name):
        load(name)


def test_one_of_several_answers_suffices_where_any_is_accepted(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"question": "Which primes are below 4?", "answer": ["2", "3"]}\n')
    for accept, rewards in (("all", {"2": 0.0, "2, 3": 1.0}), ("any", {"2": 1.0, "3": 1.0, "2, 3": 0.0, "5": 0.0})):
        env = MathEnv(data={"train": {"path": str(tmp_path / "x.jsonl"), "accept": accept}}, attempts=1)
        for answer, reward in rewards.items():
            env.reset(options={"task": next(iter(env.tasks("train"))).id})
            assert env.step(rf"\boxed{{{answer}}}")[1] == reward, (accept, answer)
        env.close()
    with rejects(InvalidArgument, key="accept"):
        Source("x.jsonl", accept="one")
