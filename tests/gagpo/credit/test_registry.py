"""Finding credits by name, including those of other packages."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gagpo.agents.engines.registry import ENGINES
from gagpo.algorithms import Algorithm, load
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.credit import CREDITS, CreditSettings, Turns, advantages, register
from gagpo.settings import SettingsError, parse
from gagpo.trackers import TRACKERS
from tests.rejections import rejects

HALF = '''
"""Half of what an episode was paid, as its credit."""
import numpy as np
from pydantic import Field

from gagpo.agents.engines.registry import ENGINES
from gagpo.credit import CreditSettings, Turns, register


@register
class Half(CreditSettings):
    name: str = "half"
    share: float = Field(default=0.5, ge=0, le=1)

    def advantage(self, turns: Turns) -> np.ndarray:
        return self.share * turns.return_E[turns.episode_N]
'''

RUN = {"name": "a-run", "model": "a-model", "environment": {"id": "an-environment"}}
TURNS = Turns.of([0, 10, 0], [0, 0, 1], [0, 0])


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder outside of this repository with the module of a credit."""
    (tmp_path / "half_credit.py").write_text(HALF)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    CREDITS.remove("half")
    sys.modules.pop("half_credit", None)


def test_names_match_their_classes():
    for name in CREDITS.builtin:
        assert CREDITS.find(name)().name == name


def test_a_credit_of_another_file_is_found_by_module_and_class(elsewhere):
    algorithm = load("grpo", {"credit": {"name": "half_credit:Half", "share": 0.25}})
    assert advantages(TURNS, algorithm.credit).advantage_N.tolist() == [2.5, 2.5, 0]
    again = Algorithm.model_validate(yaml.safe_load(yaml.safe_dump(algorithm.model_dump(mode="json"))))
    assert again == algorithm and again.credit.name == "half_credit:Half"
    run = parse({**RUN, "algorithm": {"preset": "grpo", "credit": "half_credit:Half"}}, "run.yaml")
    assert run.algorithm.credit.share == 0.5


def test_a_file_in_the_working_directory_is_found(tmp_path, monkeypatch):
    """As an environment's is, for every kind of object."""
    (tmp_path / "credit_from_here.py").write_text(HALF.replace("@register", ""))
    monkeypatch.setattr(sys, "path", [location for location in sys.path if location])
    monkeypatch.chdir(tmp_path)
    assert load("grpo", {"credit": "credit_from_here:Half"}).credit.share == 0.5
    (tmp_path / "tracker_from_here.py").write_text("class Mine: pass")
    assert TRACKERS.find("tracker_from_here:Mine").__name__ == "Mine"
    text = "from gagpo.agents.engines.options import EngineOptions\nclass Mine(EngineOptions): pass"
    (tmp_path / "engine_from_here.py").write_text(text)
    assert ENGINES.find("engine_from_here:Mine").__name__ == "Mine"


def test_a_registered_credit_is_found_by_name(elsewhere):
    with rejects(ValueError, "'half'"):
        CREDITS.find("half")
    __import__("half_credit")
    assert advantages(TURNS, load("grpo", {"credit": "half"}).credit).advantage_N.tolist() == [5, 5, 0]
    assert "half" in CREDITS.places()
    with rejects(SettingsError, "'shar'", key="algorithm.credit.shar", advice="share"):
        parse({**RUN, "algorithm": {"credit": {"name": "half", "shar": 1}}}, "run.yaml")


def test_the_example_of_the_documentation_works():
    """Its turns are worth the return after them, less the mean return of other turns in the same state."""
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python credit\n(.*?)```", page, re.DOTALL)
    module: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "algorithms.md", "exec"), module)
    turns = Turns.of([0, 1, 0, 0, 5], [0, 0, 1, 1, 2], [7, 7, 8], state_N=[3, 4, 3, 3, 3])
    advantage = module["LooState"](gamma=0.5).advantage(turns)
    assert advantage.tolist() == [0.5, 0, -0.25, -0.25, 0]  # of returns 0.5, 1, 0, 0 in one task and 5 in another


def test_a_credit_of_an_installed_package_is_found_by_entry_point(elsewhere, offer):
    """In a separate process in which the package is installed."""
    offer("half_credit", "gagpo.credits", half="half_credit:Half")
    script = f"""
        import sys
        sys.path.insert(0, {str(elsewhere)!r})
        from gagpo.algorithms import load
        from gagpo.credit import CREDITS
        assert "half" in CREDITS.places() and "half_credit" not in sys.modules
        print(load("grpo", {{"credit": {{"name": "half", "share": 1.0}}}}).credit)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "name='half' share=1.0"


@pytest.mark.parametrize(
    ("value", "key", "names"),
    [
        ("gigp", "algorithm.credit", ("'gigp'", "nearest: gigpo")),
        ("nowhere_at_all:Half", "algorithm.credit", ("nowhere_at_all:Half", "'nowhere_at_all'")),
        ("numpy:Half", "algorithm.credit", ("numpy:Half", "'Half'")),
        ("numpy:ndarray", "algorithm.credit", ("numpy:ndarray", "gagpo.credit.CreditSettings")),
        ({"lam": 0.5}, "algorithm.credit", ("known: gagpo",)),
        ({"name": "gigpo", "gama": 0.5}, "algorithm.credit.gama", ("nearest: gamma",)),
        ({"name": "gigpo", "norm": "median"}, "algorithm.credit.norm", ("'mean_std' or 'mean'",)),
        (7, "algorithm.credit", ("name",)),
    ],
)
def test_errors_of_credits_are_one_line(value, key, names):
    with rejects(SettingsError, *names, key=key) as caught:
        parse({**RUN, "algorithm": {"credit": value}}, "run.yaml")
    assert "\n" not in str(caught.value)


def test_invalid_registrations_are_rejected():
    class Nameless(CreditSettings):
        pass

    class Taken(CreditSettings):
        name: str = "gagpo"

    with rejects(ValueError, where="Nameless", advice="field name"):
        register(Nameless)
    with rejects(ValueError, "'gagpo'", advice="another name"):
        register(Taken)
    with rejects(ValueError, where="what is registered", advice="CreditSettings"):
        register(dict)


def test_a_credit_without_its_method_names_it():
    class Idle(CreditSettings):
        name: str = "idle"

    with rejects(GagpoError, where="credit idle", advice="advantage(turns)"):
        advantages(TURNS, Idle())
    with rejects(GagpoError, key="critic", where="credit idle", advice="critic=null"):
        Idle().advantage_and_target(TURNS, None)


def test_a_credit_with_too_few_advantages_is_named():
    class Short(CreditSettings):
        name: str = "short"

        def advantage(self, turns):
            return np.zeros(1)

    with rejects(ValueError, "(1,)", advice="(3,)"):
        advantages(TURNS, Short())


def test_a_credit_with_the_old_name_of_the_state_key_is_an_error():
    with rejects(InvalidArgument, "state_key", key="key"):

        class Earlier(CreditSettings):
            name: str = "earlier"
            key: str = "state"
