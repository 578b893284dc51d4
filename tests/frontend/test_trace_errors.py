"""A function that does not trace says why, on which line, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from autoshard.errors import ExportError, InputError
from autoshard.frontend.trace import trace
from autoshard.sharding import parse_mesh_sizes

MESH = parse_mesh_sizes("x=2,y=4")
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
LEAKED: list[Any] = []


def branches(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


def calls_numpy(x: Any) -> Any:
    return np.asarray(x) * 2


def mismatched(x: Any) -> Any:
    return x @ x


def own_error(_: Any) -> Any:
    raise RuntimeError("the batch is of no use")


def explicit_constraint(x: Any) -> Any:
    mesh = AbstractMesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Explicit,) * 2)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("x")))


def explicit_shard_map(x: Any) -> Any:
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    spec = PartitionSpec("x")
    return jax.shard_map(jnp.tanh, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def line(fn: Callable[..., Any], offset: int) -> str:
    return f"{__file__}:{inspect.getsourcelines(fn)[1] + offset} ({fn.__name__})"


AUTO_FIX = (
    "planning is for Auto axes: make the mesh the function uses with jax.make_mesh(shape, names,"
    " axis_types=(jax.sharding.AxisType.Auto,) * len(names)), or drop its mesh argument"
)


@pytest.mark.parametrize(
    ("fn", "offset", "what", "fix"),
    [
        (
            branches,
            1,
            "`branches` does not trace: TracerBoolConversionError: Attempted boolean conversion of"
            " traced array with shape bool[]; it depends on the value of `x`",
            "branch with jax.lax.cond or jnp.where, or name the argument in static_argnums if it is"
            " a setting",
        ),
        (
            calls_numpy,
            1,
            "`calls_numpy` does not trace: TracerArrayConversionError: The numpy.ndarray conversion"
            " method __array__() was called on traced array with shape float32[8,16];"
            " it depends on the value of `x`",
            "compute with jax.numpy, or name the argument in static_argnums if it is a setting",
        ),
        (
            own_error,
            1,
            "`own_error` does not trace: RuntimeError: the batch is of no use",
            "make jax.eval_shape(fn, *args) work first: it fails in the same place",
        ),
        (
            mismatched,
            1,
            "`mismatched` does not trace: TypeError: dot_general requires contracting dimensions to"
            " have the same shape, got (16,) and (8,).",
            "make jax.eval_shape(fn, *args) work first: it fails in the same place",
        ),
        (
            explicit_constraint,
            2,
            "`explicit_constraint` does not trace: ValueError: The spec of NamedSharding passed to"
            " with_sharding_constraint can only refer to Auto axes of the mesh. Got spec=P('x',)"
            " and mesh=AbstractMesh('x': 2, 'y': 4, axis_types=(Explicit, Explicit)). You probably"
            " meant to use `reshard` API?",
            AUTO_FIX,
        ),
        (
            explicit_shard_map,
            3,
            "`explicit_shard_map` does not trace: ValueError: The context mesh AbstractMesh('x': 2,"
            " 'y': 4, axis_types=(Auto, Auto)) should match the mesh passed to shard_map Mesh('x':"
            " 2, 'y': 4, axis_types=(Explicit, Explicit))",
            AUTO_FIX,
        ),
    ],
)
def test_the_reason_the_line_and_the_way_out_are_told(
    fn: Callable[..., Any], offset: int, what: str, fix: str
) -> None:
    with pytest.raises(ExportError) as caught:
        trace(fn, (X,), mesh=MESH)
    assert str(caught.value) == f"{what}\n  where: {line(fn, offset)}\n  fix: {fix}"
    assert caught.value.__cause__ is not None


def test_a_shape_that_an_argument_tells_leads_to_static_argnums() -> None:
    with pytest.raises(ExportError) as caught:
        trace(lambda x, n: x.reshape(n, -1), (X, 4), mesh=MESH)
    fix = "compute with jax.numpy, or name the argument in static_argnums if it is a setting"
    assert caught.value.what.endswith("; it depends on the value of `n`")
    assert caught.value.fix == fix


def test_a_result_of_none_stays_out_of_the_way() -> None:
    program = trace(lambda x: (x * 2, None), (X,), mesh=MESH)
    assert program.out_names == ("result[0]",)


def test_an_op_that_no_platform_lowers_is_an_error() -> None:
    primitive = Primitive("never_lowered")
    primitive.def_abstract_eval(lambda x: x)

    def fn(x: Any) -> Any:
        return primitive.bind(x)

    with pytest.raises(ExportError) as caught:
        trace(fn, (X,), mesh=MESH)
    assert str(caught.value) == (
        "`fn` traces but does not lower for tpu: NotImplementedError: MLIR translation rule for"
        " primitive 'never_lowered' not found for platform tpu\n"
        f"  where: {line(fn, 1)}\n"
        "  fix: try jax.jit(fn).lower(*args) to see the error by itself"
    )


@pytest.mark.parametrize("option", ["static_argnums", "donate_argnums"])
def test_an_argument_number_out_of_range_is_refused(option: str) -> None:
    def fn(x: Any) -> Any:
        return x * 2

    options: dict[str, Any] = {option: (1,)}
    with pytest.raises(InputError) as caught:
        trace(fn, (X,), mesh=MESH, **options)
    assert str(caught.value) == (
        f"{option} names argument 1, but the call has 1 positional argument\n"
        f"  where: {option}=(1,) of `fn`\n"
        "  fix: count positional arguments from 0"
    )
