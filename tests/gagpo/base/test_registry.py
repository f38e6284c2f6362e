"""A registry finds objects by name; an error in another package is one line that names it."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path

import pytest

from gagpo.base import nearest
from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.base.registry import Registry
from tests.rejections import rejects


def paint(thing: object, what: str) -> None:
    if not isinstance(thing, str):
        raise InvalidArgument(f"{what} is no colour")


@pytest.fixture
def colours(tmp_path: Path, offer: Callable[..., None]) -> Registry[str]:
    """Colours: one of ours, and those of an installed package of which only some can be imported."""
    (tmp_path / "paints_red.py").write_text("red = '#f00'\nclass Dark:\n    red = '#800'\nnumber = 7\n")
    (tmp_path / "paints_broken.py").write_text("raise RuntimeError('the tin\\nis empty')\n")
    (tmp_path / "paints_needy.py").write_text("import no_such_pigment.blue\n")
    offers = {"red": "paints_red:red", "dark-red": "paints_red:Dark.red", "line": "paints_red:red"}
    offer("paints", "test.colours", **offers, broken="paints_broken:x", needy="paints_needy:x", gone="paints_gone:x")
    return Registry("colour", "test.colours", {"line": "os:linesep"}, paint)


def test_things_are_found_by_name_and_by_place(colours: Registry[str]) -> None:
    assert colours.find("red") == "#f00"
    assert colours.find("dark-red") == colours.find("paints_red:Dark.red") == "#800"
    assert colours.find("line") == "\n", "what is ours is not replaced by a package's"
    assert list(colours.places()) == ["line", "red", "dark-red", "broken", "needy", "gone"]


@pytest.mark.parametrize(
    ("name", "error", "line"),
    [
        (
            "broken",
            InvalidArgument,
            "colour broken of the package paints: importing 'paints_broken' fails: RuntimeError: the tin is empty",
        ),
        ("needy", MissingPackage, "colour needy of the package paints: needs the package no_such_pigment; pip install"),
        ("gone", InvalidArgument, "colour gone of the package paints: there is no module 'paints_gone'"),
        ("paints_red:green", InvalidArgument, "colour paints_red:green: module 'paints_red' has no 'green'"),
        ("../x:y", InvalidArgument, "colour ../x:y: there is no module '../x' to import"),
        (".paints_red:red", InvalidArgument, "colour .paints_red:red: there is no module '.paints_red' to import"),
        ("paints_red:number", InvalidArgument, "colour paints_red:number is no colour"),
        ("rad", InvalidArgument, "there is no colour 'rad'; nearest: red"),
        ("xyz", InvalidArgument, "there is no colour 'xyz'; known: line, red"),
    ],
)
def test_whatever_a_package_does_is_one_line(
    colours: Registry[str], name: str, error: type[Exception], line: str
) -> None:
    with pytest.raises(error) as caught:
        colours.find(name)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_a_name_is_taken_once(colours: Registry[str]) -> None:
    class Own: ...

    class Other: ...

    items: Registry[type] = Registry("thing", "test.things", {"ours": "os:PathLike"})
    items.add("own", Own)
    items.add("own", Own)
    assert items.find("own") is Own
    for name, item in (("own", Other), ("ours", Own)):
        with rejects(InvalidArgument, name, advice="another name"):
            items.add(name, item)


def test_the_examples_in_docstrings() -> None:
    assert doctest.testmod(nearest).failed == 0
