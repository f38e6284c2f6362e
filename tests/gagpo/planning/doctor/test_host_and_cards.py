"""What is asked of the machine itself, with stand-ins for cards and for the kernel's files where these are not here."""

import resource
import types

import pytest
import torch

from gagpo.planning.doctor import cards, host
from gagpo.planning.doctor.machine import Machine, allocated, rank_device, waited
from gagpo.settings import SettingsError


@pytest.fixture
def machine(tmp_path):
    return Machine("cpu", "transformers", "float32", tmp_path, tmp_path, 2)


def test_versions_name_the_driver_and_miss_it_where_there_are_cards(machine, monkeypatch, tmp_path):
    assert host.check_versions(machine).verdict == "ok"
    driver = tmp_path / "version"
    monkeypatch.setattr(host, "DRIVER", driver)
    machine.device = "cuda"
    missing = host.check_versions(machine)
    assert missing.verdict == "warning" and "does not name a driver" in missing.summary
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan\nGCC version: 12.2.0\n")
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    found = host.check_versions(machine)
    assert found.verdict == "ok" and "cuda 12.9, nccl 2.27.5, driver 570.86.15" in found.summary
    driver.write_text("nonsense")
    assert host.driver_version() is None


def limited(monkeypatch, tmp_path, available_kb=2**26, group="max", files=65536, cores=8):
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text(f"MemTotal: 1 kB\nMemAvailable:   {available_kb} kB\n" if available_kb else "")
    limit.write_text(group)
    monkeypatch.setattr(host, "MEMINFO", info)
    monkeypatch.setattr(host, "GROUP_LIMITS", (limit, tmp_path / "absent"))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(cores)))


def test_a_host_with_enough_of_all_is_well(machine, monkeypatch, tmp_path):
    limited(monkeypatch, tmp_path)
    monkeypatch.setattr(host, "shared_memory", lambda: 2e9)
    assert host.check_host(machine).verdict == "ok"
    limited(monkeypatch, tmp_path, files=resource.RLIM_INFINITY)
    assert "no limit of open files" in host.check_host(machine).summary


SCARCE = {
    "memory": ({"available_kb": 1024}, 2e9, "2 processes want 2 GB"),
    "a container": ({"group": str(10**8)}, 2e9, "the container's limit"),
    "shared memory": ({}, 64e6, "--shm-size=16g"),
    "files": ({"files": 1024}, 2e9, "ulimit -n 65536"),
    "cores": ({"cores": 1}, 2e9, "1 cores for 2 processes"),
}


@pytest.mark.parametrize("what", SCARCE)
def test_what_is_scarce_is_named_with_what_to_do(machine, monkeypatch, tmp_path, what):
    values, shared, said = SCARCE[what]
    limited(monkeypatch, tmp_path, **values)
    monkeypatch.setattr(host, "shared_memory", lambda: shared)
    finding = host.check_host(machine)
    assert finding.verdict == "warning" and said in finding.advice and ";" not in finding.advice


def test_memory_is_asked_of_the_system_where_the_kernel_does_not_say(monkeypatch, tmp_path):
    limited(monkeypatch, tmp_path, available_kb=0)
    assert host.host_memory() > 1e6
    monkeypatch.setattr(host, "SHARED", tmp_path / "absent")
    assert host.shared_memory() == 0.0


def test_a_disk_is_measured_where_runs_will_lie(machine, monkeypatch, tmp_path):
    machine.runs = tmp_path / "not" / "yet"
    monkeypatch.setattr(host, "DISK_GB", 0.0)
    monkeypatch.setattr(host, "DISK_MB_PER_SECOND", 0.0)
    found = host.check_disk(machine)
    assert found.verdict == "ok" and found.values["write_mb_per_second"] > 0
    assert list(tmp_path.iterdir()) == [], "nothing stays"
    monkeypatch.setattr(host, "DISK_GB", 1e9)
    monkeypatch.setattr(host, "DISK_MB_PER_SECOND", 1e9)
    slow = host.check_disk(machine)
    assert slow.verdict == "warning" and "larger disk" in slow.advice and "faster disk" in slow.advice


def test_a_disk_that_gives_back_something_else_has_failed(machine, monkeypatch):
    blocks = iter([b"a" * 2**20])
    monkeypatch.setattr(host.os, "urandom", lambda size: next(blocks))
    monkeypatch.setattr(host, "WRITTEN", 2**23)
    real = host.tempfile.NamedTemporaryFile

    def lossy(**options):
        file = real(**options)
        honest = file.file.read
        return types.SimpleNamespace(
            __enter__=None, file=file, write=file.write, flush=file.flush, fileno=file.fileno, seek=file.seek,
            read=lambda size: honest(size).replace(b"a", b"b", 1),
        )  # fmt: skip

    class Lossy:
        def __init__(self, **options):
            self.made = lossy(**options)

        def __enter__(self):
            return self.made

        def __exit__(self, *_):
            self.made.file.close()

    monkeypatch.setattr(host.tempfile, "NamedTemporaryFile", Lossy)
    found = host.check_disk(machine)
    assert found.verdict == "failed" and "read back changed" in found.summary


# Cards ----------------------------------------------------------------------------------------------------------------


class FakeCards:
    """torch's view of cards that are not here; what is computed on them is on the CPU."""

    def __init__(self, monkeypatch, names, major=9):
        self.names, self.free, self.major = names, {}, major
        self.broken, self.lossy, self.apart = {}, set(), set()
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "device_count", lambda: len(names))
        monkeypatch.setattr(cuda, "get_device_name", lambda number: names[number])
        monkeypatch.setattr(cuda, "mem_get_info", lambda number: (self.free.get(number, 79e9), 80e9))
        monkeypatch.setattr(cuda, "get_device_properties", lambda _: types.SimpleNamespace(major=self.major))
        monkeypatch.setattr(cuda, "can_device_access_peer", lambda *pair: pair not in self.apart)
        monkeypatch.setattr(cards, "product_is_right", self.product)
        monkeypatch.setattr(cards, "COPIED", 64)
        monkeypatch.setattr(cards, "to_card", self.moved)
        self.finished = []
        monkeypatch.setattr(cuda, "synchronize", self.finished.append)
        self.place = {}

    def product(self, device):
        answer = self.broken.get(device, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def moved(self, tensor, number):
        copy = tensor.clone()
        if (self.place.get(id(tensor)), number) in self.lossy:
            copy[3] += 1
        self.place[id(copy)] = number
        self.kept = [*getattr(self, "kept", []), copy]  # so that no number is used twice
        return copy


H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def two(machine):
    machine.device = "cuda"
    return machine


def test_cards_are_counted_and_named(two, monkeypatch):
    FakeCards(monkeypatch, [H100, H100])
    found = cards.check_cards(two)
    assert (found.verdict, found.summary) == ("ok", f"2 x {H100}, 80 GB")
    two.processes = 3
    few = cards.check_cards(two)
    assert few.verdict == "failed" and few.summary == "2 cards for 3 processes" and "--processes 2" in few.advice


def test_a_broken_card_does_not_hide_the_others(two, monkeypatch):
    fake = FakeCards(monkeypatch, [H100, H100])
    fake.broken = {"cuda:0": RuntimeError("CUDA error: ECC\nmore"), "cuda:1": False}
    found = cards.check_cards(two)
    assert found.verdict == "failed" and len(found.values["cards"]) == 2
    assert "card 0 CUDA error: ECC; card 1 computes wrong products" in found.summary


def test_cards_that_others_hold_or_that_differ_are_a_warning(two, monkeypatch):
    fake = FakeCards(monkeypatch, [H100, "Tesla V100"], major=7)
    fake.free = {1: 40e9}
    found = cards.check_cards(two)
    assert found.verdict == "warning"
    for said in ("40.0 GB of card 1", "slowest kind", "no bfloat16"):
        assert said in found.advice


def test_copies_between_cards_are_compared(two, monkeypatch):
    fake = FakeCards(monkeypatch, [H100, H100])
    found = cards.check_peers(two)
    assert found.verdict == "ok" and "2 pairs" in found.summary and set(fake.finished) == {0, 1}
    fake.apart = {(1, 0)}
    assert cards.check_peers(two).verdict == "warning"
    fake.lossy = {(0, 1)}
    changed = cards.check_peers(two)
    assert changed.verdict == "failed" and "arrive changed: 0 to 1" in changed.summary and "IOMMU" in changed.advice
    two.processes = 1
    assert cards.check_peers(two).summary == "one card has no peer"


def test_a_device_that_computes_wrong_has_failed(machine, monkeypatch):
    assert cards.check_device(machine).verdict == "ok"
    monkeypatch.setattr(cards, "product_is_right", lambda _: False)
    assert cards.check_device(machine).verdict == "failed"


def test_each_rank_has_a_card_or_is_told_how_many_there_are(machine, monkeypatch):
    from gagpo.distributed.ranks import Ranks

    FakeCards(monkeypatch, [H100])
    with pytest.raises(RuntimeError, match="2 processes and 1 cards: say --processes 1"):
        rank_device("cuda", Ranks(1, 2, 1, 2))
    with pytest.raises(SettingsError):
        rank_device("none", Ranks())
    assert rank_device("cpu", Ranks()) == "cpu"


def test_a_cards_work_is_waited_for_before_and_after(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", seen.append)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
    with waited("cuda:1"):
        assert seen == ["cuda:1"]
    assert seen == ["cuda:1"] * 2 and allocated("cuda:1") == 5 and allocated("cpu") == 0
