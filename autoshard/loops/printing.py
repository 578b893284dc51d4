"""Loop nests as text: in one line of `forall` and `suchthat`, and as pseudo-code."""

from __future__ import annotations

from autoshard.loops.relations import Divide, Relation, Rotate, Split
from autoshard.loops.schedule import Schedule


def format_foralls(schedule: Schedule) -> str:
    """The loop nest in one line: `suchthat(forall(io, ...), divide(i, io, ii, 2) and ...)`.

    A loop over the grid says so, `Distributed(0)` for grid dimension 0; the tensors brought at the
    beginning of a loop's turns follow as `transfers`. What a variable is made of stands behind the
    nest. Loops over the grid stay apart: fusing them into one, as the literature does, would hide
    which of them runs over which dimension.
    """
    text = str(schedule.statement)
    for loop in reversed(schedule.loops):
        text = f"forall({loop.variable}, {text}"
        if loop.grid_dim is not None:
            text += f", Distributed({loop.grid_dim})"
        brought = schedule.communicated_at_loop(loop.variable)
        if brought:
            accesses = (str(schedule.statement.access(tensor)) for tensor in brought)
            text += f", transfers: {', '.join(f'transfer({access})' for access in accesses)}"
        text += ")"
    if not schedule.relations:
        return text
    return f"suchthat({text}, {' and '.join(map(str, schedule.relations))})"


def format_pseudo_code(schedule: Schedule) -> str:
    """The loop nest as an indented program, one line for each loop, transfer and derived variable.

    A derived variable stands where the loops it is made of are all known.
    """
    lines: list[str] = []
    indent = 0

    def line(text: str) -> None:
        lines.append("    " * indent + text)

    known: set[str] = set()
    pending = list(schedule.relations)
    result = schedule.statement.result.tensor
    closing: list[tuple[int, str]] = []
    grid_dims = [loop.variable for loop in schedule.grid_loops]
    for loop in schedule.loops:
        if loop.grid_dim is not None:
            line(f"on dimension {loop.grid_dim} of the grid, {loop.variable} in 0..{loop.extent}:")
        else:
            line(f"for {loop.variable} in 0..{loop.extent}:")
        indent += 1
        known.add(loop.variable)
        for relation in _now_known(pending, known):
            line(f"{relation.variable} = {_expression(relation)}")
            known.add(relation.variable)
        if loop.grid_dim is not None and loop.variable != grid_dims[-1]:
            continue
        for tensor in schedule.communicated_at_loop(loop.variable):
            access = schedule.statement.access(tensor)
            if tensor == result:
                closing.append((indent, f"send {access} to where it lives, adding"))
            else:
                line(f"bring {access}: {_extent_text(schedule, tensor)}")
    line(str(schedule.statement))
    for at, text in reversed(closing):
        indent = at
        line(text)
    return "\n".join(lines)


def _now_known(pending: list[Relation], known: set[str]) -> list[Relation]:
    """Relations whose parts are all known, in an order in which they can be computed; removed."""
    found: list[Relation] = []
    names = set(known)
    progress = True
    while progress:
        progress = False
        for relation in list(pending):
            if all(part in names for part in _parts(relation)):
                pending.remove(relation)
                found.append(relation)
                names.add(relation.variable)
                progress = True
    return found


def _parts(relation: Relation) -> tuple[str, ...]:
    match relation:
        case Divide() | Split():
            return (relation.outer, relation.inner)
        case Rotate():
            mirror = () if relation.mirrored is None else (relation.mirrored,)
            return (relation.result, *relation.over, *mirror)


def _expression(relation: Relation) -> str:
    match relation:
        case Divide() | Split():
            if relation.inner_extent == 1:
                return relation.outer
            return f"{relation.outer} * {relation.inner_extent} + {relation.inner}"
        case Rotate():
            over = " + ".join(relation.over)
            if relation.mirrored is None:
                return f"({relation.result} + {over}) mod {relation.extent}"
            turn = f"{relation.result} if {relation.mirrored} == 0 else -{relation.result}"
            return f"(({turn}) + {over}) mod {relation.extent}"


def _extent_text(schedule: Schedule, tensor: str) -> str:
    """How large the piece is that one turn needs: `4 x 2`."""
    depth = schedule.depth(tensor)
    fixed = {loop.variable for loop in schedule.grid_loops}
    fixed |= {loop.variable for loop in schedule.time_loops[:depth]}
    sizes = []
    for variable in schedule.statement.access(tensor).indices:
        size = 1
        for leaf, extent in schedule.leaves(variable):
            size *= 1 if fixed.issuperset(schedule.loops_of(leaf)) else extent
        sizes.append(str(size))
    return " x ".join(sizes) if sizes else "one number"
