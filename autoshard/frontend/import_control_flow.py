"""Calls, loops and branches: calls are made flat, bodies become regions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from autoshard.frontend.dead_code import Control
from autoshard.frontend.graph_builder import GraphBuilder, OpDraft
from autoshard.frontend.importer import Env, Importer, Scope
from autoshard.frontend.trip_counts import Loop, LoopCounter
from autoshard.graph.program import OpKind
from autoshard.graph.rule import identity_rule


def import_call(importer: Importer, op: Any, env: Env, scope: Scope) -> None:
    attribute = op.attributes["callee" if op.name == "func.call" else "decomposition"]
    function = importer.functions[ir.FlatSymbolRefAttr(attribute).value]
    block = function.regions[0].blocks[0]
    inner = dict(zip(block.arguments, (env[v] for v in op.operands), strict=True))
    source, equation = importer.place(op, scope)
    inside = Scope(scope.region, scope.repeat, scope.free_axes, source, equation, in_function=True)
    returned = importer.block(block, inner, inside)
    env.update(zip(op.results, returned, strict=True))


def import_barrier(importer: Importer, op: Any, env: Env, scope: Scope) -> None:
    place = importer.place(op, scope)
    for operand, result in zip(op.operands, op.results, strict=True):
        env[result] = _join(
            importer, "optimization_barrier", (env[operand],), result.type, place, scope
        )


def import_while(importer: Importer, op: Any, env: Env, scope: Scope) -> None:
    place = importer.place(op, scope)
    cond, body = (region.blocks[0] for region in op.regions)
    carried = list(_carried(importer, op, body, env, place, scope))
    region = importer.build.open_region("loop", scope.region, source=place[0])
    inside = Scope(region, scope.repeat, scope.free_axes, *place)
    goes_on = importer.block(cond, {**env, **_pairs(cond.arguments, carried)}, inside)
    returned = importer.block(body, {**env, **_pairs(body.arguments, carried)}, inside)
    for start, value in zip(carried, returned, strict=True):
        if value != start:
            join = importer.build.maker(start)
            join.operands = (*join.operands, value)
            join.rule = identity_rule(importer.build.shape(value), 2)
    importer.build.close_region(region)
    joins = tuple(dict.fromkeys(carried))
    importer.controls.append(Control(goes_on[0], (region,), joins))
    importer.loops.append(Loop(region, joins, goes_on[0], *place))
    env.update(zip(op.results, carried, strict=True))


def _carried(
    importer: Importer, op: Any, body: Any, env: Env, place: tuple[str, str], scope: Scope
) -> Iterator[int]:
    """Values that a loop carries: one for equal ones that it reads unchanged, as in XLA."""
    unchanged: dict[int, int] = {}
    ends = body.operations[-1].operands
    for operand, start, end in zip(op.operands, body.arguments, ends, strict=True):
        value = env[operand]
        made = unchanged.get(value) if start == end else None
        if made is None:
            made = _join(importer, "while", (value,), operand.type, place, scope)
        if start == end:
            unchanged[value] = made
        yield made


def import_case(importer: Importer, op: Any, env: Env, scope: Scope) -> None:
    place = importer.place(op, scope)
    returned, regions, joins = [], list[int](), list[int]()
    for branch in op.regions:
        region = importer.build.open_region("branch", scope.region, source=place[0])
        inside = Scope(region, scope.repeat, scope.free_axes, *place)
        returned.append(importer.block(branch.blocks[0], dict(env), inside))
        importer.build.close_region(region)
        regions.append(region)
    for position, result in enumerate(op.results):
        sources = tuple(values[position] for values in returned)
        joined = env[result] = _join(importer, "case", sources, result.type, place, scope)
        joins.append(joined)
    control = Control(env[op.operands[0]], tuple(regions), tuple(joins))
    importer.controls.append(control)
    importer.conditionals.append((op.name, control))


def _join(
    importer: Importer,
    name: str,
    operands: tuple[int, ...],
    mlir_type: Any,
    place: tuple[str, str],
    scope: Scope,
) -> int:
    """The value that a JOIN op makes, whose sources share one sharding."""
    found = importer.tensor_type(mlir_type)
    source, equation = place
    made = importer.build.add(
        OpKind.JOIN,
        name,
        operands,
        [found],
        rule=identity_rule(found[0], len(operands)),
        region=scope.region,
        repeat=scope.repeat,
        source=source,
        equation=equation,
    )
    return made.results[0]


def count_branches(importer: Importer) -> None:
    """Multiply the ops of every branch by how often it is taken.

    Once loops are whole: an index that they carry is no constant.
    """
    counter = LoopCounter(importer.build, importer.scalar_ops)
    for name, control in importer.conditionals:  # inner ones first
        shares = _shares(name, len(control.regions), counter.integer(control.value))
        for region, share in zip(control.regions, shares, strict=True):
            importer.build.set_trip_count(region, share, is_known=True)
        for joined in control.joins:
            join = importer.build.maker(joined)
            join.operand_repeats = tuple(join.repeat * share for share in shares)


def _shares(name: str, number: int, chosen: int | None) -> list[float]:
    """How often each branch is taken: equally often, unless the program says which one is."""
    if chosen is None:
        return [1.0 / number] * number
    if name == "stablehlo.if":
        chosen = 0 if chosen else 1
    elif not 0 <= chosen < number:
        chosen = number - 1
    return [1.0 if branch == chosen else 0.0 for branch in range(number)]


def tie_unnamed_loops(importer: Importer) -> None:
    """Shard what a loop of one equation carries like what that equation makes, as XLA does.

    No constraint reaches into an equation (`lax.igamma` is a loop): the sharding of the loop comes
    from that of the result.
    """
    build = importer.build
    for loop in importer.loops:
        region = build.regions[loop.region]
        inside = (value for op in build.ops[region.start : region.stop] for value in op.results)
        if any(build.values[value].path for value in (*loop.joins, *inside)):
            continue
        made = range(len(loop.joins))
        results = (build.value_by_path.get(f"{loop.equation}.{place}") for place in made)
        for value in (*loop.joins, *(one for one in results if one is not None)):
            if shape := build.shape(value):
                build.tie((loop.equation, shape), value)


def count_loops(importer: Importer) -> None:
    """Multiply the ops of every loop by its trip count."""
    counter = LoopCounter(importer.build, importer.scalar_ops)
    for loop in sorted(importer.loops, key=lambda loop: loop.region):
        count, is_known = _trips(importer, counter, loop)
        importer.build.set_trip_count(loop.region, count, is_known=is_known)
    for loop in importer.loops:
        trips = importer.build.regions[loop.region].trip_count
        for carried in loop.joins:
            join = importer.build.maker(carried)
            if len(join.operands) == 2:
                join.operand_repeats = (join.repeat, join.repeat * trips)
    _count_reads_of_hoisted(importer.build)
    importer.told.check_all_used(importer.loops)


def _count_reads_of_hoisted(build: GraphBuilder) -> None:
    """Let what is made of loop invariants be moved as often as it is made, in place.

    Compilers hoist the moves too. A branch keeps its own.
    """
    for op in build.ops:
        if op.operand_repeats:
            continue
        makers = (build.maker(value) for value in op.operands)
        repeats = tuple(
            maker.repeat if _is_hoisted_for(build, op, maker) else op.repeat for maker in makers
        )
        if any(repeat != op.repeat for repeat in repeats):
            op.operand_repeats = repeats


def _is_hoisted_for(build: GraphBuilder, op: OpDraft, maker: OpDraft) -> bool:
    """True of an op that was hoisted out of the loops that its reader is in, and of these alone."""
    if maker.hoisted_from < 0:
        return False
    region = op.region
    while region not in (maker.region, -1):
        if build.regions[region].kind != "loop":
            return False
        region = build.regions[region].parent
    return region == maker.region


def _trips(importer: Importer, counter: LoopCounter, loop: Loop) -> tuple[float, bool]:
    limit, is_known = counter.trips(loop)
    told = importer.told.of(loop)
    if is_known and limit is not None:
        if told is not None and told[1] != limit:
            importer.build.note(
                f"trip_counts[{told[0]!r}] = {told[1]:g} is not used: the program says that the"
                f" loop runs {limit} times ({loop.where})"
            )
        return float(limit), True
    if told is not None:
        return told[1], True
    advice = "pass trip_counts={'file.py:line': n}"
    if limit is not None:
        importer.build.note(
            f"loop that may end early: taken to run {limit} times, its limit ({loop.where});"
            f" {advice}"
        )
        return float(limit), False
    importer.build.note(
        f"loop with unknown trip count: taken as {importer.default_trip_count:g} ({loop.where});"
        f" {advice}"
    )
    return importer.default_trip_count, False


def _pairs(arguments: Any, values: list[int]) -> Env:
    return dict(zip(arguments, values, strict=True))
