"""The mesh search against planning on every mesh, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoshard.costing.costing import cost_model_for
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.errors import ConstraintError, ExportError
from autoshard.graph.program import Graph
from autoshard.mesh_search import search as mesh_search
from autoshard.mesh_search.floor import floor_seconds
from autoshard.mesh_search.search import Searched, SearchOptions, search_meshes
from autoshard.mesh_search.shapes import DEFAULT_AXIS_NAMES, axes_text, possible_meshes
from autoshard.planning import searches
from autoshard.planning.planner import plan_graph
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.plans.searched_meshes import TriedMesh
from autoshard.sharding import Mesh, parse_sharding
from autoshard.wishes.mesh_parts import parts_for
from autoshard.wishes.wishes import Wishes
from cost_models import get_hardware
from solvers import Problem, Progress, Result, Status, solve
from tests.planner.graphs import Program, free_wishes, wishes_for

EXACT = SolveOptions(time_limit_seconds=60.0, relative_gap=0.0)
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Case:
    graph: Graph
    wishes: Wishes
    streamable: frozenset[str] = frozenset()


def two_products(batch: int, inner: int, hidden: int) -> Case:
    program = Program()
    x = program.argument(batch, inner, name="x")
    up, down = program.argument(inner, hidden), program.argument(hidden, inner)
    graph = program.graph(program.matmul(program.elementwise(program.matmul(x, up)), down))
    return Case(graph, free_wishes(graph))


def meshes_of(num_devices: int, hardware: str = "cpu-host") -> tuple[Mesh, ...]:
    return possible_meshes(num_devices, DEFAULT_AXIS_NAMES, get_hardware(hardware))[0]


def options_for(
    hardware: str = "cpu-host", limit: int | None = None, solve: SolveOptions = EXACT
) -> SearchOptions:
    return SearchOptions(hardware=get_hardware(hardware), memory_limit=limit, solve=solve)


def searched(case: Case, num_devices: int, options: SearchOptions) -> Searched[Case]:
    meshes = meshes_of(num_devices, options.hardware.name)
    return search_meshes(meshes, lambda _: case, options)


def planned(case: Case, mesh: Mesh, options: SearchOptions) -> Solution:
    return plan_graph(
        case.graph, mesh, options.hardware, case.wishes, options.memory_limit, options.solve
    )


def cost_of(solution: Solution) -> int:
    assert solution.result.cost is not None
    return solution.result.cost


def tried(found: Searched[Case], outcome: str) -> list[TriedMesh]:
    return [one for one in found.record.tried if one.outcome == outcome]


SIZES = st.sampled_from([6, 8, 12, 64, 96])


@FEW
@given(
    shape=st.tuples(SIZES, SIZES, SIZES),
    num_devices=st.sampled_from([4, 6, 8, 12]),
    hardware=st.sampled_from(["cpu-host", "h100", "tpu-v5e"]),
)
def test_the_plan_found_is_the_best_of_all_meshes(
    shape: tuple[int, int, int], num_devices: int, hardware: str
) -> None:
    case, options = two_products(*shape), options_for(hardware)
    found = searched(case, num_devices, options)
    costs = {mesh: cost_of(planned(case, mesh, options)) for mesh in meshes_of(num_devices)}
    assert cost_of(found.solution) == min(costs.values()) == costs[found.mesh]
    assert {one.mesh for one in found.record.tried} == set(costs)
    assert found.record.bound_seconds == min(costs.values()) / PICOSECONDS
    for one in found.record.tried:
        if one.seconds is not None:
            assert round(one.seconds * PICOSECONDS) == costs[one.mesh]
        if one.bound_seconds is not None:
            assert round(one.bound_seconds * PICOSECONDS) <= costs[one.mesh]


@FEW
@given(
    shape=st.tuples(SIZES, SIZES, SIZES),
    num_devices=st.sampled_from([4, 8]),
    hardware=st.sampled_from(["cpu-host", "h100", "tpu-v5e"]),
)
def test_on_meshes_that_are_alike_the_best_plans_cost_the_same(
    shape: tuple[int, int, int], num_devices: int, hardware: str
) -> None:
    case, options = two_products(*shape), options_for(hardware)
    meshes = {axes_text(mesh): mesh for mesh in meshes_of(num_devices, hardware)}
    for one in tried(searched(case, num_devices, options), "alike"):
        first = meshes[one.reason.removeprefix("its links are those of ")]
        assert cost_of(planned(case, one.mesh, options)) == cost_of(planned(case, first, options))


@FEW
@given(
    shape=st.tuples(SIZES, SIZES, SIZES),
    mesh=st.sampled_from([mesh for count in (4, 6, 8) for mesh in meshes_of(count)]),
    hardware=st.sampled_from(["cpu-host", "h100", "tpu-v5p"]),
)
def test_no_plan_is_below_the_floor(shape: tuple[int, int, int], mesh: Mesh, hardware: str) -> None:
    case, options = two_products(*shape), options_for(hardware)
    parts = parts_for(case.graph, mesh, case.wishes)
    floor = floor_seconds(case.graph, parts, cost_model_for(options.hardware, parts))
    assert 0 < floor * PICOSECONDS <= cost_of(planned(case, mesh, options)) + len(case.graph.ops)


def test_what_new_states_take_beside_the_chip_counts_where_meshes_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, options = two_products(64, 96, 12), options_for("cpu-host")
    best = searched(case, 12, options).mesh

    def off_chip(solution: Solution) -> float:
        return 1.0 if solution.encoder.costing.parts.mesh == best else 0.0

    monkeypatch.setattr(Solution, "seconds_off_chip", property(off_chip))
    assert searched(case, 12, options).mesh != best


def test_meshes_that_leave_devices_idle_are_refused_by_their_bound_and_are_worse() -> None:
    """An axis of 6 cuts nothing of 4096, so 2 of 12 devices work: the products tell beforehand."""
    case, options = two_products(4096, 4096, 4096), options_for("tpu-v5p")
    found = searched(case, 12, options)
    refused = tried(found, "bound")
    assert [axes_text(one.mesh) for one in refused] == ["data=2, model=6"]
    for one in refused:
        assert one.seconds is None
        assert one.bound_seconds is not None
        cost = cost_of(planned(case, one.mesh, options))
        assert cost >= round(one.bound_seconds * PICOSECONDS) > cost_of(found.solution)


def test_a_mesh_that_cuts_nothing_is_not_planned() -> None:
    found = searched(two_products(64, 64, 64), 6, options_for())
    (one,) = tried(found, "impossible")
    assert axes_text(one.mesh) == "data=6"
    assert one.reason == "no dimension of the program can be sharded along any of its axes"


def test_where_no_mesh_cuts_anything_the_first_one_is_planned() -> None:
    found = searched(two_products(64, 64, 64), 7, options_for())
    assert [(axes_text(one.mesh), one.outcome) for one in found.record.tried] == [
        ("data=7", "chosen")
    ]


def test_of_plans_that_cost_the_same_the_mesh_with_the_fewest_axes_wins() -> None:
    case, options = two_products(64, 64, 64), options_for()
    found = searched(case, 8, options)
    costs = [cost_of(planned(case, mesh, options)) for mesh in meshes_of(8)]
    fewest = min(
        (mesh for mesh, cost in zip(meshes_of(8), costs, strict=True) if cost == min(costs)),
        key=lambda mesh: len(mesh.axes),
    )
    assert len(found.mesh.axes) == len(fewest.axes)


def test_a_gap_is_that_of_the_best_plan_on_any_mesh() -> None:
    case = two_products(96, 64, 256)
    wide = options_for("h100", solve=replace(EXACT, relative_gap=0.2))
    found = searched(case, 8, wide)
    best = min(cost_of(planned(case, mesh, options_for("h100"))) for mesh in meshes_of(8))
    assert cost_of(found.solution) * 0.8 <= found.record.bound_seconds * PICOSECONDS <= best


@pytest.mark.parametrize("limit", [None, 100_000])
def test_two_searches_find_the_same(limit: int | None) -> None:
    solve = replace(EXACT, relative_gap=0.01)
    case, options = two_products(96, 64, 256), options_for("tpu-v5e", limit, solve)
    first, second = (searched(case, 12, options) for _ in range(2))
    assert first.record == second.record
    assert first.solution.choices == second.solution.choices


# -- memory --------------------------------------------------------------------------------------


def one_large_tensor() -> Case:
    """Its 4 rows can be cut by 4 devices, and by 8 cannot; only the small tensor can."""
    program = Program()
    large, small = program.argument(4, 9), program.argument(8)
    graph = program.graph(program.elementwise(large), program.elementwise(small))
    return Case(graph, free_wishes(graph))


def test_a_mesh_on_which_no_plan_fits_says_what_it_needs() -> None:
    found = searched(one_large_tensor(), 8, options_for("h100", limit=120))
    (one,) = tried(found, "memory")
    assert axes_text(one.mesh) == "data=8"
    assert one.peak_bytes is not None
    assert one.peak_bytes > 120
    assert one.reason == f"needs {one.peak_bytes} B per device of 120 B allowed"
    assert found.solution.is_feasible


def test_where_no_mesh_has_room_the_leanest_plan_is_told() -> None:
    found = searched(one_large_tensor(), 8, options_for("tpu-v5p", limit=1))
    assert not found.solution.is_feasible
    peaks = [one.peak_bytes for one in found.record.tried if one.peak_bytes is not None]
    assert found.solution.account.memory.peak_bytes == min(peaks)
    assert found.record.tried[0].outcome == "chosen"
    assert len(tried(found, "memory")) == len(peaks) - 1 > 0


# -- programs that name axes ---------------------------------------------------------------------


def pinned(*shape: int, axis: str) -> Case:
    program = Program()
    x = program.argument(*shape)
    held = program.constraint(x, f'<@mesh, [{{"{axis}"}}, {{}}]>')
    graph = program.graph(program.elementwise(held))
    return Case(graph, free_wishes(graph))


def test_a_program_that_names_an_axis_is_planned_on_meshes_that_have_it() -> None:
    case = pinned(64, 64, axis="model")
    found = searched(case, 8, options_for())
    assert "model" in found.mesh.sizes
    (one,) = tried(found, "impossible")
    assert axes_text(one.mesh) == "data=8"
    assert one.reason == 'the sharding uses axis "model", which the mesh does not have'
    assert tried(found, "alike") == []  # under these names they are not


def test_where_an_argument_is_asked_on_an_axis_the_program_is_read_on_every_mesh() -> None:
    program = Program()
    graph = program.graph(program.elementwise(program.argument(64, 64)))
    case = Case(graph, wishes_for(graph, {0: parse_sharding('<@mesh, [{"inner"}, {}]>')}))
    read: list[Mesh] = []

    def problem_on(mesh: Mesh) -> Case:
        read.append(mesh)
        if "inner" not in mesh.sizes:
            raise ConstraintError(f"no inner axis in {mesh}")
        return case

    found = search_meshes(meshes_of(8), problem_on, options_for())
    assert axes_text(found.mesh) == "data=2, model=2, inner=2"
    assert read == list(meshes_of(8))
    reasons = [one.reason for one in tried(found, "impossible")]
    assert reasons == [f"no inner axis in {mesh}" for mesh in meshes_of(8)[:3]]


def test_a_program_that_names_no_axis_is_read_twice_however_many_meshes_there_are() -> None:
    case = two_products(96, 64, 256)
    read: list[Mesh] = []

    def problem_on(mesh: Mesh) -> Case:
        read.append(mesh)
        return case

    found = search_meshes(meshes_of(12), problem_on, options_for("h100"))
    first, second = read
    assert first == meshes_of(12)[0]
    assert found.mesh in (first, second)


def test_a_program_that_asks_what_mesh_it_is_traced_under_is_read_on_every_mesh() -> None:
    """Its graph is another one on every mesh, though it names no axis."""

    def dearer_on_more_axes(mesh: Mesh) -> Case:
        return two_products(64, 64, 64 * len(mesh.axes) ** 2)

    def cheap_on_two_axes(mesh: Mesh) -> Case:
        return two_products(64, 64, 64 if len(mesh.axes) == 2 else 640)

    def only_on_one_axis(mesh: Mesh) -> Case:
        if len(mesh.axes) > 1:
            raise ExportError("it does not trace")
        return two_products(64, 64, 64)

    options = options_for()
    for read in (dearer_on_more_axes, cheap_on_two_axes, only_on_one_axis):
        found = search_meshes(meshes_of(8), read, options)
        assert found.problem.graph == read(found.mesh).graph
        assert found.solution.graph.values == found.problem.graph.values
        told = {one.mesh: one.seconds for one in found.record.tried if one.seconds is not None}
        costs = {mesh: cost_of(planned(read(mesh), mesh, options)) for mesh in told}
        assert {mesh: round(s * PICOSECONDS) for mesh, s in told.items()} == costs
        assert cost_of(found.solution) == min(costs.values())
    assert len(tried(found, "impossible")) == 3


@pytest.mark.parametrize("is_same", [True, False])
def test_a_program_that_no_mesh_takes_raises_what_is_wrong(*, is_same: bool) -> None:
    read: list[Mesh] = []

    def problem_on(mesh: Mesh) -> Case:
        read.append(mesh)
        raise ExportError("it does not trace" + ("" if is_same else f" on {mesh}"))

    with pytest.raises(ExportError, match="it does not trace"):
        search_meshes(meshes_of(8), problem_on, options_for())
    assert len(read) == (2 if is_same else len(meshes_of(8)))  # twice the same is enough


def test_progress_says_on_which_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(*args: Any, progress: Callable[[Progress], None], **options: Any) -> Solution:
        progress(Progress(1.0, "bounds", None, 5))
        return plan_graph(*args, **options)

    monkeypatch.setattr(mesh_search, "plan_graph", telling)
    told: list[str] = []
    case, options = two_products(64, 64, 64), options_for("h100")
    search_meshes(
        meshes_of(4), lambda _: case, options, progress=lambda sign: told.append(sign.stage)
    )
    assert told == ["data=4: bounds", "data=2, model=2: bounds"]


# -- time ----------------------------------------------------------------------------------------


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock on which every look takes a second."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(mesh_search, "time", SimpleNamespace(monotonic=monotonic))
    return monotonic


@pytest.mark.usefixtures("slow_clock")
def test_when_time_is_up_the_best_plan_so_far_is_the_answer() -> None:
    case = two_products(96, 64, 256)
    options = options_for("h100", solve=replace(EXACT, time_limit_seconds=5.0))
    found = searched(case, 12, options)
    planned_on = [one for one in found.record.tried if one.seconds is not None]
    late = tried(found, "no time")
    assert len(planned_on) > 1
    assert late
    assert {one.reason for one in late} == {"time was up before a plan was found on it"}
    assert planned_on[0].seconds == min(one.seconds or 0 for one in planned_on)
    assert found.record.bound_seconds < (planned_on[0].seconds or 0)  # the late ones may be better


def test_an_interrupt_while_another_mesh_is_priced_leaves_the_best_plan_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solutions: list[Solution] = []

    def interrupted(*args: Any, **options: Any) -> Solution:
        if solutions:
            raise KeyboardInterrupt
        solutions.append(plan_graph(*args, **options))
        return solutions[0]

    monkeypatch.setattr("autoshard.mesh_search.search.plan_graph", interrupted)
    found = searched(two_products(64, 64, 128), 4, options_for())
    assert found.solution is solutions[0]


def test_that_time_was_up_before_any_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_in_time(problem: Problem, **options: Any) -> Result:
        found = solve(problem, **options)
        return replace(found, status=Status.NO_SOLUTION, choices=None, cost=None)

    monkeypatch.setattr(searches, "solve", nothing_in_time)
    with pytest.raises(NoPlanInTimeError, match="no plan before its time was up"):
        searched(two_products(96, 64, 256), 12, options_for("h100", solve=EXACT))
