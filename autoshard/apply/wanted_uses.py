"""Reshards a plan wants at single uses, named by the paths `apply` constrains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoshard.apply.placed_values import placed_layout, turns_held_sum
from autoshard.apply.reshard_stops import stops_before, stops_between
from autoshard.apply.shared_moves import Alike, Move, shared_by_reads, with_shared_paths
from autoshard.apply.use_places import place_before_lowering, places_alike, reader_of
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.dataflow import source_of
from autoshard.graph.op_traits import is_constraint
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.layouts import Layout, refines
from autoshard.lowering.reshard_steps import reshard_steps
from autoshard.sharding import Sharding

# The others compute where their result is: the partitioner cuts their operands likewise unasked.
_DECIDES_BY_OPERANDS = frozenset(
    {
        OpClass.MATMUL,
        OpClass.CONVOLUTION,
        OpClass.REDUCE,
        OpClass.GATHER,
        OpClass.SCATTER,
        OpClass.SORT,
        OpClass.CUSTOM,
    }
)
_HAS_USES = frozenset({OpKind.COMPUTE, OpKind.JOIN, OpKind.ENTER_MANUAL})
_MOVES = _HAS_USES | {OpKind.CONSTRAINT}


def wanted_uses(
    encoded: Encoded,
    decoded: Decoded,
    operand_paths: Mapping[str, tuple[str | None, ...]],
    *,
    merges_all_gathers: bool,
) -> dict[str, Sharding]:
    """Shardings of operands that differ from the value read, by use path (`"7.jaxpr/38<1"`).

    Left to itself the partitioner may compute first and gather the result, so every operand that
    has to be moved is named, except where a matmul needs it gathered in one step whatever it does
    (of several matmuls: if the compiler `merges_all_gathers`). One that only has to be cut further
    follows the result by itself, except where the op is free to sum over it, or reads a sum that is
    held whole: compilers for TPUs scatter such a sum only where all that reads it is told to cut
    it. Only uses that a jaxpr equation makes directly have a path, or by element-wise ops of its
    lowering; what else happens there is left to the partitioner.

    Where a reshard takes several steps, those before the last are named too, as `"7.jaxpr/38<1~0"`,
    `"7.jaxpr/38<1~1"`: the partitioner knows single steps, and gathers the whole tensor for many
    a pair of shardings that are more than one step apart. Not named are all-gathers of one
    dimension after another, the last one first, of which the last one makes the value whole: the
    partitioner takes them by itself, once for all readers.

    What goes round a loop is named as a result of its body (`"7.jaxpr/out<0"`) where it is carried
    in other pieces than it is made in: compilers carry it as it is made, gather it at the start of
    every run, and once more after the loop.

    Equal moves of one value in one body share a path (`"7.jaxpr/38<1&52<0"`): the compiler makes
    them one, and keeps its result until the last of the reads.

    Reads whose sharding the user asked for are always named, and so are those of a product that
    runs in steps: propagation must not look into it. So is what a scatter makes in other pieces
    than what is added to it, by the path of the value: compilers for TPUs turn `x + scatter(zeros,
    updates)` into `scatter(x, updates)`, which works where `x` is unless something stands between.
    And so is what a loop gives and something after it wants elsewhere: whether the loop carries it
    as planned or as that wants it is for propagation a matter of the order of ops, which compilers
    change before. So is what a branch of a conditional moves, where the conditional stands: else
    propagation says of the value itself what the constraint of one branch says, and it is moved for
    all. All branches name a result that one of them ends in a constraint of the program: compilers
    refuse branches that end in unlike ones, as they do once `x + 0` is `x`. And so is what a
    constraint of the program reads, where a use behind that is named: Shardy gives the end of such
    a chain to the later readers of its start, unless that is constrained.
    """
    graph, parts = encoded.graph, encoded.parts
    found: dict[str, Sharding] = {}
    alike: dict[Move, Alike] = {}
    for op in graph.ops:
        if op.index not in decoded.candidates or op.kind not in _HAS_USES:
            continue
        if turns_held_sum(graph, decoded, op):
            continue
        wanted = decoded.candidates[op.index].operands
        is_ended = op.name == "case" and _ends_in_constraint(graph, op)
        if decoded.candidates[op.index].streamed is not None:
            for place, layout in enumerate(wanted):
                found[f"{op.equation}<{place}"] = parts.to_sharding(layout)
        for position, value in enumerate(op.operands):
            have = placed_layout(graph, decoded, value)
            is_kept = have == wanted[position] and not is_ended
            if is_kept or not graph.values[value].shape or _is_free(graph, value):
                continue
            is_slice = refines(wanted[position], have)
            if is_slice and have == decoded.layouts[value] and _follows_result(graph, op):
                continue
            reader = reader_of(op, position, operand_paths)
            place = place_before_lowering(graph, op, position, reader, operand_paths)
            stops = [] if is_slice else stops_before(encoded, decoded, op, position)
            is_way = bool(stops) or len(reshard_steps(encoded, decoded, op, position)) > 1
            readers = 0 if is_way else _num_gathering(encoded, decoded, op, position)
            if readers == 1 or (readers and merges_all_gathers):
                continue
            way = (*stops, wanted[position])
            is_entered = op.name == "while" and position == 0
            for also in places_alike(graph, op, place, reader, operand_paths):
                use = f"{reader}<{also}"
                named = dict(zip(_steps(use, way), map(parts.to_sharding, way), strict=True))
                found |= named
                if (op.kind is OpKind.COMPUTE or is_entered) and not is_slice:
                    source, bits = operand_paths[reader][also], encoded.read_bits.to(op, position)
                    for path in named:
                        move = Move(op.region, source or "", way, path.removeprefix(use), bits)
                        alike.setdefault(move, Alike()).paths[path] = path
    found |= _on_the_way_to_given(encoded, decoded)
    found |= _scattered(encoded, decoded) | _carried(encoded, decoded)
    found |= _before_asked(encoded, decoded)
    found |= _moved_in_branches(encoded, decoded, operand_paths)
    for use, value in asked_uses(graph):
        (read,) = graph.maker(value).operands
        have, want = decoded.layouts[read], decoded.layouts[value]
        is_made_anywhere = graph.maker(read).kind is OpKind.FREE
        stops = [] if is_made_anywhere else stops_between(encoded, value, have, want)
        way = (*stops, want, *_after_asked(encoded, decoded, value))
        found |= zip(_steps(use, way), map(parts.to_sharding, way), strict=True)
    asked = {use for use, _ in asked_uses(graph)}
    shared = shared_by_reads(graph, alike, operand_paths)
    return with_shared_paths(found, [paths for paths in shared if asked.isdisjoint(paths)])


def _steps(use: str, way: Sequence[Layout]) -> list[str]:
    """Paths of the stops on the way to a use, and its own."""
    return [*(f"{use}~{number}" for number in range(len(way) - 1)), use]


def _follows_result(graph: Graph, op: Op) -> bool:
    """True where the partitioner cuts what an op reads as its result is cut.

    What an equation converts for the op that it is, is cut as that reads it.
    """
    if op.op_class in _DECIDES_BY_OPERANDS or op.kind is OpKind.JOIN:
        return False
    readers = [graph.ops[index] for value in op.results for index in graph.consumers[value]]
    is_for_one = len(readers) == 1 and op.equation == readers[0].equation != ""
    return not is_for_one or _follows_result(graph, readers[0])


def _ends_in_constraint(graph: Graph, op: Op) -> bool:
    return any(graph.maker(value).kind is OpKind.CONSTRAINT for value in op.operands)


def _num_gathering(encoded: Encoded, decoded: Decoded, op: Op, position: int) -> int:
    """The number of matmuls that need an operand gathered anyway; 0 if another op moves it so too.

    One gather for them and for that op would be two where only that op asks for it.
    """
    value, wanted = op.operands[position], decoded.candidates[op.index].operands[position]
    gathers = [
        _is_gathered_by(encoded, decoded, reader, place)
        for reader in map(encoded.graph.ops.__getitem__, encoded.graph.consumers[value])
        if reader.index in decoded.candidates
        for place, read in enumerate(reader.operands)
        if read == value and decoded.candidates[reader.index].operands[place] == wanted
    ]
    return len(gathers) if all(gathers) else 0


def _is_gathered_by(encoded: Encoded, decoded: Decoded, op: Op, position: int) -> bool:
    """True of a matmul whose other operand and result are sharded alike over all of the mesh.

    Every device then computes rows of its own, for which it needs all of this operand. One of
    another type than the other operand is converted by JAX's lowering before it is gathered.
    """
    if op.op_class is not OpClass.MATMUL or len(op.operands) != 2:
        return False
    if len({encoded.graph.values[value].dtype for value in op.operands}) > 1:
        return False
    candidate, other = decoded.candidates[op.index], 1 - position
    (result,), rows = candidate.results, candidate.operands[other]
    everything = list(range(len(encoded.parts.axes)))
    return (
        not any(candidate.operands[position])
        and rows == placed_layout(encoded.graph, decoded, op.operands[other])
        and sorted(part for dim in rows for part in dim) == everything
        and sorted(part for dim in result for part in dim) == everything
    )


def _on_the_way_to_given(encoded: Encoded, decoded: Decoded) -> dict[str, Sharding]:
    """Ways with stops to constraints in the program and to its results, which say the end alone.

    The end is named too: uses that go the same way share all of it. A constraint that a use was
    asked for stands at that use, which need not be the first operand.
    """
    graph = encoded.graph
    found: dict[str, Sharding] = {}
    numbers = {op.index: number for number, op in enumerate(graph.results)}
    asked = {graph.maker(value).index for _, value in asked_uses(graph)}
    written = (op for op in graph.ops if op.kind is OpKind.CONSTRAINT and op.index not in asked)
    for op in (*written, *graph.results):
        if op.index not in decoded.candidates or _is_free(graph, op.operands[0]):
            continue
        (wanted,) = decoded.candidates[op.index].operands
        if refines(wanted, placed_layout(graph, decoded, op.operands[0])):
            continue
        use = f"out<{numbers[op.index]}" if op.index in numbers else f"{op.equation}<0"
        if stops := stops_before(encoded, decoded, op, 0):
            way = (*stops, wanted)
            found |= zip(_steps(use, way), map(encoded.parts.to_sharding, way), strict=True)
    return found


def _scattered(encoded: Encoded, decoded: Decoded) -> dict[str, Sharding]:
    """Results of scatters in pieces, where something is added that is not in these pieces."""
    graph = encoded.graph
    found = {}
    for path, value in graph.value_by_path.items():
        maker = graph.maker(value)
        is_made_here = path.rpartition(".")[0] == maker.equation
        if not is_made_here or maker.op_class is not OpClass.SCATTER:
            continue
        layout = placed_layout(graph, decoded, value)
        added = [
            other
            for op in map(graph.ops.__getitem__, graph.consumers[value])
            if op.name == "add"
            for other in op.operands
            if other != value
        ]
        if any(layout) and any(placed_layout(graph, decoded, one) != layout for one in added):
            found[path] = encoded.parts.to_sharding(layout)
    return found


def _before_asked(encoded: Encoded, decoded: Decoded) -> dict[str, Sharding]:
    """Values that constraints of the program read beside others, and of which a use moves the end.

    Source: openxla/shardy, `apply_sharding_constraints.cc`, `getTailOfShardingConstraintChain`.
    """
    graph = encoded.graph
    starts = {
        source_of(graph, op.results[0], lambda maker, _: is_constraint(maker))
        for op in graph.ops
        if is_constraint(op) and op.index in decoded.candidates
        for wanted in _wanted_after(graph, decoded, op.results[0])
        if wanted != decoded.layouts[op.results[0]]
    }
    found = {}
    for path, value in graph.value_by_path.items():
        maker = graph.maker(value)
        is_made_here = path.rpartition(".")[0] == maker.equation
        if is_made_here and value in starts and len(graph.consumers[value]) > 1:
            found[path] = encoded.parts.to_sharding(placed_layout(graph, decoded, value))
    return found


def _carried(encoded: Encoded, decoded: Decoded) -> dict[str, Sharding]:
    """What loops give that an op after them wants in another sharding, where it is given.

    Not what is the same under another path too: what two constraints hold is moved twice.
    """
    graph = encoded.graph
    found = {}
    for path, value in graph.value_by_path.items():
        maker = graph.maker(value)
        is_given = path.rpartition(".")[0] == maker.equation
        if not is_given or maker.kind is not OpKind.JOIN or maker.name != "while":
            continue
        if any(wanted != decoded.layouts[value] for wanted in _wanted_after(graph, decoded, value)):
            found[path] = encoded.parts.to_sharding(decoded.layouts[value])
    return found


def _wanted_after(graph: Graph, decoded: Decoded, value: int) -> Iterator[Layout]:
    """In which layouts ops after a loop read what it gives."""
    maker = graph.maker(value)
    for index in graph.consumers[value]:
        reader = graph.ops[index]
        if reader.region != maker.region or index not in decoded.candidates:
            continue
        wanted = decoded.candidates[index].operands
        yield from (one for one, read in zip(wanted, reader.operands, strict=True) if read == value)


def _moved_in_branches(
    encoded: Encoded, decoded: Decoded, operand_paths: Mapping[str, tuple[str | None, ...]]
) -> dict[str, Sharding]:
    """Shardings of what branches read of outside in others, by path beside the conditional."""
    graph = encoded.graph
    found = {}
    for index, candidate in decoded.candidates.items():
        op = graph.ops[index]
        for position, (value, wanted) in enumerate(
            zip(op.operands, candidate.operands, strict=False)
        ):
            have = placed_layout(graph, decoded, value)
            is_moved = wanted != have and not _is_free(graph, value)
            if op.kind in _MOVES and is_moved and graph.is_read_in_branch(op, position):
                conditional = reader_of(op, position, operand_paths).rpartition(".branches[")[0]
                paths = (path for path, known in graph.value_by_path.items() if known == value)
                around = [path for path in paths if _is_beside(path, conditional)]
                path = max(around, key=lambda path: path.count("/"), default="")
                found[path] = encoded.parts.to_sharding(have)
    found.pop("", None)
    return found


def _is_beside(path: str, equation: str) -> bool:
    """True of the path of a value in a body that an equation stands in."""
    return "<" not in path and equation.startswith(path[: path.rfind("/") + 1])


def asked_uses(graph: Graph) -> Iterator[tuple[str, int]]:
    """Use paths whose sharding the user asked for, each with what the CONSTRAINT there makes."""
    for path, value in graph.value_by_path.items():
        if "<" in path and graph.values[value].shape:
            yield path, value


def _after_asked(encoded: Encoded, decoded: Decoded, value: int) -> list[Layout]:
    """Layouts behind a use that is asked for, where all that reads it there wants another one.

    So a loop carries a value from its first run on.
    """
    readers = [
        (op, position)
        for op in map(encoded.graph.ops.__getitem__, encoded.graph.consumers[value])
        if op.index in decoded.candidates
        for position, read in enumerate(op.operands)
        if read == value
    ]
    wanted = {decoded.candidates[op.index].operands[position] for op, position in readers}
    if len(wanted) != 1 or wanted == {decoded.layouts[value]}:
        return []
    return [*stops_before(encoded, decoded, *readers[0]), *wanted]


def _is_free(graph: Graph, value: int) -> bool:
    return graph.maker(value).kind is OpKind.FREE
