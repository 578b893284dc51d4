"""Index notation: `A(i,j) += B(i,k) * C(k,j)`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from autoshard.errors import ScheduleError
from autoshard.sharding.source import source_with_caret

_TOKEN = re.compile(r"\s*(\+=|=|\*|\(|\)|,|[A-Za-z_][A-Za-z0-9_]*|\S|\Z)")


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor and the variables that index it; prints as `B(i,k)`."""

    tensor: str
    indices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.tensor}({','.join(self.indices)})"


@dataclass(frozen=True, slots=True)
class Statement:
    """A sum of products; prints as `A(i,j) += B(i,k) * C(k,j)`.

    The result starts at zero; variables that it lacks are summed over.

    Args:
        result: What is added to.
        operands: The factors, at least one.

    Raises:
        ScheduleError: A tensor stands twice, a tensor has one variable twice, or the result has a
            variable that no operand has.
    """

    result: Access
    operands: tuple[Access, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for access in (self.result, *self.operands):
            if access.tensor in seen:
                raise ScheduleError(
                    f"tensor {access.tensor} stands twice",
                    where=str(self),
                    fix="give each place a name of its own; the same array may be passed for both",
                )
            seen.add(access.tensor)
            if len(set(access.indices)) < len(access.indices):
                raise ScheduleError(
                    f"{access} has one variable twice",
                    where=str(self),
                    fix="take the diagonal beforehand",
                )
        used = {name for access in self.operands for name in access.indices}
        for name in self.result.indices:
            if name not in used:
                raise ScheduleError(
                    f"variable {name} of the result is in no operand",
                    where=str(self),
                    fix=f"use {name} on the right side too, or drop it",
                )

    def __str__(self) -> str:
        return f"{self.result} += {' * '.join(map(str, self.operands))}"

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The result, then the operands."""
        return (self.result, *self.operands)

    @property
    def variables(self) -> tuple[str, ...]:
        """Those of the result, then those summed over, in the order they are written."""
        names = [name for access in self.accesses for name in access.indices]
        return tuple(dict.fromkeys(names))

    @property
    def summed(self) -> tuple[str, ...]:
        """The variables that the result lacks."""
        return tuple(name for name in self.variables if name not in self.result.indices)

    def access(self, tensor: str) -> Access:
        """The one place of `tensor`.

        Raises:
            ScheduleError: There is none.
        """
        for access in self.accesses:
            if access.tensor == tensor:
                return access
        names = ", ".join(access.tensor for access in self.accesses)
        raise ScheduleError(
            f"the statement has no tensor {tensor}; its tensors are: {names}",
            where=str(self),
            fix="use one of them",
        )

    def extents_of(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The range of each variable, from the shapes of the operands in order.

        Raises:
            ScheduleError: A shape has another rank, or two shapes disagree.
        """
        if len(shapes) != len(self.operands):
            raise ScheduleError(
                f"there are {len(self.operands)} operands and {len(shapes)} shapes",
                where=str(self),
                fix="give one shape for each operand",
            )
        extents: dict[str, int] = {}
        for access, shape in zip(self.operands, shapes, strict=True):
            if len(shape) != len(access.indices):
                raise ScheduleError(
                    f"{access} has {len(access.indices)} variables and the array {len(shape)}"
                    " dimensions",
                    where=str(self),
                    fix="give one variable for each dimension",
                )
            for name, size in zip(access.indices, shape, strict=True):
                if extents.setdefault(name, size) != size:
                    raise ScheduleError(
                        f"variable {name} has size {extents[name]} and, in {access}, {size}",
                        where=str(self),
                        fix="give arrays that agree on it",
                    )
        return extents

    def einsum_text(self) -> str:
        """The same as `numpy.einsum` takes it: `ac,cb->ab`."""
        letters = {name: chr(ord("a") + at) for at, name in enumerate(self.variables)}

        def text(access: Access) -> str:
            return "".join(letters[name] for name in access.indices)

        return f"{','.join(map(text, self.operands))}->{text(self.result)}"

    def shape(self, tensor: str, extents: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of `tensor` under these ranges."""
        return tuple(extents[name] for name in self.access(tensor).indices)


def dot_general_statement(
    dimension_numbers: tuple[
        tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
    ],
    lhs_rank: int,
    rhs_rank: int,
) -> Statement:
    """`jax.lax.dot_general` as `A(...) += B(...) * C(...)`.

    Args:
        dimension_numbers: The contracted dimensions of both sides, then the batch dimensions.
        lhs_rank: Of `B`.
        rhs_rank: Of `C`.

    Returns:
        With variables `b0`, `b1` and so on for batch dimensions, `k0` for contracted ones, `m0` and
        `n0` for those left on either side; the result has them in the order of `dot_general`.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers

    def names(rank: int, batch: Sequence[int], contract: Sequence[int], rest: str) -> list[str]:
        free = [dim for dim in range(rank) if dim not in batch and dim not in contract]
        known = {dim: f"b{place}" for place, dim in enumerate(batch)}
        known |= {dim: f"k{place}" for place, dim in enumerate(contract)}
        known |= {dim: f"{rest}{place}" for place, dim in enumerate(free)}
        return [known[dim] for dim in range(rank)]

    lhs = names(lhs_rank, lhs_batch, lhs_contract, "m")
    rhs = names(rhs_rank, rhs_batch, rhs_contract, "n")
    batch = [f"b{place}" for place in range(len(lhs_batch))]
    left = [name for name in lhs if name[0] == "m"]
    right = [name for name in rhs if name[0] == "n"]
    return Statement(
        Access("A", (*batch, *left, *right)), (Access("B", tuple(lhs)), Access("C", tuple(rhs)))
    )


def parse_statement(text: str) -> Statement:
    """Read a statement.

    The grammar:

        statement = access ("+=" | "=") access ("*" access)*
        access    = word "(" (word ("," word)*)? ")"

    `=` means the same as `+=`, as the result starts at zero.

    Raises:
        ScheduleError: The text is no statement; the message shows it with a caret.
    """
    return _Reader(text).statement()


@dataclass(slots=True)
class _Reader:
    """A place in the text."""

    text: str
    at: int = 0

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match[1] if match else ""

    def take(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        assert match is not None
        self.at = match.end(1)
        return match[1]

    def fail(self, expected: str, fix: str = "") -> NoReturn:
        match = _TOKEN.match(self.text, self.at)
        token = match[1] if match else ""
        start = match.start(1) if match else len(self.text)
        found = f"found `{token}`" if token else "found the end"
        raise ScheduleError(
            f"expected {expected}, {found}", where=source_with_caret(self.text, start), fix=fix
        )

    def statement(self) -> Statement:
        result = self.access("the result, such as `A(i,j)`")
        if self.peek() not in {"+=", "="}:
            self.fail("`+=`", "as in `A(i,j) += B(i,k) * C(k,j)`")
        self.take()
        operands = [self.access("an operand, such as `B(i,k)`")]
        while self.peek() == "*":
            self.take()
            operands.append(self.access("an operand, such as `C(k,j)`"))
        if self.peek():
            self.fail("`*` or the end", "a statement is one product of tensors")
        return Statement(result, tuple(operands))

    def word(self, what: str) -> str:
        token = self.peek()
        if not token or not (token[0].isalpha() or token[0] == "_"):
            self.fail(what)
        return self.take()

    def access(self, what: str) -> Access:
        tensor = self.word(what)
        if self.peek() != "(":
            self.fail("`(`", "a scalar is written with empty parentheses, as in `a()`")
        self.take()
        indices: list[str] = []
        while self.peek() != ")" or indices:
            indices.append(self.word("a variable"))
            if self.peek() != ",":
                break
            self.take()
        if self.peek() != ")":
            self.fail("`,` or `)`")
        self.take()
        return Access(tensor, tuple(indices))
