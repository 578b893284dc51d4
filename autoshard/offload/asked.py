"""States that users ask to lie in host memory between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.constraints import Resolved
from autoshard.errors import ConstraintError
from autoshard.frontend.trace import Traced


@dataclass(frozen=True, slots=True)
class AskedState:
    """An argument that is to lie in host memory.

    Args:
        said: What says so, as messages name it.
        demand: Of arguments with one demand, one at least must lie there; None where none need.
    """

    said: str
    demand: str | None


def asked_states(
    asked: Resolved, traced: Traced, carried: Mapping[int, int]
) -> dict[int, AskedState]:
    """By flat argument, why it is to lie in host memory.

    A term on many arguments is about those that can; an `in_shardings` is about its own argument,
    an `out_shardings` about the one that the result replaces. An array that lies there already is
    a wish.

    Args:
        asked: The constraints of the program.
        traced: The program.
        carried: By argument, the result that replaces it.

    Raises:
        ConstraintError: A result is to lie there that replaces no argument.
    """
    terms = {one.text for one in asked.asked}
    argument_of = {result: argument for argument, result in carried.items()}
    found: dict[int, AskedState] = {}
    for place, given in enumerate(traced.annotated):
        if given is not None and given.memory_kind:
            found[place] = AskedState("the array that was given", None)
    for path, said in asked.hosted.items():
        is_result = path.startswith("out<")
        place = int(path.removeprefix("out<").removeprefix("in."))
        if is_result and place not in argument_of:
            raise ConstraintError(
                f"`{traced.out_names[place]}` cannot lie in host memory: it replaces no argument",
                where=said,
                fix="donate the argument that it replaces, or leave it on the device",
            )
        place = argument_of[place] if is_result else place
        found[place] = AskedState(said, said if said in terms else f"{said} {place}")
    return found
