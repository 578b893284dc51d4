"""What is asked of values and reads inside a program, in its graph."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.constraints import Program
from autoshard.errors import ConstraintError
from autoshard.frontend.asked_inside import AskedInside
from autoshard.frontend.dangling import honour_dangling
from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.frontend.program_facts import read_program
from autoshard.frontend.trace import trace
from autoshard.graph.printing import format_graph
from autoshard.graph.program import Graph, OpKind
from autoshard.source_place import format_source
from autoshard.wishes.wishes import Wishes
from tests.frontend.exporting import MESH, array, named
from tests.planner.graphs import plan

X = array(8, 16)
W = array(16, 16)
ROWS = '<mesh<["x"=2, "y"=4]>, [{"x"}, {}]>'


def asked(
    fn: Any,
    *args: Any,
    values: tuple[str, ...] = (),
    uses: tuple[str, ...] = (),
    held: tuple[str, ...] = (),
) -> Graph:
    traced = trace(fn, args, {}, mesh=MESH)
    names = ModuleNames(
        arguments=traced.in_names,
        results=traced.out_names,
        donated=traced.donated,
        source_by_equation=traced.source_by_equation,
    )
    inside = AskedInside(
        values=dict.fromkeys(values, ROWS),
        uses=dict.fromkeys(uses, ROWS),
        held=frozenset(held),
        operand_paths=traced.operand_paths,
        said=dict.fromkeys((*values, *uses), "pin `net.py:3`"),
    )
    return module_to_graph(traced.module, names, asked=inside)


def lines(graph: Graph) -> list[str]:
    return [line.partition("  ")[0] for line in format_graph(graph, sources=False).splitlines()]


def constraints(graph: Graph) -> list[int]:
    return [op.index for op in graph.ops if op.kind is OpKind.CONSTRAINT]


def test_a_pinned_value_is_read_through_its_constraint_and_the_path_leads_there() -> None:
    graph = asked(lambda x: (jnp.sin(x) * 2, jnp.cos(x) + 1), X, values=("0.0",))
    (at,) = constraints(graph)
    made = graph.ops[at].results[0]
    assert graph.value_by_path["0.0"] == made
    assert graph.ops[graph.values[graph.ops[at].operands[0]].op].name == "sine"
    readers = [op.name for op in graph.ops if made in op.operands]
    assert readers == ["multiply"]


def test_a_use_alone_is_read_through_a_constraint() -> None:
    graph = asked(lambda x, w: (x @ w, jnp.sin(x)), X, W, uses=("0<0",))
    (at,) = constraints(graph)
    argument = graph.value_by_path["in.0"]
    assert graph.ops[at].operands == (argument,)
    assert graph.value_by_path["0<0"] == graph.ops[at].results[0]
    readers = {op.name: op.operands[0] for op in graph.ops if op.name in ("dot_general", "sine")}
    assert readers == {"dot_general": graph.ops[at].results[0], "sine": argument}


def test_both_reads_of_one_equation_share_a_constraint() -> None:
    graph = asked(lambda x: x * x, X, uses=("0<0", "0<1"))
    (at,) = constraints(graph)
    made = graph.ops[at].results[0]
    assert graph.value_by_path["0<0"] == graph.value_by_path["0<1"] == made


def test_a_loop_reads_what_is_asked_of_its_operand() -> None:
    def fn(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0] + w[:8]

    graph = asked(fn, X, W, uses=("0<0",))
    (at,) = constraints(graph)
    made = graph.ops[at].results[0]
    readers = [op.name for op in graph.ops if made in op.operands]
    assert readers
    assert "slice" not in readers
    assert {op.name for op in graph.ops if graph.value_by_path["in.1"] in op.operands} == {
        "sharding_constraint",
        "slice",
    }


def test_branches_read_what_is_asked_of_their_operand() -> None:
    def fn(flag: Any, x: Any) -> Any:
        return lax.cond(flag, jnp.sin, jnp.cos, x), jnp.tanh(x)

    graph = asked(fn, jax.ShapeDtypeStruct((), jnp.bool_), X, uses=("1<1",))
    (at,) = constraints(graph)
    made = graph.ops[at].results[0]
    assert [op.name for op in graph.ops if made in op.operands] == ["cosine", "sine"]


def test_a_call_that_is_lowered_in_place_reads_what_is_asked_of_its_operand() -> None:
    graph = asked(lambda x: (jax.nn.relu(x), jnp.sin(x)), X, uses=("0<0",))
    (at,) = constraints(graph)
    made = graph.ops[at].results[0]
    assert [op.name for op in graph.ops if made in op.operands] == ["maximum"]
    assert named(graph, "sine")[0].operands == (graph.value_by_path["in.0"],)


def test_what_the_lowering_removed_cannot_be_asked() -> None:
    with pytest.raises(ConstraintError) as caught:
        asked(jnp.sin, X, values=("7.0",))
    assert str(caught.value) == (
        "a value or read asked for cannot be found in the lowered program, so there is nothing to"
        " shard\n"
        "  where: pin `net.py:3`\n"
        "  fix: select a value that the result depends on"
    )


def test_a_result_may_be_handed_back_otherwise_than_it_is_made() -> None:
    graph = asked(jnp.sin, X, uses=("out<0",))
    (at,) = constraints(graph)
    assert graph.results[0].operands == graph.ops[at].results


def test_a_value_in_a_group_that_every_device_makes_itself_becomes_a_copy() -> None:
    graph = asked(lambda x: x + jnp.arange(16.0), X, held=("0.0", "1.0"))
    held = graph.ops[graph.values[graph.value_by_path["0.0"]].op]
    assert (held.kind, held.name) == (OpKind.COMPUTE, "copy")


def test_the_example_of_a_sharding_group_in_shardy_s_documents() -> None:
    module = """
    sdy.mesh @mesh_xy = <["x"=2, "y"=2]>
    func.func @main(%arg0: tensor<8x2xi64>) -> (tensor<8x2xi64>) {
      sdy.sharding_group %arg0 group_id=0 : tensor<8x2xi64>
      %1 = stablehlo.constant dense<0> : tensor<8x2xi64>
      sdy.sharding_group %1 group_id=0 : tensor<8x2xi64>
      return %1 : tensor<8x2xi64>
    }
    """
    names = ModuleNames(arguments=["x"], results=["zeros"], donated=[False])
    graph = module_to_graph(module, names)
    assert lines(graph) == [
        "%0: i64[8, 2] = argument x",
        "%1: i64[8, 2] = free constant",
        "%2: i64[8, 2] = copy %1",
        "return zeros %2",
        "alike: %0 %2",
    ]


def test_a_constraint_that_nothing_reads_stands_behind_its_value() -> None:
    module = """
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(%arg0: tensor<8x16xf32>) -> (tensor<8x16xf32>) {
      %0 = stablehlo.sine %arg0 : tensor<8x16xf32>
      %1 = stablehlo.tanh %0 : tensor<8x16xf32>
      %2 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {?}]> : tensor<8x16xf32>
      %3 = sdy.sharding_constraint %arg0 <@mesh, [{?}, {"y"}]> : tensor<8x16xf32>
      return %1 : tensor<8x16xf32>
    }
    """
    names = ModuleNames(arguments=["x"], results=["y"], donated=[False])
    graph = module_to_graph(module, names)
    assert lines(graph) == [
        "%0: f32[8, 16] = argument x",
        '%1: f32[8, 16] = sharding_constraint %0 <mesh<["x"=2, "y"=4]>, [{?}, {"y"}]>',
        "%2: f32[8, 16] = sine %1",
        '%3: f32[8, 16] = sharding_constraint %2 <mesh<["x"=2, "y"=4]>, [{"x"}, {?}]>',
        "%4: f32[8, 16] = tanh %3",
        "return y %4",
    ]


def test_a_constraint_that_nothing_reads_acts_in_a_branch_on_a_value_from_outside() -> None:
    module = """
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(%arg0: tensor<i32>, %arg1: tensor<8x16xf32>) -> (tensor<8x16xf32>) {
      %0 = "stablehlo.case"(%arg0) ({
        %1 = stablehlo.sine %arg1 : tensor<8x16xf32>
        %2 = sdy.sharding_constraint %arg1 <@mesh, [{"x"}, {?}]> : tensor<8x16xf32>
        stablehlo.return %1 : tensor<8x16xf32>
      }, {
        stablehlo.return %arg1 : tensor<8x16xf32>
      }) : (tensor<i32>) -> tensor<8x16xf32>
      return %0 : tensor<8x16xf32>
    }
    """
    names = ModuleNames(arguments=["i", "x"], results=["y"], donated=[False, False])
    graph = module_to_graph(module, names)
    (at,) = constraints(graph)
    assert graph.regions[graph.ops[at].region].kind == "branch"
    assert [op.name for op in graph.ops if graph.ops[at].results[0] in op.operands] == ["sine"]


def test_a_program_without_dangling_constraints_stays_the_same_object() -> None:
    def fn(x: Any) -> Any:
        x = lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0]
        return lax.cond(x[0, 0] > 0, jnp.cos, jnp.tanh, x)

    jaxpr = jax.make_jaxpr(fn)(X).jaxpr
    assert honour_dangling(jaxpr) is jaxpr


def facts(fn: Any, *args: Any) -> Program:
    traced = trace(fn, args, {}, mesh=MESH)
    return read_program(traced.jaxpr, traced.in_names, traced.out_names)


def test_facts_and_tags_name_the_same_values_and_reads() -> None:
    def fn(x: Any, w: Any) -> Any:
        def body(c: Any, _: None) -> tuple[Any, None]:
            return jnp.tanh(c @ w), None

        y = lax.scan(jax.checkpoint(body), x, None, length=2)[0]
        return lax.cond(y[0, 0] > 0, jnp.sin, jax.jit(jnp.cos), y).sum()

    gradient = jax.value_and_grad(fn, argnums=1)
    traced = trace(gradient, (X, W), {}, mesh=MESH)
    program = read_program(traced.jaxpr, traced.in_names, traced.out_names)
    assert {path: e.operands for path, e in program.equations.items()} == {
        path: operands
        for path, operands in traced.operand_paths.items()
        if not path.endswith("/out")
    }
    sources = {path: format_source(e.place) for path, e in program.equations.items()}
    assert sources == traced.source_by_equation
    returned = {
        f"{path}.{key}/out": paths
        for path, equation in program.equations.items()
        for key, paths in equation.bodies.items()
    }
    assert returned == {
        path: paths for path, paths in traced.operand_paths.items() if path.endswith("/out")
    }


def test_cotangents_are_backward_and_what_remat_computes_again_is_not() -> None:
    def fn(x: Any) -> Any:
        return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()

    program = facts(jax.grad(fn), X)
    backward = {e.primitive: e.is_backward for p, e in program.equations.items() if "/" in p}
    assert backward == {"sin": False, "cos": False, "mul": True}


def test_an_argument_whose_only_reader_is_a_constraint_ends_like_it() -> None:
    module = """
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(%arg0: tensor<8x16xf32>) -> (tensor<8x16xf32>) {
      %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {"x"}]> : tensor<8x16xf32>
      %1 = stablehlo.sine %0 : tensor<8x16xf32>
      return %1 : tensor<8x16xf32>
    }
    """
    names = ModuleNames(arguments=["x"], results=["y"], donated=[False])
    graph = module_to_graph(module, names)
    solution = plan(graph, "x=2,y=4", Wishes(arguments=[None], results=[None]), None)
    assert solution.decoded.layouts[0] == ((1,), (0,))
