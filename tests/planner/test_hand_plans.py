"""Plans written by hand, priced in our own planning problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoshard.encoding.encode import Wishes
from autoshard.graph.program import Graph
from autoshard.planning.hand_plans import hand_baselines, hand_plans, impossible_note
from autoshard.planning.planner import SolveOptions
from autoshard.plans.plan import Baseline
from autoshard.sharding import Sharding, parse_sharding
from autoshard.wishes.wishes import AlikeWish
from tests.planner.graphs import Program, free_wishes, parts_of, plan

CARRIED = [(0, 0)]


def step() -> Graph:
    """`w + (x @ w)` summed over nothing: a state, a batch and a new state."""
    program = Program()
    w, x = program.argument(256, 256, name="w"), program.argument(256, 256, name="x")
    return program.graph(program.elementwise(w, program.matmul(x, w)), donated=(0,))


def test_state_counts_as_parameters_and_the_rest_as_a_batch() -> None:
    plans = hand_plans(step(), parts_of("x=2,y=4"), CARRIED)
    whole, rows = ((), ()), ((0, 1), ())
    assert plans == {
        "replicated": (whole, whole),
        "data parallel": (whole, rows),
        "fsdp": (rows, rows),
    }


def test_fsdp_cuts_the_largest_dimension_that_the_mesh_divides() -> None:
    program = Program()
    shapes = [(12, 64), (64, 12), (12, 6), (3, 5), (), (16,)]
    arguments = [program.argument(*shape) for shape in shapes]
    graph = program.graph(*arguments)
    carried = [(i, i) for i in range(len(arguments))]
    sharded = hand_plans(graph, parts_of("x=2,y=4"), carried)["fsdp"]
    assert sharded == (
        ((), (0, 1)),
        ((0, 1), ()),
        ((0,), ()),  # 12 divides by 2 and then not by 4
        ((), ()),
        (),
        ((0, 1),),
    )


def test_a_batch_that_only_some_axes_divide_is_cut_by_those() -> None:
    program = Program()
    graph = program.graph(program.argument(4, 64))
    assert hand_plans(graph, parts_of("x=8,y=2"), [])["data parallel"] == (((1,), ()),)


def silent(
    arguments: Sequence[Sharding | None], results: Sequence[Sharding | None]
) -> Mapping[str, Sharding]:
    """A propagation that tells nothing beyond the arguments."""
    del arguments, results
    return {}


def baselines(budget: int | None, wishes: Wishes | None = None) -> dict[str, Baseline]:
    graph = step()
    solution = plan(graph, "x=2,y=4", wishes or free_wishes(graph, CARRIED))
    options = SolveOptions(time_limit_seconds=10.0)
    return {b.name: b for b in hand_baselines(solution, silent, budget, options)}


def test_our_plan_costs_no_more_than_any_written_by_hand() -> None:
    graph = step()
    ours = plan(graph, "x=2,y=4", free_wishes(graph, CARRIED)).account
    seconds = ours.compute_seconds + ours.communication_seconds
    found = baselines(None)
    assert set(found) == {"replicated", "data parallel", "fsdp"}
    assert all(seconds <= b.seconds * (1 + 1e-9) for b in found.values())


def test_fsdp_holds_less_and_moves_more_than_replicas() -> None:
    found = baselines(None)
    assert found["fsdp"].peak_bytes < found["replicated"].peak_bytes
    assert found["fsdp"].collective_bytes > 0


def test_a_plan_fits_a_budget_of_its_own_peak_and_no_less() -> None:
    peak = baselines(None)["fsdp"].peak_bytes
    assert baselines(peak)["fsdp"].fits
    assert not baselines(peak - 1)["fsdp"].fits


ROWS_BY_Y = parse_sharding('[{"y"}, {"x"}]')


def test_an_argument_that_must_end_like_a_pinned_result_keeps_our_sharding() -> None:
    graph = step()
    wishes = replace(free_wishes(graph, CARRIED), results=(ROWS_BY_Y,))
    assert list(baselines(None, wishes)) == ["replicated", "data parallel", "fsdp"]


def test_so_does_one_in_a_group_with_a_pinned_tensor() -> None:
    graph = step()
    w, x = ((op.index, op.results[0]) for op in graph.arguments)
    free = free_wishes(graph, [])
    wishes = replace(free, arguments=(ROWS_BY_Y, None), groups=(AlikeWish((w, x), "a group"),))
    assert list(baselines(None, wishes)) == ["replicated", "data parallel", "fsdp"]


def test_a_plan_that_what_was_asked_rules_out_is_named() -> None:
    graph = step()
    w, x = ((op.index, op.results[0]) for op in graph.arguments)
    wishes = replace(free_wishes(graph, CARRIED), groups=(AlikeWish((w, x), "a group"),))
    found = baselines(None, wishes)
    assert list(found) == ["replicated", "fsdp"]
    assert impossible_note(list(found.values())) == (
        "not possible under what was asked, and so not compared with: data parallel",
    )
    assert impossible_note(list(baselines(None).values())) == ()
