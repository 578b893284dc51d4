"""Reshards a plan wants at single uses, named by the paths `apply` constrains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from autoshard.apply.placed_values import placed_layout, turns_held_sum
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.dataflow import before_lowering, source_of
from autoshard.graph.op_traits import is_constraint, passes_through
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.layouts import Layout, refines
from autoshard.lowering.reshard_steps import reshard_steps
from autoshard.reshard import Step, StepKind, is_in_turn
from autoshard.sharding import Sharding
from autoshard.use_paths import join_uses

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
_LOOP_BODIES = ("jaxpr", "body_jaxpr", "body")  # of a scan, of a while, of one in a module
_HAS_USES = frozenset({OpKind.COMPUTE, OpKind.JOIN, OpKind.ENTER_MANUAL})
_MOVES = _HAS_USES | {OpKind.CONSTRAINT}
_BARRIER = "optimization_barrier"
_HAS_REGIONS = frozenset({OpKind.JOIN, OpKind.ENTER_MANUAL})


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
    alike: dict[_Move, _Alike] = {}
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
            reader = _reader(op, position, operand_paths)
            place = _place_before_lowering(graph, op, position, reader, operand_paths)
            stops = [] if is_slice else _on_the_way(encoded, decoded, op, position)
            is_way = bool(stops) or len(reshard_steps(encoded, decoded, op, position)) > 1
            readers = 0 if is_way else _num_gathering(encoded, decoded, op, position)
            if readers == 1 or (readers and merges_all_gathers):
                continue
            way = (*stops, wanted[position])
            is_entered = op.name == "while" and position == 0
            for also in _places_alike(graph, op, place, reader, operand_paths):
                use = f"{reader}<{also}"
                named = dict(zip(_steps(use, way), map(parts.to_sharding, way), strict=True))
                found |= named
                if (op.kind is OpKind.COMPUTE or is_entered) and not is_slice:
                    source, bits = operand_paths[reader][also], encoded.read_bits.to(op, position)
                    for path in named:
                        move = _Move(op.region, source or "", way, path.removeprefix(use), bits)
                        alike.setdefault(move, _Alike()).paths[path] = path
    found |= _on_the_way_to_given(encoded, decoded)
    found |= _scattered(encoded, decoded) | _carried(encoded, decoded)
    found |= _before_asked(encoded, decoded)
    found |= _moved_in_branches(encoded, decoded, operand_paths)
    for use, value in asked_uses(graph):
        (read,) = graph.maker(value).operands
        have, want = decoded.layouts[read], decoded.layouts[value]
        is_made_anywhere = graph.maker(read).kind is OpKind.FREE
        stops = [] if is_made_anywhere else _stops(encoded, value, have, want)
        way = (*stops, want, *_after_asked(encoded, decoded, value))
        found |= zip(_steps(use, way), map(parts.to_sharding, way), strict=True)
    asked = {use for use, _ in asked_uses(graph)}
    shared = _outside_calls(graph, alike, operand_paths)
    return _shared(found, [paths for paths in shared if asked.isdisjoint(paths)])


def _steps(use: str, way: Sequence[Layout]) -> list[str]:
    """Paths of the stops on the way to a use, and its own."""
    return [*(f"{use}~{number}" for number in range(len(way) - 1)), use]


def _shared(found: dict[str, Sharding], alike: Sequence[dict[str, str]]) -> dict[str, Sharding]:
    """The same with one path for reads of one value in one sharding."""
    order = {path: number for number, path in enumerate(found)}
    path_of: dict[str, str] = {}
    for uses in alike:
        there = dict.fromkeys(uses[path] for path in sorted(uses, key=order.__getitem__))
        if len(there) > 1:
            path_of |= dict.fromkeys(uses, join_uses(list(there)))
    return {path_of.get(path, path): sharding for path, sharding in found.items()}


@dataclass(frozen=True, slots=True)
class _Move:
    """A move that the compiler makes once for all reads in a body.

    Args:
        region: Of the reads.
        source: The path of the value in the body.
        way: Its layouts on the way.
        step: The suffix of the step that this is.
        bits: Of an element that is sent.
    """

    region: int
    source: str
    way: tuple[Layout, ...]
    step: str
    bits: int


@dataclass(frozen=True, slots=True)
class _Alike:
    """Reads that a move serves: by their paths, those in the body of the move.

    `inside` holds the same reads by bodies of calls.
    """

    paths: dict[str, str] = field(default_factory=dict)
    inside: list[_Alike] = field(default_factory=list)

    def shared(self) -> Iterator[dict[str, str]]:
        """Outside of calls as far as that makes several reads share a move."""
        if self.inside and len(set(self.paths.values())) == 1:
            for one in self.inside:
                yield from one.shared()
        else:
            yield self.paths


def _outside_calls(
    graph: Graph,
    alike: Mapping[_Move, _Alike],
    operand_paths: Mapping[str, tuple[str | None, ...]],
) -> Iterator[dict[str, str]]:
    """Reads that share a move, those of the body of a call (`jit`) as a read of the call.

    So where the body reads its argument nowhere else.
    """
    waiting = dict(alike)
    have_regions = {
        op.equation for op in graph.ops if op.kind in _HAS_REGIONS and op.name != _BARRIER
    }
    while waiting:
        move = max(waiting, key=lambda move: move.source.count("/"))
        reads = waiting.pop(move)
        at = _read_by_call(graph, move, len(set(reads.paths.values())), operand_paths, have_regions)
        if at is None:
            yield from reads.shared()
            continue
        call, number = at
        source = operand_paths[call][number]
        outer = waiting.setdefault(replace(move, source=source or ""), _Alike())
        outer.paths.update(dict.fromkeys(reads.paths, f"{call}<{number}{move.step}"))
        outer.inside.append(reads)


def _read_by_call(
    graph: Graph,
    move: _Move,
    num_reads: int,
    operand_paths: Mapping[str, tuple[str | None, ...]],
    have_regions: Set[str],
) -> tuple[str, int] | None:
    """The call and its operand that a body reads so often; None where it has other reads.

    Equations that have regions are no calls: loops and branches.
    """
    body, _, name = move.source.rpartition("/")
    call, number = body.rpartition(".")[0], name.removeprefix("in.")
    inside = (paths for at, paths in operand_paths.items() if at.startswith(f"{body}/"))
    value = graph.value_by_path.get(move.source)
    is_of_call = (
        number != name
        and call in operand_paths
        and call not in have_regions
        and value is not None
        and sum(paths.count(move.source) for paths in inside) == num_reads
        and graph.value_by_path.get(operand_paths[call][int(number)] or "") == value
    )
    return (call, int(number)) if is_of_call else None


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


def _reader(op: Op, position: int, operand_paths: Mapping[str, tuple[str | None, ...]]) -> str:
    """The equation that reads an operand, or the results of the body that ends in it."""
    if op.kind is not OpKind.JOIN:
        return op.equation
    if op.name == "case":  # each branch ends in its own use
        return f"{op.equation}.branches[{position}]/out"
    if op.name == "while" and position > 0:  # what goes round again
        ends = (f"{op.equation}.{body}/out" for body in _LOOP_BODIES)
        return next((end for end in ends if end in operand_paths), op.equation)
    return op.equation


def _times_read_before(graph: Graph, op: Op, position: int) -> int:
    """Reads of an operand before that, by an equation or by a loop that carries several values.

    An equation may be lowered to an op for each of its operands (`stack`).
    """
    value, own = op.operands[position], _operand_rank(graph, op)
    if not _is_one_of_several(op):
        return 0
    others = [
        other
        for other in map(graph.ops.__getitem__, dict.fromkeys(graph.consumers[value]))
        if other.equation == op.equation and _is_one_of_several(other)
        if _operand_rank(graph, other) < own
    ]
    entering = position if op.kind is OpKind.JOIN else 0
    before = op.operands[:position] if op.kind is OpKind.COMPUTE else ()
    for one in others:
        is_carry = one.kind is OpKind.JOIN
        before += one.operands[entering : entering + 1] if is_carry else one.operands
    return before.count(value)


def _is_one_of_several(op: Op) -> bool:
    """True of an op that may read one operand of its equation, where others read the others."""
    return op.kind is OpKind.COMPUTE or op.name == "while"


def _operand_rank(graph: Graph, op: Op) -> tuple[int, int]:
    """Orders ops of one equation by its operands.

    A scan reads constants, carries and then stacks, and is lowered to a loop that carries them in
    another order. No path of its body leads to a whole stack.
    """
    path = graph.values[op.results[0]].path
    if op.kind is OpKind.JOIN and path.startswith(f"{op.equation}."):
        body, slash, name = path.rpartition("/")
        if body.count("/") == op.equation.count("/") and name.startswith("in."):
            return 0, int(name.removeprefix("in."))
        if not slash:
            return 1, int(path.rpartition(".")[2])
    return 2, op.index


def _on_the_way(encoded: Encoded, decoded: Decoded, op: Op, position: int) -> list[Layout]:
    """Layouts between what an operand is held to and what an op wants.

    Among them the pieces of a sum that is held whole before it is scattered, where these are moved:
    else the partitioner moves the whole sum, and cuts it after that.
    """
    value, wanted = op.operands[position], decoded.candidates[op.index].operands[position]
    steps = reshard_steps(encoded, decoded, op, position)
    pieces = decoded.layouts[value]
    if steps and pieces not in (placed_layout(encoded.graph, decoded, value), wanted):
        return [pieces, *(step.after for step in steps[:-1])]
    own = _num_taken_unasked(steps)
    passed = {step.after for step in steps[:own]}
    if own and _is_read_on_the_way(encoded, decoded, value, passed):
        own = 0
    return [step.after for step in steps[own:-1]]


def _num_taken_unasked(steps: Sequence[Step]) -> int:
    """The steps before the one that makes a value whole, where these are the partitioner's own.

    It gathers one dimension after another, the last one first, and does so once for all readers of
    the whole value; steps that are asked for one by one it repeats for each reader.
    """
    for number, step in enumerate(steps):
        pairs = zip(step.before, step.after, strict=True)
        is_dimension = all(before == after or not after for before, after in pairs)
        if step.kind is not StepKind.ALL_GATHER or not is_in_turn(step) or not is_dimension:
            return 0
        if not any(step.after):
            return number
    return 0


def _is_read_on_the_way(
    encoded: Encoded, decoded: Decoded, value: int, passed: Set[Layout]
) -> bool:
    """True where a reader takes one of the layouts that a value passes, or goes on from there."""
    graph = encoded.graph
    for reader in map(graph.ops.__getitem__, graph.consumers[value]):
        if reader.index not in decoded.candidates:
            continue
        for position, read in enumerate(reader.operands):
            if read == value:
                steps = reshard_steps(encoded, decoded, reader, position)
                left = steps[_num_taken_unasked(steps) :]
                if not passed.isdisjoint(step.after for step in left):
                    return True
    return False


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
        if stops := _on_the_way(encoded, decoded, op, 0):
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
                conditional = _reader(op, position, operand_paths).rpartition(".branches[")[0]
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
    return [*_on_the_way(encoded, decoded, *readers[0]), *wanted]


def _stops(encoded: Encoded, value: int, start: Layout, end: Layout) -> list[Layout]:
    """Layouts between the steps of a reshard that is more than cutting further."""
    if refines(end, start):
        return []
    maker = encoded.graph.maker(value)
    (read,) = maker.operands
    chain = encoded.table(read, encoded.read_bits.to(maker, 0)).chain(start, end)
    return [step.after for step in chain[:-1]]


def _place_before_lowering(
    graph: Graph,
    op: Op,
    position: int,
    reader: str,
    operand_paths: Mapping[str, tuple[str | None, ...]],
) -> int:
    """The operand of its equation that an op's operand is, or is made of; -1 when it is none."""
    earlier = _times_read_before(graph, op, position)
    places = (
        _operand_place(graph, reader, before, operand_paths, earlier)
        for before in before_lowering(graph, op, op.operands[position])
    )
    return next((place for place in places if place >= 0), -1)


def _places_alike(
    graph: Graph,
    op: Op,
    place: int,
    reader: str,
    operand_paths: Mapping[str, tuple[str | None, ...]],
) -> Sequence[int]:
    """Places of an operand of its equation: of what a loop reads unchanged, under each name.

    Args:
        graph: The program.
        op: Reads it.
        place: One of them; -1 for none.
        reader: The equation.
        operand_paths: By equation.
    """
    value = op.operands[0]
    readers = (graph.ops[index] for index in graph.consumers[value])
    is_alone = sum(one.equation == op.equation for one in readers) == 1
    if place < 0 or not (passes_through(op) and is_alone):
        return [place] if place >= 0 else []
    names = (path and graph.value_by_path.get(path) for path in operand_paths[reader])
    return [at for at, name in enumerate(names) if at == place or name == value]


def _is_free(graph: Graph, value: int) -> bool:
    return graph.maker(value).kind is OpKind.FREE


def _operand_place(
    graph: Graph,
    reader: str,
    value: int,
    operand_paths: Mapping[str, tuple[str | None, ...]],
    num_earlier: int,
) -> int:
    """Which operand of an equation, or result of a body, a value is; -1 when it is none.

    Of an equation that reads it several times as its op does, the operand after so many of them.
    """
    places = [
        place
        for place, path in enumerate(operand_paths.get(reader, ()))
        if path is not None and _is_as(graph, graph.value_by_path.get(path), value)
    ]
    return places[min(num_earlier, len(places) - 1)] if places else -1


def _is_as(graph: Graph, inside: int | None, value: int) -> bool:
    """True of a value, and of what a loop passes through of it: hoisted ops read that outside."""
    if inside is None:
        return False
    return value == source_of(graph, inside, lambda op, at: at != value and passes_through(op))
