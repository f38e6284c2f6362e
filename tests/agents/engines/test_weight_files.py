"""The size of the files in which weights pass to servers."""

from gagpo.agents.engines.weight_files import WeightFiles, weight_files


def test_bytes_of_the_files_are_those_of_one_copy_per_machine():
    assert weight_files(15_231_000_000) == WeightFiles(15_231_000_000, 15_231_000_000)
    assert weight_files(15_000, 200) == WeightFiles(200, 15_200)
