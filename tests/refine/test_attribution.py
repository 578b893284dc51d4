"""What a compiled program shows, laid to the ops, reshards and values that caused it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.encoding.corrections import Corrections, corrected, op_keys
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import Op
from autoshard.hlo.compiled import read_module_collectives
from autoshard.hlo.local_program import DeviceSpeed, compiled_program
from autoshard.hlo.text import parse_hlo
from autoshard.lowering.estimate import estimate
from autoshard.planning.solution import Solution
from autoshard.refine.attribution import Observation, observe
from autoshard.refine.compiled_plan import CompiledPlan, compiled_seconds
from autoshard.refine.learnt import Learnt, neighbours
from autoshard.refine.named_ops import equation_of
from autoshard.sharding import Mesh
from autoshard.verification.compiled_prices import CompiledPrices
from autoshard.verification.verification import TimeCheck
from solvers import evaluate
from tests.refine.programs import planned

CLOCK = 1.5e9  # of a v5e, by its data sheet


@pytest.fixture(scope="module")
def solution() -> Solution:
    found = planned().solution
    assert found is not None
    return found


def matmuls(solution: Solution) -> list[Op]:
    return [op for op in solution.graph.ops if op.name == "dot_general"]


def program(*lines: str, num_devices: int = 8) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"HloModule jit_step, is_scheduled=true, num_partitions={num_devices}\n\n"
        "ENTRY %main (p: f32[8,8]) -> f32[8,8] {\n"
        "  %p = f32[8,8]{1,0} parameter(0)\n"
        f"{body}\n"
        "  ROOT %r = f32[8,8]{1,0} copy(%p)\n"
        "}\n"
    )


def kernel(name: str, equation: str, seconds: float, shape: str = "f32[8,8]{1,0}") -> str:
    cycles = round(seconds * CLOCK)
    return (
        f'%{name} = {shape} custom-call(%p), custom_call_target="t",'
        f' metadata={{op_name="jit(step)/E[{equation}]/dot_general"}},'
        f' backend_config={{"estimated_cycles":"{cycles}"}}'
    )


def gather(name: str, scope: str, rows: int) -> str:
    return (
        f"%{name} = f32[{rows},8192]{{1,0}} all-gather(%big), channel_id=1,"
        " replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, use_global_device_ids=true,"
        f' metadata={{op_name="jit(step)/{scope}/x"}}'
    )


def compiled(text: str, seconds: float = 1e-3, peak: int = 0) -> CompiledPlan:
    prices = CompiledPrices.of_machine("tpu-v5e", Mesh(planned().data.mesh.axes))
    return CompiledPlan(
        status="compiled",
        constraints={},
        seconds=seconds,
        peak_bytes=peak,
        module=parse_hlo(text),
        prices=prices,
        time=TimeCheck(
            predicted_compute_seconds=0.0,
            predicted_link_seconds=0.0,
            predicted_overlapped_seconds=0.0,
            compute_seconds=seconds,
            at_memory_speed_seconds=seconds,
            link_seconds=0.0,
            overlapped_seconds=seconds,
            cycles=seconds * CLOCK,
            clock_hz=CLOCK,
        ),
    )


@pytest.mark.parametrize(
    ("name", "equation"),
    [
        ("jit(step)/jvp(E[17])/jit(take)/E[.jaxpr/4]/gather", "17.jaxpr/4"),
        ("jit(step)/E[7]/cond/E[.branches[1]/38]/dot_general", "7.branches[1]/38"),
        ("jit(step)/E[7]/while/body/E[.jaxpr/3]/E[.jaxpr/5]/dot_general", "7.jaxpr/3.jaxpr/5"),
        ("E[.jaxpr/4]/reduce_sum", ""),
        ("jit(step)/transpose(jvp(E[62]))/while/body/dynamic_slice", "62"),
        ("jit(step)/autoshard[7.jaxpr/38<1]/sharding_constraint", "7.jaxpr/38"),
        ("jit(step)/autoshard[7.0]/sharding_constraint", "7"),
        ("jit(step)/DE[7]/add", ""),
        ("copy.12", ""),
    ],
)
def test_names_of_compiled_ops_tell_their_equation(name: str, equation: str) -> None:
    assert equation_of(name) == equation


def as_priced(solution: Solution, but: Op, seconds: float) -> list[str]:
    """A kernel for every op that has a price, which takes as long; but one takes `seconds`."""
    prices = {one.index: one.compute_seconds for one in solution.account.ops}
    return [
        kernel(
            f"k{index}", solution.graph.ops[index].equation, seconds if index == but.index else one
        )
        for index, one in prices.items()
        if one and solution.graph.ops[index].equation
    ]


def test_seconds_of_a_kernel_beyond_its_price_go_to_the_op_of_its_equation(
    solution: Solution,
) -> None:
    op = matmuls(solution)[0]
    priced = {one.index: one.compute_seconds for one in solution.account.ops}[op.index]
    seen = observe(solution, compiled(program(*as_priced(solution, op, 1e-3))))
    found = {one.op: one.seconds for one in seen.choices}
    key = op_keys(solution.graph)[op.index]
    assert found[key] == max(found.values())
    assert found[key] == pytest.approx(1e-3 - priced, rel=0.02)
    assert "dot_general" in seen.faults[0]


def test_an_op_that_no_kernel_names_shares_in_the_kernel_that_reads_it(solution: Solution) -> None:
    first, second = matmuls(solution)[:2]
    prices = {one.index: one.compute_seconds for one in solution.account.ops}
    lines = [
        line for line in as_priced(solution, second, 1e-3) if f"E[{first.equation}]" not in line
    ]
    seen = observe(solution, compiled(program(*lines)))
    keys = op_keys(solution.graph)
    found = {one.op: one.seconds for one in seen.choices}
    assert found[keys[first.index]] > -0.9 * prices[first.index]  # it is not free


def test_the_correction_is_of_the_choice_that_was_made(solution: Solution) -> None:
    op = matmuls(solution)[0]
    seen = observe(solution, compiled(program(kernel("k", op.equation, 1e-3))))
    (one,) = [c for c in seen.choices if c.op == op_keys(solution.graph)[op.index]]
    candidate = solution.decoded.candidates[op.index]
    parts = solution.encoded.parts
    assert one.results == tuple(map(parts.to_sharding, candidate.results))


def cost_of(solution: Solution, op: Op) -> float:
    """Of the choice made, in seconds."""
    node = solution.encoded.node_by_op[op.index]
    return int(solution.encoded.problem.node_costs[node][solution.choices[node]]) / PICOSECONDS


def test_the_corrected_problem_prices_a_compiled_plan_as_it_was_compiled(
    solution: Solution,
) -> None:
    op = matmuls(solution)[0]
    big = '%big = f32[8192,8192]{1,0} custom-call(%p), custom_call_target="t"'
    sent = gather("g", f"E[{op.equation}]", 32768)
    text = program(big, sent, *as_priced(solution, op, 3e-4))
    found = compiled(text)
    assert found.module is not None
    assert found.prices is not None
    speed = DeviceSpeed(
        clock_hz=CLOCK,
        bytes_per_second=found.prices.model.hardware.memory.bytes_per_second,
        moved_seconds=found.prices.moved_seconds,
    )
    mesh = Mesh(planned().data.mesh.axes)
    took = estimate(compiled_program(found.module, mesh, found.prices.link_seconds, speed)).seconds
    found = replace(found, seconds=took)
    learnt = Learnt(near=neighbours(solution.graph))
    learnt.add(observe(solution, found), took)
    problem = corrected(solution.encoded, learnt.corrections(), solution.encoder.node_costs).problem
    cost = evaluate(problem, solution.choices).cost / PICOSECONDS
    assert cost == pytest.approx(took, rel=5e-3)
    assert abs(solution.step_seconds / took - 1) > 0.05


@pytest.mark.parametrize("rows", [32, 32768], ids=["fewer", "more"])
def test_without_cycles_collectives_beside_the_planned_ones_change_the_planned_step(
    rows: int,
) -> None:
    plan = planned(hardware="h100")
    solution, mesh = plan.solution, Mesh(plan.data.mesh.axes)
    assert solution is not None
    hidden = plan.data.seconds - plan.data.priced_seconds
    assert hidden > 1e-5
    big = f'%big = f32[{rows // 4},8192]{{1,0}} custom-call(%p), custom_call_target="t"'
    sent = gather("g", f"E[{matmuls(solution)[0].equation}]", rows)
    module, prices = parse_hlo(program(big, sent)), CompiledPrices.of_machine("h100", mesh)
    assert prices is not None
    took, _ = compiled_seconds(plan.data, module, prices, None)
    links = sum(map(prices.link_seconds, read_module_collectives(module, mesh)))
    planned_links, compute = plan.data.communication_seconds, plan.data.compute_seconds
    if rows == 32:
        assert took - compute == pytest.approx(links * (1 - hidden / planned_links))
    else:
        assert took - compute == pytest.approx(links - hidden)
    found = CompiledPlan(
        status="compiled", constraints={}, seconds=took, peak_bytes=0, module=module, prices=prices
    )
    learnt = Learnt(near=neighbours(solution.graph))
    learnt.add(observe(solution, found), took)
    problem = corrected(solution.encoded, learnt.corrections(), solution.encoder.node_costs).problem
    cost = evaluate(problem, solution.choices).cost / PICOSECONDS
    assert cost == pytest.approx(took, rel=5e-3)


def test_a_fusion_is_shared_by_its_ops_in_the_ratio_of_their_prices(solution: Solution) -> None:
    first, second = matmuls(solution)[:2]
    prices = {one.index: one.compute_seconds for one in solution.account.ops}
    text = (
        "HloModule jit_step, is_scheduled=true, num_partitions=8\n\n"
        "%fused (q: f32[8,8]) -> f32[8,8] {\n"
        "  %q = f32[8,8]{1,0} parameter(0)\n"
        f'  %a = f32[8,8]{{1,0}} negate(%q), metadata={{op_name="E[{first.equation}]/a"}}\n'
        f'  ROOT %b = f32[8,8]{{1,0}} negate(%a), metadata={{op_name="E[{second.equation}]/b"}}\n'
        "}\n\n"
        "ENTRY %main (p: f32[8,8]) -> f32[8,8] {\n"
        "  %p = f32[8,8]{1,0} parameter(0)\n"
        "  ROOT %f = f32[8,8]{1,0} fusion(%p), kind=kLoop, calls=%fused,"
        ' backend_config={"estimated_cycles":"3000000"}\n'
        "}\n"
    )
    seen = observe(solution, compiled(text, 2e-3))
    keys = op_keys(solution.graph)
    more = {one.op: one.seconds for one in seen.choices}
    took = [more[keys[op.index]] + cost_of(solution, op) for op in (first, second)]
    assert took[0] / took[1] == pytest.approx(prices[first.index] / prices[second.index])


def test_a_collective_that_nobody_planned_is_laid_to_the_op_that_it_serves(
    solution: Solution,
) -> None:
    op = matmuls(solution)[0]
    big = '%big = f32[8192,8192]{1,0} custom-call(%p), custom_call_target="t"'
    quiet = observe(solution, compiled(program(big)))
    loud = observe(solution, compiled(program(big, gather("g", f"E[{op.equation}]", 32768))))
    key = op_keys(solution.graph)[op.index]

    def total(seen: Observation) -> float:
        choices = {one.op: one.seconds for one in seen.choices}
        moves = sum(one.seconds for one in seen.reshards if one.reader == key)
        return choices.get(key, 0.0) + moves

    assert total(loud) > total(quiet) + 1e-3
    assert any("all-gather over model that nobody planned" in fault for fault in loud.faults)


def test_a_program_without_estimates_or_text_shows_nothing(solution: Solution) -> None:
    found = compiled(program())
    assert observe(solution, replace(found, module=None)).choices == ()
    assert observe(solution, replace(found, prices=None)).choices == ()


def test_bytes_at_the_compiled_peak_go_to_the_value_of_their_equation(solution: Solution) -> None:
    op = matmuls(solution)[0]
    held = kernel("k", op.equation, 1e-6, "f32[16384,16384]{1,0}")
    use = "%u = f32[8,8]{1,0} slice(%k), slice={[0:8], [0:8]}"
    peak = solution.peak_bytes + 2**30
    seen = observe(solution, compiled(program(held, use), peak=peak))
    (one,) = seen.memory
    assert one.op.partition(":")[0] == op.equation
    assert 0 < one.num_bytes <= 2**30
    # Of a plan made with that, what is told replaces it: both together.
    known = Corrections(memory=(one,))
    made_with = replace(solution, encoder=solution.encoder.within(None, known))
    (more,) = observe(made_with, compiled(program(held, use), peak=peak)).memory
    assert more == replace(one, num_bytes=2 * one.num_bytes)
    # A peak as predicted shows nothing.
    same = observe(solution, compiled(program(held, use), peak=solution.peak_bytes))
    assert same.memory == ()
