"""The settings of a warm start: the small model's shape, who demonstrates, and how it is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.prompts import STYLES
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.settings.environment import Kwargs


class SmallModelSettings(Options):
    """The shape of the model; the defaults have about 0.9 M parameters.

    Without ``warm_start.steps`` layers, width, heads, feed_forward, vocabulary and context that are not set are derived
    from the world's texts.
    """

    layers: int = Field(4, ge=1, description="transformer blocks")
    width: int = Field(128, ge=8, description="of the hidden states")
    heads: int = Field(4, ge=1, description="query heads")
    key_value_heads: int = Field(1, ge=1, description="key and value heads; fewer than heads to share them")
    feed_forward: int = Field(384, ge=8, description="width of the layer between")
    vocabulary: int = Field(1024, ge=300, description="at most this many tokens; a small world needs fewer")
    numbers: Literal["words", "digits", "names"] = Field(
        "words",
        description="tokens of numbers: like words, one per digit, or one with the name before (mug 1)",
    )
    marks: list[str] = Field([], description="texts that are one token each, such as ' [SEP] '")
    context: int = Field(4096, ge=64, description="most tokens of a prompt and its response")

    @model_validator(mode="after")
    def _divisible(self) -> SmallModelSettings:
        if "" in self.marks:
            raise InvalidArgument("a mark is a text of at least one letter; take the empty one out of marks")
        if self.width % self.heads or self.heads % self.key_value_heads:
            raise InvalidArgument("width must be a multiple of heads, and heads of key_value_heads")
        return self


class MixtureSettings(Options):
    """A part of a warm start's demonstrations: ``kwargs`` are laid over those of the environment."""

    share: float = Field(gt=0, description="relative to the other parts")
    kwargs: Kwargs = Field({}, description="in place of the environment's own")


class TeacherSettings(Options):
    """A model behind an OpenAI-compatible server that plays the demonstrations in place of the environment's expert."""

    model: str = Field(min_length=1, description="as the server calls it")
    base_url: str | None = Field(None, description="of a compatible server; OpenAI's own if absent")
    key_variable: str = Field("OPENAI_API_KEY", description="environment variable with the key")
    style: str = Field("tags", description=f"how it is asked: {', '.join(STYLES)}; the learner keeps context.style")
    temperature: float | None = Field(0.7, ge=0, description="that it plays at; none leaves it to the server")
    max_tokens: int = Field(512, ge=1, description="most tokens of one of its responses")
    concurrency: int = Field(16, ge=1, description="lessons at once")
    timeout: float = Field(120.0, gt=0, description="seconds for one answer")
    requests_per_minute: float | None = Field(None, gt=0, description="what the server allows; none for no limit")
    tokens_per_minute: float | None = Field(None, gt=0, description="what the server allows; none for no limit")
    input_price: float = Field(0.0, ge=0, description="dollars per million tokens that it reads")
    output_price: float = Field(0.0, ge=0, description="dollars per million tokens that it writes")
    limit_cost: float | None = Field(None, ge=0, description="dollars after which to stop; finished lessons are kept")
    limit_tokens: int | None = Field(None, ge=0, description="tokens after which to stop; finished lessons are kept")

    @model_validator(mode="after")
    def _usable(self) -> TeacherSettings:
        if self.style not in STYLES:
            raise InvalidArgument(f"unknown style {self.style!r}; choose one of {', '.join(STYLES)}")
        self.api()
        return self

    def api(self) -> ApiSettings:
        """Who is asked, how patiently and at what price."""
        own = set(type(self).model_fields) - {"style", "temperature", "max_tokens", "concurrency"}
        return ApiSettings(**self.model_dump(include=own))


class WarmStartSettings(Options):
    """Supervised training of a small model on demonstrations; written to the folder that ``model`` names.

    Without ``steps`` it measures itself, goes on until the model speaks the world's language and has something left to
    learn, and what is not set of ``hasty``, ``wander``, ``batch`` and the model's shape is derived from the world.
    """

    player: Literal["expert", "random"] | None = Field(
        None,
        description="who demonstrates; random: chance, of whose tries those that earned most are kept; none: the "
        "expert where the world has one",
    )
    episodes: int = Field(3000, ge=1, description="demonstrations")
    noise: float = Field(
        0.1, ge=0, le=1, description="share of the expert's moves that go astray; a teacher's never do"
    )
    hasty: float = Field(0.0, ge=0, le=1, description="share of the episodes by the environment's hasty player")
    wander: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the expert's moves made at will and imitated with the others, which leaves something to "
        "learn in a world without a hasty player",
    )
    corrected: float = Field(
        0.0, ge=0, le=1, description="share of the episodes that `base` plays itself while the expert corrects it"
    )
    takeover: float = Field(
        0.15, ge=0, le=1, description="how likely the expert takes over for one to four moves after a turn of `base`"
    )
    takeover_refused: float = Field(
        0.35, ge=0, le=1, description="the same after a turn without effect; at 1 no way out of a second one is shown"
    )
    read_strays: bool = Field(True, description="moves that strayed are predicted like what is read; false skips them")
    stubborn: float = Field(
        0.0, ge=0, le=1, description="probability that a slip without effect is followed by another"
    )
    teacher: TeacherSettings | None = Field(None, description="a model over HTTP in place of the environment's expert")
    mixtures: list[MixtureSettings] = Field([], description="demonstrations from several variants of the environment")
    lexicon: bool = Field(False, description="the tokenizer knows all names of the world, seen or not")
    base: str | None = Field(None, description="model folder to go on from, with its tokenizer; none for a new model")
    steps: int | None = Field(
        None, ge=1, description="optimiser steps; none: until the panel says that the language is spoken"
    )
    most_steps: int = Field(4000, ge=1, description="without steps: when to stop in any case")
    panel: int = Field(
        16,
        ge=0,
        description="training tasks, eight tries each, that it is measured on every so often and at the end; 0: none",
    )
    decay: float | None = Field(
        None, gt=0, le=1, description="share of the steps in which a constant rate falls to zero; none for a cosine"
    )
    save_minutes: float = Field(5.0, gt=0, description="between states to go on from after an interruption")
    batch: int = Field(32, ge=1, description="episodes of one step")
    learning_rate: float = Field(4e-3, gt=0, le=10, description="the highest rate")
    observations: float = Field(
        0.3, ge=0, description="weight of predicting what is read beside what is said: copying is learned from it"
    )
    seed: int = Field(1, description="of model, demonstrations and order")
    model: SmallModelSettings = SmallModelSettings()

    @model_validator(mode="after")
    def _shares(self) -> WarmStartSettings:
        if self.hasty + self.corrected > 1:
            raise InvalidArgument(f"hasty and corrected are shares of one whole, got {self.hasty} and {self.corrected}")
        if self.corrected and self.base is None:
            raise InvalidArgument("corrected episodes are played by base: name a model folder there")
        if self.hasty and self.wander:
            raise InvalidArgument("hasty and wander both leave something to learn: set one of them")
        if self.player == "random" and (self.hasty or self.wander or self.corrected or self.teacher):
            raise InvalidArgument("random play is the only player then: take hasty, wander, corrected and teacher out")
        if self.steps is None and not self.panel:
            raise InvalidArgument("only a panel can say when to stop: set steps, or a panel of at least one task")
        return self

    @property
    def bound(self) -> int:
        """The optimiser steps that are taken, or without ``steps`` the most that may be."""
        return self.steps or self.most_steps
