"""Which operands of a program a path of a single read stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoshard.apply.flat_module import FlatModule, MlirOp, Place, equation_of, is_inside
from autoshard.errors import PlanError
from autoshard.use_paths import split_uses

Reader = tuple[MlirOp, int]
"""An op and the number of one of its operands."""

_USE = re.compile(r"(.*)<(\d+)(?:~(\d+))?$")


class UseReaders:
    """Finds what reads a value at one place of the program, each once.

    Args:
        flat: The program.
        terminator: What its main ends in.
        operand_paths: By equation path, the path of each operand, and by `7.jaxpr/out` those of the
            results of a body.
    """

    def __init__(
        self,
        flat: FlatModule,
        terminator: MlirOp,
        operand_paths: Mapping[str, Sequence[str | None]],
    ) -> None:
        self._flat = flat
        self._terminator = terminator
        self._operand_paths = operand_paths
        self._known: dict[tuple[str, int], tuple[Reader, ...]] = {}

    def num_copies(self, use: str) -> int:
        """The number of copies of the use in the program: several where a loop is unrolled."""
        places = [self._place(one) for one in split_uses(use)]
        return max((len(place.all) for place in places if place is not None), default=1)

    def of(self, use: str, copy: int = 0) -> tuple[Reader, ...]:
        """The operands that a use path (`7.jaxpr/38<1`, `38<1&52<0`, `out<2`) stands for.

        None where a loop carries a value that it neither changes nor reads: the flat program reads
        it past the loop.

        Args:
            use: The path.
            copy: In which copy of the body of an unrolled loop.

        Raises:
            PlanError: The program has no such use.
        """
        if (use, copy) not in self._known:
            uses = split_uses(use)
            self._known[use, copy] = tuple(
                dict.fromkeys(reader for one in uses for reader in self._of_one(one, copy))
            )
        return self._known[use, copy]

    def _of_one(self, use: str, copy: int) -> list[Reader]:
        found = list(self._find(use, copy))
        if not found and self._place(use) is None:
            raise no_such_path(use)
        return found

    def block_of(self, use: str, copy: int = 0) -> Any:
        """Where the equation of a use stands; a loop may read the operand only inside its body."""
        first = split_uses(use)[0]
        equation, _ = _parts(first)
        if equation == "out" or equation.endswith("/out"):
            return _outermost_block([user for user, _ in self.of(use, copy)])
        place = self._place(first)
        assert place is not None
        return place.all[copy].block

    def _place(self, use: str) -> Place | None:
        """Where the value that a use reads stands."""
        equation, position = _parts(use)
        operands = self._operand_paths.get(equation, ())
        path = operands[position] if position < len(operands) else None
        return None if path is None else self._flat.places.get(path)

    def _find(self, use: str, copy: int) -> Iterator[Reader]:
        equation, position = _parts(use)
        if equation == "out":
            if position < len(self._terminator.operands):
                yield self._terminator, position
            return
        place = self._place(use)
        if place is None or copy >= len(place.all):
            return
        place, operands = place.all[copy], self._operand_paths[equation]
        path = operands[position]
        num_earlier = operands[:position].count(path)
        num_reads = operands.count(path)
        if equation.endswith("/out"):
            yield from _of_body_result(place, equation.removesuffix("out"), num_earlier, num_reads)
        else:
            yield from _of_operand(place, equation, num_earlier, num_reads)


def no_such_path(path: str) -> PlanError:
    """What to say of a path that a program does not have."""
    return PlanError(
        "the plan constrains a value that the program does not have",
        where=path,
        fix="plan again for this program",
    )


def _parts(use: str) -> tuple[str, int]:
    """The equation of a use, and which of its operands it is."""
    match = _USE.fullmatch(use)
    assert match is not None
    return match[1], int(match[2])


def _of_operand(place: Place, equation: str, num_earlier: int, num_reads: int) -> list[Reader]:
    """Readers of a value that belong to an equation.

    Args:
        place: The value.
        equation: Its path.
        num_earlier: As how many operands before this one it reads the value.
        num_reads: As how many it reads it in all.
    """
    found = [
        (op, number)
        for op, number in place.readers
        if f"{equation_of(op)}.".startswith(f"{equation}.")
    ]
    if num_reads > 1 and all(op == found[0][0] for op, _ in found):
        # One op reads it as often as the equation, in the same order: this one only.
        found.sort(key=lambda reader: reader[1])
        if len(found) == num_reads:
            return [found[num_earlier]]
    return found


def _of_body_result(place: Place, body: str, num_earlier: int, num_reads: int) -> list[Reader]:
    """Readers of a value outside the body that returns it; of one result, if it does so often."""
    outside = [(op, number) for op, number in place.readers if not equation_of(op).startswith(body)]
    return _of_one_result(outside, body, num_earlier) if num_reads > 1 else outside


def _of_one_result(readers: Sequence[Reader], body: str, num_earlier: int) -> list[Reader]:
    """Of the readers of a value that a body returns several times, those of one of its results.

    What a body ends in comes first, as the carries of a scan do; the others read what it stacks.
    """
    holder = body.removesuffix("/").rpartition(".")[0]
    ends = [
        (op, number)
        for op, number in readers
        if op.name == "stablehlo.return" and equation_of(op) == holder
    ]
    ends.sort(key=lambda end: end[1])
    if num_earlier < len(ends):
        return [ends[num_earlier]]
    return [reader for reader in readers if reader not in ends]


def _outermost_block(ops: Sequence[MlirOp]) -> Any:
    """The block, of those the ops are in, in which all are nested."""
    block = ops[0].block
    for op in ops[1:]:
        while not is_inside(op.block, block):
            block = block.owner.operation.block
    return block
