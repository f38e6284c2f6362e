import json
import multiprocessing
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
from gagpo.envs.webshop.store import Store, UnknownProduct, fresh_folder, searched_text, store_for
from gagpo.envs.webshop.tagger import RuleTagger
from tests.envs.webshop.shelf import build, options, row, write_files


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
        with pytest.raises(UnknownProduct, match="the catalogue has no product"):
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


def test_the_manifest_tells_what_was_left_out(tmp_path):
    store = build(tmp_path, [row("B1"), row("B1"), row("nan")])
    assert store.manifest["left_out"] == {"double": 1, "nameless": 1}
    assert (store.manifest["products"], store.manifest["tagger"]) == (1, "rule-1")


def test_a_catalogue_has_a_bounded_number_of_goals(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_GOALS", 5)
    choices = options(size=["S", "M"])
    store = build(tmp_path, [row(f"B{n}", f"shirt {n}", customization_options=choices) for n in range(4)])
    assert store.manifest["goals"]["synthetic"] == 5
    assert store.manifest["left_out"] == {"goals_too_many": 3}


def test_an_empty_catalogue_is_refused(tmp_path):
    with pytest.raises(CatalogueError, match=r"items_shuffle\.json: holds no usable product"):
        build(tmp_path, [])


def test_annotations_of_another_catalogue_are_refused(tmp_path):
    with pytest.raises(CatalogueError, match=r"items_ins_v2\.json: names no product of items_shuffle\.json"):
        build(tmp_path / "a", [row("B1")], attributes={"B9": {"attributes": ["soft"]}})
    with pytest.raises(CatalogueError, match=r"items_human_ins\.json: names no product"):
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


def test_a_damaged_store_is_refused_with_advice(tmp_path):
    folder = build(tmp_path, [row("B1")]).folder
    with (folder / "products.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CatalogueError, match=r"not a usable store .* delete it"):
        Store(folder)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(CatalogueError, match="not a usable store"):
        Store(folder)


def _build_and_tell(data: Path, root: Path, results: multiprocessing.SimpleQueue) -> None:
    builds = []
    real = store_module._build
    store_module._build = lambda *arguments: builds.append(1) or real(*arguments)
    folder = store_for(find_sources(data), root, tagger=RuleTagger())
    results.put((str(folder), len(builds), len(Store(folder))))


def test_of_several_processes_one_builds_and_all_get_the_store(tmp_path):
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
    told = [results.get() for _ in workers]
    assert len({folder for folder, _, _ in told}) == 1
    assert sorted(builds for _, builds, _ in told) == [0, 0, 1]
    assert {size for _, _, size in told} == {300}


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


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), fresh_folder(tmp_path / "new") as folder:
        (folder / "file").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with fresh_folder(tmp_path / "new") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new" / "file").read_text() == "x"


def test_workers_share_what_they_map(tmp_path):
    """The products that a worker reads are pages of the file, not copies of its own."""
    data = write_files(
        tmp_path / "data", [row(f"B{i}", f"shirt {i}", full_description="x" * 9_000) for i in range(3_000)]
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
    assert sum(len(other._products[n]) for n in range(len(other))) > 27_000_000
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    total, own = map(int, done.stdout.split())
    assert total > 27_000_000
    assert own < total / 3


def test_a_store_holds_no_python_objects_to_unpickle(tmp_path):
    folder = build(tmp_path, [row("B1")]).folder
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {".npy", ".bin", ".json"}
    assert json.loads((folder / "manifest.json").read_text())["format"] == store_module.FORMAT
