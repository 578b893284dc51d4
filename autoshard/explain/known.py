"""What a plan knows of one tensor by itself, without the problem that it solves."""

from __future__ import annotations

from autoshard.constraints import PathSelector, Program, TensorType, parse_selector
from autoshard.constraints.named import is_path, named_tensor
from autoshard.errors import InputError
from autoshard.explain.explanation import Explanation
from autoshard.plans.plan import PlanData, PlannedTensor

_ALONE = (
    "this is what the plan knows by itself: it is planned again where alternatives are to be"
    " priced, by `autoshard why` without --no-replan, or by the plan that optimize returns"
)


def known_explanation(plan: PlanData, name: str) -> Explanation:
    """What a plan says of a tensor: its sharding, and what was asked of it.

    Args:
        plan: The plan.
        name: A path, or a selector of an argument or result.

    Raises:
        InputError: It names nothing, or several tensors, or a line of source.
    """
    said = name.strip()
    if not is_path(said) and not isinstance(parse_selector(said), PathSelector):
        raise InputError(
            "a plan by itself knows no source lines",
            where=f"the tensor `{said}`",
            fix="name an argument, a result or a path, or let the program be planned again",
        )
    path, _ = named_tensor(_borders(plan), said)
    tensor = _tensor(plan, path)
    if tensor is not None:
        shown, type_text, local = tensor.name, _type_text(tensor), tensor.local_bytes
        chosen = tensor.sharding
    elif path in plan.values:
        shown, type_text, local, chosen = f"value {path}", "", 0, plan.values[path]
    else:
        raise InputError(
            f"the plan has no sharding for a value at `{path}`",
            where=f"plan for {plan.function}",
            fix="name an argument (in.0), a result (out<0) or a value that the plan lists",
        )
    return Explanation(
        name=shown,
        path=path,
        type_text=type_text,
        chosen=chosen,
        local_bytes=local,
        seconds=plan.priced_seconds,
        peak_bytes=plan.memory.peak_bytes,
        memory_budget=plan.memory_budget,
        gap=plan.solver.gap,
        num_shardings=0,
        asked=tuple(term.text for term in plan.asked if path in term.paths),
        alike=(),
        reads=(),
        alternatives=(),
        estimates=(),
        refusals=(),
        notes=(_ALONE,),
    )


def _borders(plan: PlanData) -> Program:
    """The arguments and results of a plan, to select from."""
    return Program(
        arguments=tuple(tensor.name for tensor in plan.arguments),
        argument_types=tuple(TensorType(tensor.shape, tensor.dtype) for tensor in plan.arguments),
        results=tuple(tensor.name for tensor in plan.results),
        result_types=tuple(TensorType(tensor.shape, tensor.dtype) for tensor in plan.results),
        returned=(None,) * len(plan.results),
        equations={},
        types={},
        passed={},
    )


def _tensor(plan: PlanData, path: str) -> PlannedTensor | None:
    kind, _, number = path.replace("<", ".").partition(".")
    tensors = {"in": plan.arguments, "out": plan.results}.get(kind, ())
    if not number.isdecimal() or int(number) >= len(tensors):
        return None
    return tensors[int(number)]


def _type_text(tensor: PlannedTensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
