import json
import multiprocessing
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.envs.tasks import UnknownTask
from gagpo.envs.webshop import store as store_module
from gagpo.envs.webshop.catalogue import find_sources
from gagpo.envs.webshop.generate import write_catalogue
from gagpo.envs.webshop.rows import CatalogueError
from gagpo.envs.webshop.store import Store, UnknownProduct, searched_text, store_for
from gagpo.envs.webshop.tagger import RuleTagger
from tests.envs.webshop.shelf import build, options, row, run_script, write_files
from tests.rejections import rejects


def test_a_product_comes_back_as_it_was_read(tmp_path):
    fields = {"customization_options": options(color=["Red/Blue"], size=["S", "M"]), "pricing": "$5.00 - $7.00"}
    store = build(tmp_path, [row("B1", "Zoë's “shirt” 木", **fields), row("B2")])
    product = store.product(store.number("B1"))
    assert (product.title, product.prices) == ("Zoë's “shirt” 木", (5.0, 7.0))
    assert product.options == {"color": ("red | blue",), "size": ("s", "m")}
    assert product.attributes == ("soft",)
    assert product.nouns == ("zoë", "shirt")
    assert 5.0 <= store.price(store.number("B1")) <= 7.0


def test_every_asin_is_found_and_no_other(tmp_path):
    asins = ["B0", "b00x", "Z", "Ä1", "10", "9"]
    store = build(tmp_path, [row(asin, f"shirt {asin}") for asin in asins])
    assert [store.product(store.number(asin.upper())).asin for asin in asins] == [asin.upper() for asin in asins]
    for wrong in ("", "B", "B000", "ZZ", "\ud800", "x" * 1_000):
        with rejects(UnknownProduct, "catalogue"):
            store.number(wrong)
    with pytest.raises(IndexError):
        store.product(len(asins))


def test_search_sees_title_description_first_feature_and_options(tmp_path):
    first = row(
        "B1",
        "alpha",
        full_description="beta",
        small_description=["gamma", "delta"],
        customization_options=options(color=["epsilon"]),
    )
    store = build(tmp_path, [first, row("B2", "other")])
    assert searched_text(store.product(0)) == "alpha beta gamma color: epsilon"
    assert [store.index.search(word) for word in ("alpha", "beta", "gamma", "epsilon")] == [(0,)] * 4
    assert store.index.search("delta") == ()


def test_goals_by_task_id(tmp_path):
    humans = {"B1": [{"instruction": "get it", "instruction_attributes": ["soft"], "instruction_options": []}]}
    store = build(tmp_path, [row("B1"), row("B2", "blue shirt")], humans=humans)
    assert store.goal("B1-s0").attributes == ("soft",)
    assert store.goal("B1-h0").request == "get it"
    with pytest.raises(UnknownTask):
        store.goal("B1-s7")
    with pytest.raises(UnknownTask):
        store.goal("")


def test_the_manifest_counts_skipped_rows(tmp_path):
    store = build(tmp_path, [row("B1"), row("B1"), row("nan")])
    assert store.manifest["left_out"] == {"double": 1, "nameless": 1}
    assert (store.manifest["products"], store.manifest["tagger"]) == (1, "rule-1")


def test_a_catalogue_has_a_bounded_number_of_goals(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_GOALS", 5)
    choices = options(size=["S", "M"])
    store = build(tmp_path, [row(f"B{n}", f"shirt {n}", customization_options=choices) for n in range(4)])
    assert store.manifest["goals"]["synthetic"] == 5
    assert store.manifest["left_out"] == {"goals_too_many": 3}


def test_an_empty_catalogue_is_refused(tmp_path):
    with rejects(CatalogueError, "usable", where="items_shuffle.json"):
        build(tmp_path, [])


def test_annotations_of_another_catalogue_are_refused(tmp_path):
    with rejects(CatalogueError, "items_shuffle.json", where="items_ins_v2.json"):
        build(tmp_path / "a", [row("B1")], attributes={"B9": {"attributes": ["soft"]}})
    with rejects(CatalogueError, "names", where="items_human_ins.json"):
        build(tmp_path / "b", [row("B1")], humans={"B9": []})


def test_a_failed_build_leaves_nothing_behind(tmp_path):
    with pytest.raises(CatalogueError):
        build(tmp_path, [row("B1"), row("B2", pricing="-$1.00")])
    assert [path.suffix for path in (tmp_path / "stores").iterdir()] == [".lock"]


def test_changed_files_make_another_store(tmp_path):
    first = build(tmp_path, [row("B1")])
    second = build(tmp_path, [row("B1", "another name")])
    assert first.folder != second.folder
    assert second.product(0).title == "another name"


def _build_and_tell(data: Path, root: Path, results: multiprocessing.SimpleQueue) -> None:
    builds = []
    real = store_module._build
    store_module._build = lambda *arguments: builds.append(1) or real(*arguments)
    folder = store_for(find_sources(data), root, tagger=RuleTagger())
    results.put((str(folder), len(builds), len(Store(folder))))


def test_one_of_several_processes_builds_the_store(tmp_path):
    (tmp_path / "data").mkdir()
    write_catalogue(tmp_path / "data", 300)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    workers = [
        context.Process(target=_build_and_tell, args=(tmp_path / "data", tmp_path / "stores", results))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    reported = [results.get() for _ in workers]
    assert len({folder for folder, _, _ in reported}) == 1
    assert sorted(builds for _, builds, _ in reported) == [0, 0, 1]
    assert {size for _, _, size in reported} == {300}


def test_a_builder_that_is_killed_leaves_neither_a_store_nor_a_lock(tmp_path):
    data = write_files(tmp_path / "data", [row(f"B{i}", f"shirt {i}") for i in range(5)])
    script = (
        "import sys, time; from pathlib import Path; from gagpo.envs.webshop import store\n"
        "from gagpo.envs.webshop.catalogue import find_sources; from gagpo.envs.webshop.tagger import RuleTagger\n"
        "store.IndexBuilder.save = lambda *_: (print('building', flush=True), time.sleep(60))\n"
        "store.store_for(find_sources(Path(sys.argv[1])), Path(sys.argv[2]), tagger=RuleTagger())"
    )
    command = [sys.executable, "-c", script, str(data), str(tmp_path / "stores")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "building\n"
        process.send_signal(signal.SIGKILL)
    folder = store_for(find_sources(data), tmp_path / "stores", tagger=RuleTagger())
    assert len(Store(folder)) == 5


def test_workers_share_what_they_map(tmp_path):
    """A worker maps the file instead of copying it."""
    data = write_files(
        tmp_path / "data", [row(f"B{i}", f"shirt {i}", full_description="x" * 9_000) for i in range(1_000)]
    )
    folder = store_for(find_sources(data), tmp_path / "stores", tagger=RuleTagger())
    script = (
        "import sys, psutil; from pathlib import Path; from gagpo.envs.webshop.store import Store\n"
        "import bm25s, Stemmer, numpy; me = psutil.Process(); before = me.memory_full_info().uss\n"
        "store = Store(Path(sys.argv[1])); total = sum(len(store._products[n]) for n in range(len(store)))\n"
        "print(total, me.memory_full_info().uss - before)"
    )
    # The file must be mapped by two processes for its pages to count as shared.
    other = Store(folder)
    assert sum(len(other._products[n]) for n in range(len(other))) > 9_000_000
    total, reference = map(int, run_script(script, folder).split())
    assert total > 9_000_000
    assert reference < total / 3


def test_a_store_holds_no_python_objects_to_unpickle(tmp_path):
    folder = build(tmp_path, [row("B1")]).folder
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {".npy", ".bin", ".json"}
    assert json.loads((folder / "manifest.json").read_text())["format"] == store_module.FORMAT


def test_a_store_of_another_format_is_built_anew_not_misread(tmp_path, monkeypatch):
    data = write_files(tmp_path / "data", [row("B1")])
    monkeypatch.setattr(store_module, "FORMAT", store_module.FORMAT - 1)
    old = store_for(find_sources(data), tmp_path / "stores", tagger=RuleTagger())
    monkeypatch.undo()
    new = store_for(find_sources(data), tmp_path / "stores", tagger=RuleTagger())
    assert old != new and len(Store(new)) == 1
    with rejects(CatalogueError, "manifest.json", "format 1", "reads 2"):
        Store(old)


def test_any_damage_to_a_built_store_is_one_line_that_names_the_file(tmp_path):
    """A changed byte, a truncated file, a missing file: never a traceback or a wrong answer."""
    humans = {"B1": [{"instruction": "get it", "instruction_attributes": ["soft"], "instruction_options": []}]}
    folder = build(tmp_path, [row("B1"), row("B2", "blue shirt")], humans=humans).folder
    rng = random.Random(0)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        damages = [data[: rng.randrange(len(data))], b"", b"[" * 100_000, None] if data else [b"x", None]
        for _ in range(4 if data else 0):
            randrange = rng.randrange(len(data))
            damages.append(data[:randrange] + bytes([data[randrange] ^ 1 << rng.randrange(8)]) + data[randrange + 1 :])
        for damaged in damages:
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(CatalogueError) as error:
                Store(folder)
            message = str(error.value)
            assert message.startswith(f"{folder}") and path.name in message and "\n" not in message
            assert "delete the folder to rebuild it" in message
            path.write_bytes(data)
    assert len(Store(folder)) == 2


def test_a_large_store_reports_a_damaged_row_when_it_is_read(tmp_path, monkeypatch):
    """Hashes of large stores are not compared, because opening would read the whole files."""
    folder = build(tmp_path, [row("B1")]).folder
    monkeypatch.setattr(store_module, "MAX_HASHED", 0)
    for name in ("products.bin", "goals-synthetic.bin"):
        path = folder / name
        data = path.read_bytes()
        path.write_bytes(b"\xff" + data[1:])
        store = Store(folder)
        with rejects(CatalogueError, f"{name}, row 1", advice="delete the folder"):
            store.product(0) if name == "products.bin" else store.goal("B1-s0")
        path.write_bytes(data)


def test_goals_that_the_published_rule_fails_are_left_out_unless_exact(tmp_path):
    """``standard`` contains the colour ``tan``, which the rule compares instead."""
    choices = options(style=["Standard", "Fancy"])
    folder = build(tmp_path, [row("B1", customization_options=choices)]).folder
    lists = {exact: Store(folder, exact) for exact in (False, True)}
    splits = ("train", "validation", "test")
    ids = {
        exact: {i for split in splits for i in store.tasks("synthetic", split).ids} for exact, store in lists.items()
    }
    assert ids == {False: {"B1-s1"}, True: {"B1-s0", "B1-s1"}}
    assert lists[True].goal("B1-s0").options == (("style", "standard"),)
    assert lists[False].manifest["left_out"] == {"goals_out_of_reach": 1}
    assert lists[False].manifest["goals"] == {"synthetic": 1, "human": 0}
    assert lists[False].manifest["exact_goals"] == {"synthetic": 2, "human": 0}


def test_exact_lists_doubles_and_options_without_a_name(tmp_path):
    choices = options(size=["M", "M", ""])
    folder = build(tmp_path, [row("B1", customization_options=choices)]).folder
    counted = {exact: sum(len(Store(folder, exact).tasks("synthetic", s)) for s in ("train", "validation", "test"))
               for exact in (False, True)}  # fmt: skip
    assert counted == {False: 1, True: 3}


ODD = (*("[", "{", '"', "null", "9" * 5_000, "-1e999", "NaN", '"\\ud800"', "[" * 300 + "]" * 300, "\x00", "{}", "[]"),)


def test_mutated_data_files_are_built_or_refused_in_one_line(tmp_path):
    """Whatever a file holds: a store, or one line that names the file, and the row where there is one."""
    humans = {"B1": [{"instruction": "get it", "instruction_attributes": ["soft"], "instruction_options": ["s"]}]}
    data = write_files(
        tmp_path / "data", [row("B1", customization_options=options(size=["s", "m"])), row("B2")], humans=humans
    )
    files = {path: path.read_text("utf-8") for path in sorted(data.iterdir())}
    rng, refused = random.Random(0), 0
    for n in range(60):
        path = rng.choice(list(files))
        text = files[path]
        start = rng.randrange(len(text))
        mutated = text[:start] + rng.choice(ODD) + text[start + rng.choice((0, 1, 1, 5, 50)) :]
        if n % 3 == 0:  # a value of another kind, so that the JSON stays whole
            values = list(re.finditer(r'(?<=: )(?:"[^"]*"|null|\[[^\[\]]*\])', text))
            value = rng.choice(values)
            mutated = text[: value.start()] + rng.choice(ODD[3:]) + text[value.end() :]
        path.write_text(mutated, "utf-8")
        try:
            folder = store_for(find_sources(data), tmp_path / f"stores-{n}", tagger=RuleTagger())
            store = Store(folder)
            assert all(store.product(number) for number in range(len(store)))
        except CatalogueError as error:
            refused += 1
            assert str(error).startswith(f"{data}") and "\n" not in str(error), error
            str(error).encode()
        path.write_text(text, "utf-8")
    assert 10 < refused < 60
