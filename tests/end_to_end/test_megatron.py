"""Megatron as derived from the program is Megatron as the workloads' authors write it."""

from __future__ import annotations

import jax
import pytest

from autoshard.frontend.trace import trace
from autoshard.graph.dimension_classes import dimension_classes
from autoshard.planning.tensor_parallel import tensor_parallel
from autoshard.planning.traced_program import read_traced
from autoshard.sharding import parse_mesh_sizes
from experiments.workloads import get_workload

NUM_DEVICES = 4


def derived(name: str) -> dict[str, tuple[str | None, ...]]:
    """By path of a parameter, `"model"` or None for each dimension."""
    workload = get_workload(name)
    mesh = parse_mesh_sizes("data=2,model=4")
    traced = trace(workload.step, (workload.state, workload.batch), mesh=mesh, donate_argnums=0)
    program = read_traced(traced, mesh, (), None, 1.0)
    parameters = {argument for argument, _ in program.wishes.alike}
    found = tensor_parallel(
        program.graph, dimension_classes(program.graph), parameters, NUM_DEVICES
    )
    assert found is not None
    cuts = {}
    for op in program.graph.arguments:
        value = program.graph.values[op.results[0]]
        dims = [own in found.cut for own in found.classes[value.index]]
        cuts[value.name] = tuple("model" if cut else None for cut in dims)
    return cuts


def by_hand(name: str) -> dict[str, tuple[str | None, ...]]:
    workload = get_workload(name)
    assert workload.megatron is not None
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(workload.state["params"]):
        end = jax.tree_util.keystr(path)
        told = workload.megatron(f"params{end}", leaf.shape) or ()
        found[f"state['params']{end}"] = tuple(told) + (None,) * (len(leaf.shape) - len(told))
    return found


@pytest.mark.parametrize("name", ["gpt", "gpt_scan", "llama", "gemma", "lora", "ssm", "mlp"])
def test_a_transformer_is_cut_as_its_author_cuts_it(name: str) -> None:
    found = derived(name)
    wanted = by_hand(name)
    assert {path: found[path] for path in wanted} == wanted


@pytest.mark.parametrize("name", ["mixtral", "deepseek"])
def test_experts_are_dealt_out_and_their_router_with_them(name: str) -> None:
    found, wanted = derived(name), by_hand(name)
    different = {path for path in wanted if found[path] != wanted[path]}
    assert different == {path for path in wanted if path.endswith("['router']")}
    assert {found[path] for path in different} == {(None, "model")}


def test_moments_are_cut_as_their_parameters() -> None:
    found = derived("gpt")
    for path, dims in by_hand("gpt").items():
        end = path.removeprefix("state['params']")
        assert found[f"state['opt'][0].mu{end}"] == found[f"state['opt'][0].nu{end}"] == dims
