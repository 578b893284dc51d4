"""Whole training steps: they export without notes, in time, and do the work XLA counts."""

from __future__ import annotations

import time
from typing import Any

import jax
import pytest

from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.frontend.trace import Traced, trace
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.verify import verify_graph
from autoshard.sharding import parse_mesh_sizes
from experiments.workloads.registry import SMALL_WORKLOADS, get_workload
from experiments.workloads.workload import Workload


def traced_step(workload: Workload, mesh: str = "x=2,y=4") -> Traced:
    return trace(
        workload.step,
        (workload.state, workload.batch),
        {},
        mesh=parse_mesh_sizes(mesh),
        donate_argnums=workload.donate_argnums,
    )


def to_graph(traced: Traced) -> Graph:
    return module_to_graph(
        traced.module,
        ModuleNames(
            arguments=traced.in_names,
            results=traced.out_names,
            donated=traced.donated,
            captured=traced.captured_names,
            source_by_equation=traced.source_by_equation,
        ),
    )


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_every_training_step_exports_whole_and_without_notes(name: str) -> None:
    traced = traced_step(get_workload(name))
    graph = to_graph(traced)
    assert verify_graph(graph) == []
    assert graph.notes == ()
    assert len(graph.arguments) == len(traced.in_names)
    assert len(graph.results) == len(traced.out_names)
    assert all(region.is_trip_count_known for region in graph.regions)
    constrainable = [path for path in graph.value_by_path if not path.startswith("in.")]
    assert len(constrainable) > 100


def matmul_flops(graph: Graph) -> float:
    heavy = (OpClass.MATMUL, OpClass.CONVOLUTION)
    return sum(op.flops * op.repeat for op in graph.ops if op.op_class in heavy)


@pytest.mark.parametrize(("unrolled", "scanned"), [("gpt", "gpt_scan"), ("llama", "llama_scan")])
def test_a_scanned_stack_does_the_products_of_the_unrolled_one_and_repeats_its_forward_pass(
    unrolled: str, scanned: str
) -> None:
    once = matmul_flops(to_graph(traced_step(get_workload(unrolled))))
    again = matmul_flops(to_graph(traced_step(get_workload(scanned))))
    # Rematerialisation adds at most the forward pass, a third of the work.
    assert once < again <= once * 4 / 3


def test_an_mlp_step_does_the_products_that_xla_counts() -> None:
    workload = get_workload("mlp")
    compiled: Any = jax.jit(workload.step).lower(workload.state, workload.batch).compile()
    graph = to_graph(traced_step(workload))
    total = sum(op.flops * op.repeat for op in graph.ops)
    assert total == pytest.approx(compiled.cost_analysis()["flops"], rel=0.1)


@pytest.mark.slow
def test_a_32_layer_llama_step_is_imported_in_three_seconds() -> None:
    traced = traced_step(get_workload("llama_7b"), "data=4,model=8")
    begun = time.process_time()
    graph = to_graph(traced)
    assert time.process_time() - begun < 3.0
    assert len(graph.ops) > 20_000
