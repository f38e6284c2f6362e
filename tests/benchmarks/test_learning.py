"""The command of the learning studies."""

import pytest

from benchmarks import learning


def test_an_unknown_variant_is_refused_with_those_that_exist(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["learning.py", "smollm2-maths", "--only", "gagpo", "lora"])
    with pytest.raises(SystemExit):
        learning.main()
    assert "smollm2-maths has no variant 'lora'; choose from 'gagpo', 'grpo', 'gagpo, LoRA'" in capsys.readouterr().err
