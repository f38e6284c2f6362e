"""Objects by name: those of this package, those of installed packages, and any ``module:Name``.

Another package offers one in its metadata:

    [project.entry-points."gagpo.engines"]
    mine = "my_package.my_engine:MyEngine"

A module is imported only when its object is used, so a missing library affects no other object. It may lie in the
working directory, which is searched last, so a file there never replaces a library.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from gagpo.base import renamed
from gagpo.base.errors import InvalidArgument, MissingPackage, is_termination
from gagpo.base.nearest import hint
from gagpo.base.options import Options, by_name, explain

_MODULE = re.compile(r"[^./\\\0]+(\.[^./\\\0]+)*")

Registered = TypeVar("Registered")
OptionsType = TypeVar("OptionsType", bound=Options)


def import_from_here(module: str) -> ModuleType:
    """Import ``module``; if it is not found, append the working directory to ``sys.path`` and try again.

    Raises: ModuleNotFoundError as well for a relative name and for a path, which Python would search from elsewhere.
    """
    if not _MODULE.fullmatch(module):
        raise ModuleNotFoundError(f"{module!r:.80} is not the name of a module, such as package.module", name=module)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        missing_itself = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        if not missing_itself or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(module)


class Registry(Generic[Registered]):
    """Objects of one kind by name.

    kind: its name in errors.
    group: the group of entry points.
    builtin: ``module:Name`` of this package's objects, which cannot be replaced.
    check: raises :class:`InvalidArgument` for an object of another kind.
    new_names: of objects that were renamed, by the old name.
    home: the package whose folders offer the builtin ones, if they do: a folder that was deleted is missing there.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        builtin: Mapping[str, str],
        check: Callable[[Any, str], None] | None = None,
        new_names: Mapping[str, str] | None = None,
        home: str = "",
    ):
        self.kind = kind
        self.home = home
        self.new_names = new_names or {}
        self.group = group
        self.builtin = builtin
        self._check = check
        self._added: dict[str, Registered] = {}

    def add(self, name: str, thing: Registered) -> None:
        """Register an object in this process; :class:`InvalidArgument` if the name is taken."""
        present = self._added.get(name)
        if name in self.builtin or (present is not None and _place(present) != _place(thing)):
            raise InvalidArgument(
                f"there is a {self.kind} {name!r} already", advice=f"choose another name for {_place(thing)}"
            )
        self._added[name] = thing

    def remove(self, name: str) -> None:
        """Undo :meth:`add`, if ``name`` was added."""
        self._added.pop(name, None)

    def offered(self) -> dict[str, EntryPoint]:
        """The entry points of installed packages, by name."""
        return {point.name: point for point in entry_points(group=self.group)}

    def places(self) -> dict[str, str]:
        """``module:Name`` of every named object: this package's, then added ones, then those of other packages."""
        added = {name: _place(added_object) for name, added_object in self._added.items()}
        offered = {name: point.value for name, point in self.offered().items()}
        # The first two set the order, the last two win.
        return {**self.builtin, **added, **offered, **added, **self.builtin}

    def place(self, name: str) -> str:
        """``module:Name`` of a name, without importing it; :class:`InvalidArgument` suggests the nearest names."""
        addresses = self.builtin if name in self.builtin else self.places()
        if name in addresses:
            return addresses[name]
        if all(name.partition(":")):
            return name
        if reason := renamed.replacement(self.new_names, name, self.kind):
            raise InvalidArgument(reason)
        home = f"; no folder of {self.home} offers it" if self.home else ""
        advice = f"{hint(name, addresses)}, or module:Name{home}"
        raise InvalidArgument(f"there is no {self.kind} {name!r}", advice=advice)

    def find(self, name: str) -> Registered:
        """The object called ``name``, imported if necessary.

        Raises:
            InvalidArgument: its module or attribute does not exist or fails to import.
            MissingPackage: its module requires another package.
        """
        added_object = self._added[name] if name in self._added else self._load(name)
        if self._check is not None:
            self._check(added_object, f"{self.kind} {name}")
        return added_object

    def _load(self, name: str) -> Registered:
        address = self.place(name)
        module, _, attribute = address.partition(":")
        offer = None if name in self.builtin else self.offered().get(name)
        title = f"{self.kind} {name}"
        if offer and offer.dist:
            title += f" of the package {offer.dist.name}"
        try:
            value: Any = import_from_here(module)
        except (Exception, SystemExit) as error:  # other people's code may raise anything
            if is_termination(error):
                raise
            missing = (error.name if isinstance(error, ModuleNotFoundError) else "") or ""
            package = missing.partition(".")[0]
            if missing and f"{module}.".startswith(f"{missing}."):
                raise InvalidArgument(f"there is no module {module!r} to import", where=title) from None
            if missing and package != module.partition(".")[0]:
                raise MissingPackage(
                    f"needs the package {package}", where=title, advice=f"pip install {package}"
                ) from None
            if name in self.builtin:
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise InvalidArgument(f"importing {module!r} fails: {reason}", where=title) from error
        for step in attribute.split("."):
            if not hasattr(value, step):
                raise InvalidArgument(f"module {module!r} has no {attribute!r}", where=title)
            value = getattr(value, step)
        return cast(Registered, value)


class OptionsRegistry(Registry[type[OptionsType]]):
    """Classes of options by name, each derived from ``base``."""

    def __init__(
        self,
        kind: str,
        group: str,
        builtin: Mapping[str, str],
        base: type[OptionsType],
        new_names: Mapping[str, str] | None = None,
    ):
        super().__init__(kind, group, builtin, self.check, new_names)
        self.base = base

    def check(self, thing: Any, title: str) -> None:
        """:class:`InvalidArgument` for a thing that is not a class derived from ``base``."""
        if not isinstance(thing, type) or not issubclass(thing, self.base):
            package = self.base.__module__.rpartition(".")[0]
            raise InvalidArgument(
                f"is not a {self.kind}", where=title, advice=f"derive the class from {package}.{self.base.__name__}"
            )

    def make(self, value: Any) -> OptionsType:
        """Options from a name or from ``{"name": ..., option: value}``; :class:`InvalidArgument` says what is wrong."""
        if isinstance(value, self.base):
            return value
        value = by_name(value)
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            names = hint("", list(self.places()))
            raise InvalidArgument(f"a {self.kind} is a name, or options with a name among them", advice=names)
        options_type = self.find(value["name"])
        try:
            return options_type.model_validate(dict(value))
        except ValidationError as error:
            raise explain(error, options_type.model_fields, f"{self.kind} {value['name']}") from None


def _place(thing: object) -> str:
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', thing)}"
