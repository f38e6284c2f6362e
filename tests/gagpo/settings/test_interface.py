"""A model gets the form of its actions from its starter or run, unless it is set."""

import pytest

from gagpo.cli.play import PlayRequest, _environment
from gagpo.eval.conditions import conditions_of
from gagpo.eval.models import OptionSources, request_of
from gagpo.settings import load, load_stored
from tests.folders import needs

pytestmark = needs("envs/web")

CONFIG = """name: own
model: {model}
environment: {{id: {env}, kwargs: {kwargs}}}
algorithm: {{preset: gagpo}}
"""


@pytest.fixture
def config(tmp_path):
    def write(model="starter:web", kwargs="{source: webshop}", env="gagpo/Web-v0", more=""):
        path = tmp_path / "own.yaml"
        path.write_text(CONFIG.format(model=model, env=env, kwargs=kwargs) + more)
        return path

    return write


@pytest.mark.parametrize("read", [load, load_stored])
def test_a_new_run_takes_the_form_of_the_starter_that_it_begins_with(read, config):
    assert read(config()).environment.kwargs == {"source": "webshop", "form": "names"}
    sft = "sft: {base_model: starter:web}\n"
    assert read(config("data/own", more=sft)).environment.kwargs == {"source": "webshop", "form": "names"}
    assert read(config(), earlier=True).environment.kwargs == {"source": "webshop"}  # a stored run stays as it is


def test_each_of_several_environments_takes_the_form(config):
    rows = "environments: [{name: a, id: gagpo/Web-v0}, {name: b, id: gagpo/Math-v0}]\n"
    path = config()
    path.write_text(f"name: own\nmodel: starter:web\nalgorithm: {{preset: gagpo}}\n{rows}")
    assert [row.kwargs for row in load(path).environments] == [{"form": "names"}, {}]


def test_a_form_that_is_set_stays_and_other_models_and_environments_take_none(config):
    assert load(config(kwargs="{form: text}")).environment.kwargs == {"form": "text"}
    assert load(config(env="gagpo/WebShop-v0", kwargs="{}")).environment.kwargs == {}
    for model in ("starter:alfworld", "starter:none", "starter:../web", "data/own"):
        assert load(config(model, kwargs="{}")).environment.kwargs == {}


def test_an_evaluation_takes_the_form_of_the_model_and_not_of_where_the_tasks_come_from(config):
    def kwargs(**options):
        request = request_of("starter:web", **options)
        sources = OptionSources.of(request)
        return conditions_of(request, sources.run, sources.like).kwargs

    assert kwargs()["form"] == kwargs(like=config("data/other"))["form"] == "names"
    assert kwargs(environment="gagpo/Web-v0", kwargs={"source": "webshop"})["form"] == "names"
    assert kwargs(like=config("data/other"), kwargs={"form": "tools"})["form"] == "tools"


def test_playing_with_a_starter_shows_what_it_reads(config):
    for environment in ("gagpo/Web-v0", str(config("data/other"))):
        request = PlayRequest(environment=environment, model="starter:web")
        assert _environment(request)[1]["form"] == "names"
    assert "form" not in _environment(PlayRequest(environment="gagpo/Web-v0"))[1]
