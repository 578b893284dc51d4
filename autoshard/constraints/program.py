"""What selectors are asked on: a program's tensors and equations, as its user knows them.

Values are named by jaxpr path, as `frontend.jaxpr_paths` says: `in.3` is an argument, `out<2` a
result, `7.jaxpr/38.0` what an equation makes, `7.jaxpr/38<1` its operand 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoshard.source_place import SourcePlace


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """One step of the program.

    Args:
        primitive: `dot_general`.
        place: Its module and line, and whether it computes a cotangent.
        name: Of a `checkpoint_name`, the name.
        operands: Path of each operand; None for literals and what cannot be cut.
        results: Path of each result that something reads; None for others.
        bodies: What the bodies it holds return, by body: paths as in `operands`.
        carried: How many results, from the first on, its bodies also hand back to themselves.
    """

    primitive: str
    place: SourcePlace
    name: str = ""
    operands: tuple[str | None, ...] = ()
    results: tuple[str | None, ...] = ()
    bodies: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    carried: int = 0

    @property
    def line(self) -> str:
        """`file.py:12`."""
        return self.place.line

    @property
    def function(self) -> str:
        return self.place.function

    @property
    def is_backward(self) -> bool:
        return self.place.is_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program's tensors and equations.

    Args:
        arguments: Names of the flat arguments, such as `params['w1']`.
        argument_types: Their types.
        results: Names of the flat results, such as `result[0]`.
        result_types: Their types.
        returned: Path of each flat result; None for literals and what cannot be cut.
        equations: By path, in program order; those of a body come before the next of its holder.
        types: Of every value that something reads, by path.
        passed: For an argument of a body that is a value outside it unchanged, that value.
        manual: For values in `shard_map` bodies, the mesh axes they are local to.
    """

    arguments: tuple[str, ...]
    argument_types: tuple[TensorType, ...]
    results: tuple[str, ...]
    result_types: tuple[TensorType, ...]
    returned: tuple[str | None, ...]
    equations: Mapping[str, Equation]
    types: Mapping[str, TensorType]
    passed: Mapping[str, str]
    manual: Mapping[str, frozenset[str]] = field(default_factory=dict)


def holder_of(path: str) -> str:
    """The equation whose body holds an equation or value; "" at the top: `7` of `7.jaxpr/38`."""
    body = path.rpartition("/")[0]
    return body.rpartition(".")[0]
