"""The shardings people write by hand, to hold a plan against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import zip_longest

import jax
from jax.sharding import PartitionSpec

from experiments.workloads.workload import PyTree, Workload

BASELINES = ("replicated", "data_parallel", "fsdp", "megatron", "megatron_fsdp")
_TENSOR_PARALLEL = ("megatron", "megatron_fsdp")
_FULLY_SHARDED = ("fsdp", "megatron_fsdp")
_WHOLE = PartitionSpec()


def baseline_specs(
    workload: Workload, kind: str, mesh_sizes: Mapping[str, int]
) -> tuple[PyTree, PyTree]:
    """Say how each baseline cuts a workload's arguments.

    * `replicated`: everything whole on every device.
    * `data_parallel`: the batch over all axes, parameters whole.
    * `fsdp`: the batch over all axes; each parameter over all axes, on its largest dimension that
      they divide (the first of equals).
    * `megatron`: parameters by the workload's own rule over the last axis, the batch over the
      others; on a mesh of one axis the batch is whole.
    * `megatron_fsdp`: as `megatron`, and each parameter over the other axes too, on the largest
      dimension it has left that they divide.

    What an optimizer keeps in the shape of a parameter is cut as that parameter, a cache as the
    batch and as the rule says. A
    dimension of a parameter that its axes do not divide stays whole; a batch that they do not
    divide takes as many of the leading axes as do.

    Args:
        workload: The workload.
        kind: One of `BASELINES`.
        mesh_sizes: Devices along each mesh axis, in the mesh's order.

    Returns:
        Pytrees like the workload's `state` and `batch`, with a `PartitionSpec` at every leaf.

    Raises:
        ValueError: No such baseline, or the workload has no tensor-parallel rule.
    """
    axes = tuple(mesh_sizes)
    batch_axes = baseline_batch_axes(kind, axes)
    if kind in _TENSOR_PARALLEL:
        param_specs = _megatron_specs(workload, "params", axes[-1], mesh_sizes)
    else:
        param_specs = _whole(workload.state["params"])
    if kind in _FULLY_SHARDED:
        cut = partial(_fsdp_spec, mesh_sizes={axis: mesh_sizes[axis] for axis in batch_axes})
        param_specs = jax.tree.map(cut, workload.state["params"], param_specs)
    batch_specs = jax.tree.map(
        lambda leaf: _batch_spec(leaf, workload.batch_dim, batch_axes, mesh_sizes), workload.batch
    )
    state_specs = _state_specs(workload, param_specs)
    for entry, dim in workload.by_example.items():
        state_specs[entry] = jax.tree.map(
            lambda leaf, dim=dim: _batch_spec(leaf, dim, batch_axes, mesh_sizes),
            workload.state[entry],
        )
        if kind in _TENSOR_PARALLEL:
            by_rule = _megatron_specs(workload, entry, axes[-1], mesh_sizes)
            state_specs[entry] = jax.tree.map(_joined, state_specs[entry], by_rule)
    return state_specs, batch_specs


def baseline_batch_axes(kind: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh axes by which a baseline cuts the batch.

    Args:
        kind: One of `BASELINES`.
        axes: Of the mesh, in its order.

    Raises:
        ValueError: No such baseline.
    """
    if kind not in BASELINES:
        raise ValueError(f"no baseline {kind!r}; choose from {', '.join(BASELINES)}")
    if kind == "replicated":
        return ()
    return axes[:-1] if kind in _TENSOR_PARALLEL else axes


def _whole(params: PyTree) -> PyTree:
    return jax.tree.map(lambda _: PartitionSpec(), params)


def _fsdp_spec(
    leaf: jax.ShapeDtypeStruct, spec: PartitionSpec = _WHOLE, *, mesh_sizes: Mapping[str, int]
) -> PartitionSpec:
    """A spec with one more dimension cut, the largest that all axes divide."""
    num_devices = math.prod(mesh_sizes.values())
    is_cut = dict(enumerate(spec))
    divisible = [
        dim
        for dim, size in enumerate(leaf.shape)
        if size % num_devices == 0 and is_cut.get(dim) is None
    ]
    if not divisible or not mesh_sizes:
        return spec
    largest = max(divisible, key=lambda dim: leaf.shape[dim])
    return _joined(spec, _cut_one_dim(largest, tuple(mesh_sizes)))


def _megatron_specs(
    workload: Workload, entry: str, model_axis: str, mesh_sizes: Mapping[str, int]
) -> PyTree:
    """Specs by the workload's rule, for one entry of its state."""
    rule = workload.megatron
    if rule is None:
        raise ValueError(f"workload {workload.name!r} has no tensor-parallel rule; give it one")

    def spec(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
        dims = rule(entry + jax.tree_util.keystr(path), leaf.shape) or ()
        cut = [
            dim
            for dim, name in enumerate(dims)
            if name == "model" and leaf.shape[dim] % mesh_sizes[model_axis] == 0
        ]
        # A mesh axis cuts a tensor once: the first dimension it fits.
        return _cut_one_dim(cut[0], (model_axis,)) if cut else PartitionSpec()

    return jax.tree_util.tree_map_with_path(spec, workload.state[entry])


def _batch_spec(
    leaf: jax.ShapeDtypeStruct, batch_dim: int, axes: tuple[str, ...], mesh_sizes: Mapping[str, int]
) -> PartitionSpec:
    while axes and leaf.shape[batch_dim] % math.prod(mesh_sizes[axis] for axis in axes):
        axes = axes[:-1]
    return _cut_one_dim(batch_dim, axes) if axes else PartitionSpec()


def _cut_one_dim(dim: int, axes: tuple[str, ...]) -> PartitionSpec:
    return PartitionSpec(*[None] * dim, axes[0] if len(axes) == 1 else axes)


def _joined(first: PartitionSpec, second: PartitionSpec) -> PartitionSpec:
    """Both cuts at once; where they meet, the first."""
    return PartitionSpec(*(a if a is not None else b for a, b in zip_longest(first, second)))


def _state_specs(workload: Workload, param_specs: PyTree) -> PyTree:
    """Give every copy of the parameters in the state, such as a moment, the parameters' specs."""
    params, trained = workload.state["params"], workload.trained
    cut_as = [(params, param_specs)]
    if trained is not None:
        cut_as.append((params[trained], param_specs[trained]))

    def params_of(tree: PyTree) -> tuple[PyTree, PyTree] | None:
        structure = jax.tree.structure(tree)
        return next((pair for pair in cut_as if jax.tree.structure(pair[0]) == structure), None)

    def spec(tree: PyTree) -> PyTree:
        of_params = params_of(tree)
        if of_params is None:
            return PartitionSpec()
        return jax.tree.map(_moment_spec, tree, *of_params)

    return jax.tree.map(spec, workload.state, is_leaf=lambda tree: params_of(tree) is not None)


def _moment_spec(
    leaf: jax.ShapeDtypeStruct, param: jax.ShapeDtypeStruct, spec: PartitionSpec
) -> PartitionSpec:
    """The parameter's spec where the sizes are its own; factors of a moment stay whole."""
    if len(leaf.shape) != len(param.shape):
        return PartitionSpec()
    cut = [
        axes if size == of_param else None
        for axes, size, of_param in zip(spec, leaf.shape, param.shape, strict=False)
    ]
    return PartitionSpec(*cut) if any(cut) else PartitionSpec()
