"""Modules of equations that read parameters of Flax NNX objects, which tell JAX no names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax._src.source_info_util import Scope  # checked on jax 0.10.2
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.constraints.selector import AttributeStep, name_steps
from autoshard.frontend.jaxpr_paths import rewrite_bodies

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

    Equations in a scope of their own stay there.

    Args:
        closed: The program.
        modules: By flat argument.
    """
    if not any(modules.values()):
        return closed
    known = {closed.jaxpr.invars[argument]: module for argument, module in modules.items()}
    return ClosedJaxpr(_named(closed.jaxpr, known), closed.consts)


def _named(jaxpr: Jaxpr, known: Mapping[Var, str]) -> Jaxpr:
    """The same with scopes.

    Args:
        jaxpr: A body.
        known: By argument that is a parameter, its module.
    """
    module_of = dict(known)
    eqns = []
    for eqn in jaxpr.eqns:
        read = ["" if isinstance(atom, Literal) else module_of.get(atom, "") for atom in eqn.invars]
        module = next(filter(None, read), "")
        if eqn.primitive.name in _CALLS:
            eqns.append(_with_named_body(eqn, read))
            continue
        if module and eqn.primitive.name in _SAME_PARAMETER:
            module_of[eqn.outvars[0]] = module
        source = eqn.source_info
        if module and not any(isinstance(entry, Scope) for entry in source.name_stack.stack):
            source = source.replace(name_stack=source.name_stack.extend(module))
        eqns.append(eqn.replace(source_info=source))
    return jaxpr.replace(eqns=eqns)


def _with_named_body(eqn: JaxprEqn, modules: Sequence[str]) -> JaxprEqn:
    """A call whose body takes parameters of modules, "" for other operands."""
    if not any(modules):
        return eqn

    def named(_: str, body: Jaxpr) -> Jaxpr:
        return _named(body, dict(zip(body.invars, modules, strict=True)))

    return eqn.replace(params=rewrite_bodies(eqn, named) or eqn.params)
