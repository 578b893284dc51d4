"""The ways one op can be cut: a worked table per rule, then properties."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.candidates.candidate import Candidate, CandidateMaker
from autoshard.graph.rule import Dims, Rule, identity_rule
from autoshard.layouts import Layout, MeshParts
from tests.planner.graphs import matmul_rule, parts_of


def candidates(rule: Rule, mesh: str, **splits: tuple[int, ...]) -> tuple[Candidate, ...]:
    return CandidateMaker(parts_of(mesh, **splits)).of_rule(rule)


def result_layouts(rule: Rule, mesh: str, **splits: tuple[int, ...]) -> set[Layout]:
    return {c.results[0] for c in candidates(rule, mesh, **splits)}


X, Y = (0,), (1,)
WHOLE: Layout = ((), ())


def test_the_first_candidate_cuts_nothing() -> None:
    first = candidates(matmul_rule(8, 8, 8), "x=2,y=4")[0]
    assert first == Candidate((WHOLE, WHOLE), (WHOLE,), 1)


def test_a_matmul_on_one_axis_cuts_rows_columns_or_the_sum() -> None:
    assert set(candidates(matmul_rule(8, 16, 4), "x=4")) == {
        Candidate((WHOLE, WHOLE), (WHOLE,), 1),
        Candidate(((X, ()), WHOLE), ((X, ()),), 4),
        Candidate((WHOLE, ((), X)), (((), X),), 4),
        Candidate((((), X), (X, ())), (WHOLE,), 4, X, (), WHOLE),  # all-reduce
        Candidate((((), X), (X, ())), ((X, ()),), 4, (), X, WHOLE),  # reduce-scatter onto rows
        Candidate((((), X), (X, ())), (((), X),), 4, (), X, WHOLE),  # and onto columns
    }


def test_a_sum_cut_by_two_axes_ends_in_each_of_the_ways_to_reduce_each() -> None:
    ends = {
        (c.results[0], c.reduced, c.scattered)
        for c in candidates(matmul_rule(8, 16, 8), "x=2,y=2")
        if c.operands == (((), (0, 1)), ((0, 1), ()))
    }
    assert ends == {
        (WHOLE, (0, 1), ()),
        (((0,), ()), (1,), (0,)),
        (((1,), ()), (0,), (1,)),
        (((), (0,)), (1,), (0,)),
        (((), (1,)), (0,), (1,)),
        (((0, 1), ()), (), (0, 1)),
        (((), (0, 1)), (), (0, 1)),
        (((0,), (1,)), (), (0, 1)),
        (((1,), (0,)), (), (0, 1)),
    }


def test_a_sum_is_not_scattered_onto_a_dimension_it_does_not_divide() -> None:
    results = {c.results[0] for c in candidates(matmul_rule(6, 16, 8), "x=4") if c.scattered}
    assert results == {((), X)}


def test_a_scattered_axis_goes_under_what_already_cuts_the_dimension() -> None:
    wanted = Candidate(
        ((X, Y), (Y, ())), (((0, 1), ()),), 4, (), Y, (X, ())
    )  # rows cut by x, sum over y scattered onto rows
    assert wanted in candidates(matmul_rule(8, 8, 8), "x=2,y=2")


def test_a_batch_factor_cuts_every_operand() -> None:
    batched = Rule(
        (4, 8, 8, 8),
        (((0,), (1,), (3,)), ((0,), (3,), (2,))),
        (((0,), (1,), (2,)),),
        frozenset({3}),
    )
    cut = Candidate(((X, (), ()), (X, (), ())), ((X, (), ()),), 4)
    assert cut in candidates(batched, "x=4")


def merge_rule(major: int, minor: int) -> Rule:
    """Reshape `[major, minor] -> [major * minor]`."""
    return Rule((major, minor), (((0,), (1,)),), (((0, 1),),))


def test_a_merge_is_cut_from_its_major_factor_on() -> None:
    found = {(c.operands[0], c.results[0]) for c in candidates(merge_rule(2, 8), "x=2,y=4")}
    assert found == {
        (((), ()), ((),)),
        ((X, ()), (X,)),
        ((X, Y), ((0, 1),)),  # the minor factor only under the whole of the major one
    }


def test_the_minor_factor_stays_whole_while_the_major_one_is_cut_in_part() -> None:
    found = {c.operands[0] for c in candidates(merge_rule(8, 8), "x=2,y=4")}
    assert found == {((), ()), (X, ()), (Y, ()), ((0, 1), ()), ((1, 0), ())}


def test_a_major_factor_of_size_1_does_not_stand_in_the_way() -> None:
    assert {c.results[0] for c in candidates(merge_rule(1, 8), "x=4")} == {((),), (X,)}


def test_a_factor_that_needs_replication_or_exchanges_halos_is_never_cut() -> None:
    dims: Dims = ((0,), (1,), (2,))
    rule = Rule(
        (8, 8, 8),
        (dims,),
        (dims,),
        need_replication=frozenset({1}),
        permutation=frozenset({2}),
    )
    assert result_layouts(rule, "x=4") == {((), (), ()), (X, (), ())}


def test_a_dimension_that_an_axis_does_not_divide_is_not_cut_by_it() -> None:
    assert result_layouts(identity_rule((6, 8)), "x=4") == {WHOLE, ((), X)}


def test_two_axes_cut_one_dimension_in_both_orders() -> None:
    assert result_layouts(identity_rule((8,)), "x=2,y=4") == {
        ((),),
        ((0,),),
        ((1,),),
        ((0, 1),),
        ((1, 0),),
    }


def test_two_axes_that_only_together_do_not_divide_are_used_apart() -> None:
    assert result_layouts(identity_rule((4,)), "x=2,y=4") == {((),), ((0,),), ((1,),)}


def heads_rule(kv_heads: int, group: int, rows: int) -> Rule:
    """Attention weights of grouped queries: `[g, q, i, k] = [g, q, i] x [g, k]`, no sum."""
    return Rule((kv_heads, group, rows), (((0,), (1,), (2,)), ((0,),)), (((0,), (1,), (2,)),))


def test_an_8_way_axis_over_4_heads_lends_its_minor_part_to_another_factor() -> None:
    found = result_layouts(heads_rule(4, 2, 16), "x=8", x=(4, 2))
    assert ((0,), (1,), ()) in found  # heads by 4, queries of a group by 2
    assert ((0,), (), (1,)) in found
    assert ((0,), (), ()) in found
    assert ((), (), (0, 1)) in found
    assert ((0, 1), (), ()) not in found  # 8 shards of 4 heads


def test_a_minor_part_is_lent_only_where_the_whole_axis_does_not_divide() -> None:
    found = result_layouts(identity_rule((8, 8)), "x=8", x=(4, 2))
    assert found == {WHOLE, ((0, 1), ()), ((), (0, 1)), ((0,), ()), ((), (0,))}


def test_forbidden_axes_are_not_used() -> None:
    maker = CandidateMaker(parts_of("x=2,y=2"))
    found = maker.of_rule(identity_rule((8, 8)), frozenset({"x"}))
    assert {c.results[0] for c in found} == {WHOLE, (Y, ()), ((), Y)}


def test_a_dimension_of_size_0_or_1_is_not_cut() -> None:
    assert result_layouts(identity_rule((0, 1)), "x=4") == {WHOLE}


def test_rules_that_differ_only_in_how_large_their_factors_are_share_candidates() -> None:
    maker = CandidateMaker(parts_of("x=2,y=4"))
    assert maker.of_rule(matmul_rule(64, 64, 64)) is maker.of_rule(matmul_rule(128, 256, 16))
    assert maker.of_rule(merge_rule(2, 16)) is not maker.of_rule(merge_rule(4, 16))
    assert maker.of_rule(merge_rule(8, 16)) is not maker.of_rule(merge_rule(24, 16))


def test_results_of_several_shapes_are_cut_together() -> None:
    rule = Rule((8, 4), (((0,), (1,)),), (((0,), (1,)), ((0,),)))
    assert {c.results for c in candidates(rule, "x=4")} == {
        (WHOLE, ((),)),
        ((X, ()), (X,)),
        (((), X), ((),)),
    }


def test_a_sum_with_two_results_is_not_scattered() -> None:
    rule = Rule((8, 4), (((0,), (1,)),), (((0,),), ((0,),)), frozenset({1}))
    assert not any(c.scattered for c in candidates(rule, "x=4"))


def test_scalars_take_part_without_dimensions() -> None:
    rule = Rule((8,), (((0,),), ()), (((0,),),))
    assert {c.operands for c in candidates(rule, "x=4")} == {(((),), ()), ((X,), ())}


def test_an_order_that_the_user_wrote_can_be_followed_by_every_op() -> None:
    odd = ((2, 1, 0), ())
    maker = CandidateMaker(parts_of("x=2,y=2,z=2"), written=frozenset({odd}))
    assert odd in {c.results[0] for c in maker.of_rule(matmul_rule(8, 8, 8))}
    plain = CandidateMaker(parts_of("x=2,y=2,z=2"))
    assert odd not in {c.results[0] for c in plain.of_rule(matmul_rule(8, 8, 8))}


def test_parts_of_an_axis_that_the_user_wrote_apart_cut_on_their_own() -> None:
    parts = parts_of("x=8", x=(2, 4))
    maker = CandidateMaker(parts, written=frozenset({(X, ())}))
    found = {c.results[0] for c in maker.of_rule(identity_rule((8, 8)))}
    assert {(X, Y), (Y, X), ((), Y), ((0, 1), ())} <= found


def test_beyond_the_limit_odd_ways_go_first_and_single_axes_stay() -> None:
    parts = parts_of("x=2,y=2,z=2")
    rule = matmul_rule(8, 8, 8)
    everything = CandidateMaker(parts, max_candidates=10**6).of_rule(rule)
    few = CandidateMaker(parts, max_candidates=60).of_rule(rule)
    assert len(few) < len(everything)
    assert few[0] == everything[0]
    assert set(few) <= set(everything)
    single = [c for c in everything if c.cut <= 2]
    assert set(single) <= set(few)
    assert ((0, 1, 2), ()) in {c.results[0] for c in few}
    assert ((0, 2, 1), ()) not in {c.results[0] for c in few}


def oddness(candidate: Candidate) -> int:
    """Dimensions out of mesh order, and dimensions beyond one that a sum is scattered onto."""
    layouts = [*candidate.operands, *candidate.results]
    odd = sum(list(dim) != sorted(dim) for layout in layouts for dim in layout)
    if not candidate.scattered:
        return odd
    changed = zip(candidate.partial, candidate.results[0], strict=True)
    return odd - 1 + sum(before != after for before, after in changed)


def num_axes(parts: MeshParts, candidate: Candidate) -> int:
    layouts = [*candidate.operands, *candidate.results]
    return len({parts.axes[part] for layout in layouts for dim in layout for part in dim})


def num_factors(matmul: Candidate) -> int:
    (rows, summed), (_, columns) = matmul.operands
    return sum(map(bool, (rows, summed, columns)))


@pytest.mark.parametrize("most", [1, 30, 60, 150, 400])
@pytest.mark.parametrize("sizes", [(8, 8, 8), (16, 4, 32), (3, 2, 64)])
def test_what_is_left_out_is_never_made_and_what_stays_is_as_if_all_were(
    most: int, sizes: tuple[int, int, int]
) -> None:
    for parts in (parts_of("x=2,y=2,z=2,w=2"), parts_of("x=8,y=2,z=4", x=(4, 2))):
        everything = CandidateMaker(parts, max_candidates=10**6).of_rule(matmul_rule(*sizes))
        alone = [c for c in everything if num_axes(parts, c) < 2]
        others = [c for c in everything if num_axes(parts, c) > 1]
        ranked = sorted(others, key=lambda c: (oddness(c), -c.cut, num_factors(c)))
        kept = {*alone, *ranked[: max(0, most - len(alone))]}
        offered = CandidateMaker(parts, max_candidates=most).of_rule(matmul_rule(*sizes))
        assert offered == tuple(c for c in everything if c in kept)


def test_beyond_the_limit_all_axes_on_the_batch_stay() -> None:
    """Of the gradient of a kernel, sums over rows and columns took all places before the batch."""
    factors = (((3,), (1,), (2,), (0,)), ((3,), (1,), (2,), (4,)))
    rule = Rule((8, 16, 16, 8, 8, 1, 1), factors, (((5,), (6,), (0,), (4,)),), frozenset({1, 2, 3}))
    offered = CandidateMaker(parts_of("x=2,y=2,z=2")).of_rule(rule)
    assert any(not c.scattered and c.operands[0][0] == (0, 1, 2) for c in offered)


def test_the_same_rule_gives_the_same_candidates_object() -> None:
    maker = CandidateMaker(parts_of("x=2"))
    assert maker.of_rule(matmul_rule(8, 8, 8)) is maker.of_rule(matmul_rule(8, 8, 8))


MESHES = [
    parts_of("x=8"),
    parts_of("x=2,y=4"),
    parts_of("x=2,y=2,z=2"),
    parts_of("x=2,y=2,z=2,w=2"),
    parts_of("x=8,y=2", x=(4, 2)),
]


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Each factor is in some operands; those in no result are summed."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 12, 16]), min_size=1, max_size=4))
    factors = range(len(sizes))
    reduction = draw(st.sets(st.sampled_from(list(factors)), max_size=1))
    num_operands = draw(st.integers(1, 2))
    members = [draw(st.sets(st.sampled_from(list(factors)))) for _ in range(num_operands)]
    members[0] |= set(factors)
    operands = tuple(tuple((f,) for f in sorted(used)) for used in members)
    result: Dims = tuple((f,) for f in factors if f not in reduction)
    if len(result) > 1 and draw(st.booleans()):
        result = ((*result[0], *result[1]), *result[2:])
    return Rule(tuple(sizes), operands, (result,), frozenset(reduction))


@settings(max_examples=60, deadline=None)
@given(rule=rules(), parts=st.sampled_from(MESHES))
def test_every_layout_divides_its_tensor_and_uses_no_part_twice(
    rule: Rule, parts: MeshParts
) -> None:
    for candidate in CandidateMaker(parts).of_rule(rule):
        pairs = [
            *zip(rule.operands, candidate.operands, strict=True),
            *zip(rule.results, candidate.results, strict=True),
        ]
        for dims, layout in pairs:
            used = [part for dim in layout for part in dim]
            assert len(used) == len(set(used))
            for factors, dim in zip(dims, layout, strict=True):
                size = prod(rule.factor_sizes[f] for f in factors)
                assert size % parts.num_shards(dim) == 0


@settings(max_examples=60, deadline=None)
@given(rule=rules(), parts=st.sampled_from(MESHES))
def test_partial_sums_are_reduced_over_exactly_the_parts_that_cut_the_sum(
    rule: Rule, parts: MeshParts
) -> None:
    for candidate in CandidateMaker(parts).of_rule(rule):
        in_sum = {
            part
            for dims, layout in zip(rule.operands, candidate.operands, strict=True)
            for factors, dim in zip(dims, layout, strict=True)
            for part in dim
            if set(factors) & rule.reduction
        }
        assert set(candidate.reduced) | set(candidate.scattered) == in_sum
        assert not set(candidate.reduced) & set(candidate.scattered)
        if in_sum:
            kept = {part for dim in candidate.partial for part in dim}
            final = {part for dim in candidate.results[0] for part in dim}
            assert final - kept == set(candidate.scattered)
        assert candidate.cut >= parts.num_shards(in_sum)


@settings(max_examples=60, deadline=None)
@given(rule=rules(), parts=st.sampled_from(MESHES))
def test_no_candidate_is_listed_twice(rule: Rule, parts: MeshParts) -> None:
    found = CandidateMaker(parts).of_rule(rule)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("mesh", ["x=2,y=2,z=2", "x=2,y=2,z=2,w=2"])
def test_every_placing_of_axes_on_dimensions_is_offered_on_large_meshes(mesh: str) -> None:
    parts = parts_of(mesh)
    found = {
        tuple(frozenset(dim) for dim in layout)
        for layout in result_layouts(identity_rule((16, 16)), mesh)
    }
    assert len(found) == 3 ** len(parts.sizes)  # each axis on dimension 0, on 1 or on none
