"""The terms of users: pins, used shardings, groups; residuals to keep, recompute or offload."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

from autoshard.constraints.selector import Selector, parse_selector
from autoshard.errors import InputError, ShardingError
from autoshard.sharding import Sharding, format_sharding, parse_sharding


@runtime_checkable
class AnyRank(Protocol):
    """A sharding that is known once the number of dimensions is; a `PartitionSpec` is one."""

    def for_rank(self, rank: int) -> Sharding:
        """The sharding of a tensor with so many dimensions."""


SaidSharding: TypeAlias = Sharding | AnyRank


@dataclass(frozen=True, slots=True)
class Pin:
    """The selected tensors end so.

    Open dimensions may be cut further, closed ones are final, replicated axes hold copies. Where
    dimensions have priorities, they are decided in rounds.

    Args:
        select: Selector; see `constraints.selector`.
        sharding: A `Sharding` or its text, `<@mesh, [{"x"}, {?}]>` or just `[{"x"}, {?}]`; with
            `autoshard.optimize` also a `PartitionSpec` or `NamedSharding`.
        where: Where it is written, such as `constraints.yaml:12`.

    Raises:
        InputError: The selector cannot be read.
        ShardingError: The text of the sharding cannot be read.
    """

    select: str
    sharding: str | SaidSharding
    where: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        parse_selector(_text(self.select, "a selector"))
        object.__setattr__(self, "sharding", _read(self.sharding))

    @property
    def selector(self) -> Selector:
        return parse_selector(self.select)

    def __str__(self) -> str:
        return _at(f"pin `{self.select}`", self.where)


@dataclass(frozen=True, slots=True)
class Uses:
    """Reads of the selected tensors get this sharding; the tensors and other reads stay free.

    Args:
        select: What is read.
        sharding: As for `Pin`.
        by: Selector of the lines or names that read; None is every read.
        where: Where it is written.

    Raises:
        InputError: A selector cannot be read, or `by` is no line and no name.
        ShardingError: The text of the sharding cannot be read.
    """

    select: str
    sharding: str | SaidSharding
    by: str | None = None
    where: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        parse_selector(_text(self.select, "a selector"))
        if self.by is not None:
            parse_selector(_text(self.by, "a selector"))
        object.__setattr__(self, "sharding", _read(self.sharding))

    @property
    def selector(self) -> Selector:
        return parse_selector(self.select)

    @property
    def reader(self) -> Selector | None:
        return None if self.by is None else parse_selector(self.by)

    def __str__(self) -> str:
        by = "" if self.by is None else f" by `{self.by}`"
        return _at(f"uses of `{self.select}`{by}", self.where)


@dataclass(frozen=True, slots=True, init=False)
class Group:
    """Every selected tensor ends the same; groups of one id are one group.

    Args:
        selects: Selectors.
        id: A name or number, None for a group of its own.
        where: Where it is written.

    Raises:
        InputError: There is no selector, or one cannot be read, or the id is something else.
    """

    selects: tuple[str, ...]
    id: str | int | None
    where: str

    def __init__(self, *selects: str, id: str | int | None = None, where: str = "") -> None:  # noqa: A002
        for select in selects:
            parse_selector(_text(select, "a selector"))
        if not selects:
            raise InputError(
                "a group without selectors holds nothing",
                where=_at("group" if id is None else f"group {id!r}", where),
                fix='name its members, as in Group("params**", "momentum**")',
            )
        if not isinstance(id, (str, int, type(None))):
            raise InputError(
                f"expected a name or number for a group, found {type(id).__name__}",
                where=f"id={id!r}",
                fix='write Group("params**", "momentum**", id="state")',
            )
        object.__setattr__(self, "selects", selects)
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "where", where)

    @property
    def selectors(self) -> tuple[Selector, ...]:
        return tuple(map(parse_selector, self.selects))

    def __str__(self) -> str:
        shown = ", ".join(f"`{select}`" for select in self.selects)
        return _at(f"group of {shown}" if self.id is None else f"group {self.id!r}", self.where)


@dataclass(frozen=True, slots=True)
class _OfResiduals:
    select: str
    where: str = field(default="", kw_only=True)
    _verb: ClassVar[str]

    def __post_init__(self) -> None:
        _residual_selector(self.select)

    @property
    def selector(self) -> Selector:
        return _residual_selector(self.select)

    def __str__(self) -> str:
        return _at(f"{self._verb} `{self.select}`", self.where)


@dataclass(frozen=True, slots=True)
class Keep(_OfResiduals):
    """The selected values are kept from the forward pass, where backward passes read them.

    Args:
        select: Selector; a single word is a `checkpoint_name`.
        where: Where it is written, such as `constraints.yaml:12`.

    Raises:
        InputError: The selector cannot be read.
    """

    _verb: ClassVar[str] = "keep"


@dataclass(frozen=True, slots=True)
class Recompute(_OfResiduals):
    """The selected values are not kept: backward passes compute them again.

    Args:
        select: Selector; a single word is a `checkpoint_name`.
        where: Where it is written, such as `constraints.yaml:12`.

    Raises:
        InputError: The selector cannot be read.
    """

    _verb: ClassVar[str] = "recompute"


@dataclass(frozen=True, slots=True)
class Offload(_OfResiduals):
    """The selected values lie in host memory between the passes, selected arguments between steps.

    Of arguments, those that can: donated arrays that nothing but their own update reads, layers
    under scan, and copies in another type.

    Args:
        select: Selector; a single word is a `checkpoint_name`.
        where: Where it is written, such as `constraints.yaml:12`.

    Raises:
        InputError: The selector cannot be read.
    """

    _verb: ClassVar[str] = "offload"


ResidualTerm: TypeAlias = Keep | Recompute | Offload
Term: TypeAlias = Pin | Uses | Group | ResidualTerm


def sharding_of(term: Pin | Uses) -> SaidSharding:
    """The sharding of a term, whose text was read when it was made."""
    assert not isinstance(term.sharding, str)
    return term.sharding


def with_sharding(term: Pin | Uses, sharding: SaidSharding) -> Pin | Uses:
    """The same term with another sharding."""
    return replace(term, sharding=sharding)


def format_said(sharding: SaidSharding) -> str:
    """A sharding as the user said it."""
    return format_sharding(sharding) if isinstance(sharding, Sharding) else str(sharding)


def _read(given: object) -> object:
    if not isinstance(given, str):
        return given
    if not given.lstrip().startswith(("<", "[")):
        raise ShardingError(
            f"{given!r} is not the text of a sharding",
            where="a pin or use",
            fix='write one {} for each dimension, as in [{"data"}, {}]; or pass'
            ' jax.sharding.PartitionSpec("data")',
        )
    return parse_sharding(given)


def _residual_selector(given: object) -> Selector:
    text = _text(given, "a selector")
    is_word = text.strip().isidentifier()
    return parse_selector(f"name:{text}" if is_word else text)


def _text(given: object, what: str) -> str:
    if not isinstance(given, str):
        raise InputError(
            f"expected {what}, found {type(given).__name__}",
            where=repr(given),
            fix='write it as text: "params**", "model.py:42" or "name:hidden"',
        )
    return given


def _at(text: str, where: str) -> str:
    return f"{text} ({where})" if where else text
