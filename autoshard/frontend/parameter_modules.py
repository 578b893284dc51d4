"""Modules of equations that read parameters of Flax NNX objects, which tell JAX no names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax._src.source_info_util import Scope  # checked on jax 0.10.2
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.constraints.selector import AttributeStep, name_steps
from autoshard.frontend.jaxpr_paths import bodies, rewrite_bodies

_SAME_PARAMETER = frozenset(
    {"broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "transpose"}
)
"""What these make of a parameter is still the parameter."""
_CALLS = frozenset({"jit", "pjit", "closed_call", "remat", "remat2", "checkpoint"})
"""Primitives whose body takes the operands as they are."""
_OF_OPTIMIZERS = "opt_state"
"""The attribute in which an `nnx.Optimizer` keeps what belongs to no module."""


def module_of_parameter(name: str) -> str:
    """The module that an array of an object belongs to: `layers/0/up` of `model.layers[0].up.w`."""
    _, steps = name_steps(name)
    words = [step.name if isinstance(step, AttributeStep) else str(step.key) for step in steps]
    return "" if _OF_OPTIMIZERS in words else "/".join(words[:-1])


def with_parameter_modules(closed: ClosedJaxpr, modules: Mapping[int, str]) -> ClosedJaxpr:
    """A program whose equations are in the scope of the module whose parameter they read.

    So are those that differentiation made of them: these were traced at the same place. Equations
    in a scope of their own stay there.

    Args:
        closed: The program.
        modules: By flat argument.
    """
    if not any(modules.values()):
        return closed
    known = {closed.jaxpr.invars[argument]: module for argument, module in modules.items()}
    naming = _Naming()
    naming.read(closed.jaxpr, known)
    return ClosedJaxpr(naming.named(closed.jaxpr), closed.consts)


class _Naming:
    def __init__(self) -> None:
        self.by_place: dict[Any, str] = {}  # by traceback

    def read(self, jaxpr: Jaxpr, known: Mapping[Var, str]) -> None:
        """Note the places at which parameters are read."""
        module_of = dict(known)
        for eqn in jaxpr.eqns:
            read = [module_of.get(a, "") for a in eqn.invars if not isinstance(a, Literal)]
            module = next(filter(None, read), "")
            if eqn.primitive.name in _CALLS:
                self._read_body(eqn, module_of)
            elif module:
                if eqn.source_info.traceback is not None:
                    self.by_place.setdefault(eqn.source_info.traceback, module)
                if eqn.primitive.name in _SAME_PARAMETER:
                    module_of[eqn.outvars[0]] = module

    def _read_body(self, eqn: JaxprEqn, module_of: Mapping[Var, str]) -> None:
        for _, body in bodies(eqn):
            pairs = zip(body.invars, eqn.invars, strict=True)
            outside = {var: atom for var, atom in pairs if not isinstance(atom, Literal)}
            self.read(body, {v: module_of[a] for v, a in outside.items() if a in module_of})

    def named(self, jaxpr: Jaxpr) -> Jaxpr:
        return jaxpr.replace(eqns=[self._named(eqn) for eqn in jaxpr.eqns])

    def _named(self, eqn: JaxprEqn) -> JaxprEqn:
        params = rewrite_bodies(eqn, lambda _, body: self.named(body)) or eqn.params
        source = eqn.source_info
        module = self.by_place.get(source.traceback, "")
        if module and not _has_scope(source.name_stack):
            source = source.replace(name_stack=source.name_stack.extend(module))
        return eqn.replace(params=params, source_info=source)


def _has_scope(stack: Any) -> bool:
    return any(isinstance(entry, Scope) for entry in stack.stack)
