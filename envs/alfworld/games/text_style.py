"""The wording of generated games: the verb that puts objects down, and the task texts.

Released games say ``move O to R`` since alfworld 0.4 and ``put O in/on R`` before; most published results use the
latter. Task texts are templates of the package, or sentences as people write them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from gagpo.base.errors import InvalidArgument
from gagpo.envs.alfworld.games.random_stream import RandomStream

Verb = Literal["move", "put", "both", "released"]
Texts = Literal["template", "human", "both"]


@dataclass(frozen=True)
class TextStyle:
    """The wording of a set of games: the verb alternates with each index, ``both`` texts with every second one."""

    verb: Verb = "move"
    texts: Texts = "template"

    def __post_init__(self) -> None:
        if self.verb not in get_args(Verb):
            raise InvalidArgument(
                f"there is no verb {self.verb!r}", advice=f"choose one of {', '.join(get_args(Verb))}"
            )
        if self.texts not in get_args(Texts):
            raise InvalidArgument(
                f"there are no texts {self.texts!r}", advice=f"choose one of {', '.join(get_args(Texts))}"
            )

    @property
    def suffix(self) -> str:
        """The suffix of the games' folder, empty for the default wording."""
        verb = "" if self.verb == "move" else f"-{self.verb}"
        return verb + ("" if self.texts == "template" else f"-texts-{self.texts}")

    @property
    def index_fields(self) -> dict[str, str]:
        """The settings that differ from the default, for the index of games."""
        return {name: value for name, value in vars(self).items() if value != getattr(TextStyle, name)}

    def uses_put(self, index: int) -> bool:
        """Whether game ``index`` says "put O in/on R"."""
        return self.verb == "put" or (self.verb != "move" and index % 2 == 1)

    def uses_human_text(self, index: int) -> bool:
        """Whether game ``index`` has a task text as people write it."""
        return self.texts == "human" or (self.texts == "both" and index // 2 % 2 == 1)


DEFAULT = TextStyle()


def with_put(grammar: str, located: bool = False) -> str:
    """The text grammar with "put O in/on R"; if ``located``, "You arrive at loc 12." as in releases before 0.4."""
    if located:
        grammar = grammar.replace("You arrive at {r.name}.", "You arrive at {lend.name}.")
    grammar = grammar.replace('"move {o} to {r}"', '"put {o} in/on {r}"')
    grammar = grammar.replace("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}.")
    return re.sub(r"move \(object\) to \(receptacle\): +", "put (object) in/on (receptacle):  ", grammar)


def plan_with_put(plan: list[str]) -> list[str]:
    """Commands in the wording of releases before 0.4."""
    return [re.sub(r"^move (.*) to (.*)$", r"put \1 in/on \2", command) for command in plan]


# Human task texts -----------------------------------------------------------------------------------------------------

_PLACE_TEMPLATES = (
    "move {a} {obj} to the {recep}",
    "place {a} {obj} on the {recep}",
    "set {a} {obj} down in the {recep}",
    "find {a} {obj} and leave it in the {recep}",
    "take {a} {obj} over to the {recep}",
    "bring {a} {obj} to the {recep}",
    "the {obj} belongs in the {recep}, carry it there",
    "get {a} {obj} and store it in the {recep}",
)
HUMAN_TEXTS: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": _PLACE_TEMPLATES,
    "look_at_obj_in_light": (
        "hold {a} {obj} under the light of the {toggle}",
        "pick up {a} {obj} and switch on the {toggle}",
        "inspect {a} {obj} by the {toggle}",
        "carry {a} {obj} to the {toggle} and turn it on",
        "read the {obj} in the glow of the {toggle}",
        "turn on the {toggle} to see {a} {obj} better",
    ),
    "pick_clean_then_place_in_recep": (
        "wash {a} {obj} and place it on the {recep}",
        "rinse {a} {obj}, then set it in the {recep}",
        "place a washed {obj} in the {recep}",
        "give {a} {obj} a rinse and move it to the {recep}",
        "move {a} {obj} to the {recep} once it has been cleaned",
        "bring a freshly cleaned {obj} to the {recep}",
    ),
    "pick_heat_then_place_in_recep": (
        "warm {a} {obj} up and place it on the {recep}",
        "cook {a} {obj}, then leave it in the {recep}",
        "place a heated {obj} in the {recep}",
        "move a warmed {obj} to the {recep}",
        "bring a hot {obj} over to the {recep}",
        "get {a} {obj} heated and set it in the {recep}",
    ),
    "pick_cool_then_place_in_recep": (
        "chill {a} {obj} and place it on the {recep}",
        "place a cold {obj} in the {recep}",
        "get {a} {obj} cooled and leave it on the {recep}",
        "move a chilled {obj} to the {recep}",
        "bring a cold {obj} over to the {recep}",
        "cool {a} {obj} down, then set it in the {recep}",
    ),
    "pick_two_obj_and_place": (
        "place two {objs} in the {recep}",
        "move both {objs} to the {recep}",
        "bring a pair of {objs} to the {recep}",
        "collect two {objs} and leave them on the {recep}",
        "gather 2 {objs} and store them in the {recep}",
        "the {recep} should hold two {objs}, put them there",
    ),
}


def human_text(rng: RandomStream, task_type: str, object_type: str, target: str, toggle: str) -> str:
    """A task text as people write it; type names are written as in the room or as separate words."""
    separate_words = rng.chance(1, 3)
    object_text, target_text, lamp = (_spoken(name, separate_words) for name in (object_type, target, toggle))
    article = rng.choose(("the", "some", "an" if object_text[0] in "aeiou" else "a"))
    text = rng.choose(HUMAN_TEXTS[task_type])
    plural = object_text + ("es" if object_text.endswith(("s", "x", "ch", "sh", "to")) else "s")
    return text.format(a=article, obj=object_text, objs=plural, recep=target_text, toggle=lamp)


def _spoken(name: str, separate_words: bool) -> str:
    tokens = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", name)
    if tokens and tokens[-1] == "Basin":
        tokens.pop()
        separate_words = separate_words or not tokens
        return "".join(tokens).lower() + ("" if separate_words else "basin")
    return (" " if separate_words else "").join(tokens).lower()
