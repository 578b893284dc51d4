"""Writes a program step by step: picks values, adds expressions that trace, and their types."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from tests.soak.program import AXES, Body, Spec, Step, Type, element_type, scope_of

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "int8", "uint8", "uint32")
MOST_ELEMENTS = 20_000
_REFUSALS = (
    TypeError,
    ValueError,
    IndexError,
    ArithmeticError,
    NotImplementedError,
    AssertionError,
)
"""Of JAX: `reshape(0, -1)` of an empty array divides by zero."""


class NothingFitsError(Exception):
    """No value is there that an expression could read."""


@dataclass
class Writer:
    """A body under construction.

    Args:
        rng: Of all choices.
        mesh: Sizes of the axes.
        known: The values so far.
        steps: What made them.
        names: Of everything in the program; bodies inside share it.
        depth: Bodies around this one.
    """

    rng: Random
    mesh: tuple[int, ...]
    known: dict[str, Type] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))
    depth: int = 0

    def name(self, letter: str = "v") -> str:
        """One that nothing has."""
        return f"{letter}{next(self.names)}"

    def inside(self, *parameters: tuple[str, Type]) -> Writer:
        """A writer of a body inside this one."""
        return Writer(self.rng, self.mesh, dict(parameters), names=self.names, depth=self.depth + 1)

    # -- picking ------------------------------------------------------------------------------

    def pick(self, fits: Callable[[Type], bool] = lambda _: True) -> str:
        """A value of a type that fits; later ones more often.

        Raises:
            NothingFitsError: There is none.
        """
        names = [name for name, found in self.known.items() if fits(found)]
        if not names:
            raise NothingFitsError
        late = names[-4:]
        return self.rng.choice(late if self.rng.random() < 0.6 else names)

    def real(self, least_rank: int = 0) -> str:
        """A float that has elements."""
        return self.pick(
            lambda of: of.dtype in FLOATS and len(of.shape) >= least_rank and 0 not in of.shape
        )

    def plain(self, least_rank: int = 0) -> str:
        """A float32 that has elements."""
        return self.pick(
            lambda of: of.dtype == "float32" and len(of.shape) >= least_rank and 0 not in of.shape
        )

    def tensor(self, least_rank: int = 1) -> str:
        """A value of any element type, maybe without elements."""
        return self.pick(lambda of: len(of.shape) >= least_rank)

    def like(self, name: str) -> str:
        """A value of the same type."""
        return self.pick(lambda of: of == self.known[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.known[name].shape

    def dim(self, name: str) -> int:
        """A dimension of a value."""
        return self.rng.randrange(len(self.shape(name)))

    def spec(self, shape: Sequence[int], free: float = 0.3) -> Spec:
        """Axes dealt to dimensions that they divide."""
        dims: list[list[str]] = [[] for _ in shape]
        left = list(shape)
        for axis in self.rng.sample(range(len(self.mesh)), len(self.mesh)):
            size = self.mesh[axis]
            fitting = [d for d, have in enumerate(left) if have and have % size == 0]
            if fitting and self.rng.random() > free:
                dim = self.rng.choice(fitting)
                dims[dim].append(AXES[axis])
                left[dim] //= size
        return tuple(map(tuple, dims))

    # -- adding -------------------------------------------------------------------------------

    def add(self, text: str, *reads: str, bodies: tuple[Body, ...] = ()) -> str:
        """A step, where its expression traces and makes one array of moderate size.

        Raises:
            NothingFitsError: It does not.
        """
        found = self._type_of(text, reads, bodies)
        name = self.name()
        self.steps.append(Step(name, text, reads, found, bodies))
        self.known[name] = found
        return name

    def _type_of(self, text: str, reads: Sequence[str], bodies: Sequence[Body]) -> Type:
        names = AXES[: len(self.mesh)]
        scope = scope_of(AbstractMesh(self.mesh, names))
        for body in bodies:
            exec("\n".join(body.lines()), scope)  # its free names are those read
        given = [
            jax.ShapeDtypeStruct(self.known[name].shape, element_type(self.known[name].dtype))
            for name in reads
        ]

        def run(*values: Any) -> Any:
            scope.update(zip(reads, values, strict=True))
            return eval(text, scope)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = jax.eval_shape(run, *given)
        except _REFUSALS as error:
            raise NothingFitsError from error
        if not isinstance(made, jax.ShapeDtypeStruct) or prod(made.shape) > MOST_ELEMENTS:
            raise NothingFitsError
        if not isinstance(made.dtype, jnp.dtype):
            raise NothingFitsError
        return Type.of(made)

    def body(self, results: Sequence[str], parameters: Sequence[tuple[str, Type]]) -> Body:
        """What was written, as a function."""
        return Body(self.name("f"), tuple(parameters), tuple(self.steps), tuple(results))
