"""Putting the constraints of a plan into a program, by path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, NamedSharding

from autoshard.apply.named_shardings import JaxMesh, sharding_to_spec
from autoshard.apply.on_examples import equation_on_examples
from autoshard.apply.own_calls import with_own_calls
from autoshard.apply.scheduled.in_program import Scheduled, scheduled_equation, turned_before_use
from autoshard.errors import PlanError, ShardingError
from autoshard.frontend.inline_calls import inlinable_body, with_call_source
from autoshard.frontend.jaxpr_paths import ConstraintEquations, is_constrainable, rewrite_bodies
from autoshard.frontend.source_lines import SourceLines
from autoshard.loops.dot_schedule import DotSchedule
from autoshard.loops.on_examples import OnExamples
from autoshard.sharding import Mesh, MeshAxis, Sharding, format_sharding, translate_sharding
from autoshard.use_paths import split_uses

_MAX_SHOWN = 5
_IDENTITIES = frozenset({"copy", "name", "stop_gradient"})
_BODIES_OF_OPERANDS = frozenset({"cond", "custom_jvp_call", "custom_vjp_call", "remat2"})
"""Primitives whose bodies take their last operands, one by one."""


def constrain_jaxpr(
    closed: ClosedJaxpr,
    constraints: Mapping[str, Sharding],
    mesh: jax.sharding.Mesh | AbstractMesh | JaxMesh,
    schedules: Mapping[str, DotSchedule | OnExamples] | None = None,
) -> ClosedJaxpr:
    """A copy of a program with a `sharding_constraint` equation for each constraint.

    * `7.0`, `in.3`, `const.0`, `7.jaxpr/in.2`: right after the value; every use sees it.
    * `7.jaxpr/38<1`: before that operand of that equation; no other use sees it.
    * `7.jaxpr/38<1&52<0`: once, before the first of these reads of a value; all of them see it.
    * `7.jaxpr/38<1~0`, `7.jaxpr/38<1~1`: the same, before it and in this order: stops on the way.
    * `out<2`, `7.jaxpr/out<0`: before that result.

    A constraint on a value and another on one of its uses both take effect, in that order. Uses
    behind the same stops share them: compilers make one of equal moves in one step, but move in
    several steps as often as it is written. So a call with constraints in it is replaced by its
    equations, and uses under another name share too. Nothing is traced again, and bodies without
    constraints are shared with the given program.

    Args:
        closed: As `frontend.trace.trace_call` gives it.
        constraints: By path. Open dimensions are left to the partitioner.
        mesh: Concrete to run, abstract to look at the lowered program only.
        schedules: By path of an equation, what to put in its place.

    Raises:
        PlanError: A path that the program does not have, a value that cannot be cut, another
            number of dimensions, or a schedule for another product.
        ShardingError: A sharding that JAX cannot say there.
    """
    if constraints or schedules:
        jax_mesh = mesh if isinstance(mesh, JaxMesh) else JaxMesh(mesh)
        inserter = _Inserter(constraints, jax_mesh, schedules or {})
        jaxpr = inserter.insert(closed.jaxpr, "", None)
        inserter.check_all_placed()
        closed = ClosedJaxpr(jaxpr, closed.consts)
    return with_own_calls(closed)


@dataclass(slots=True)
class _Body:
    """A body as far as it is made.

    Args:
        eqns: Its equations.
        moved: By id of what is moved, and where to: the result.
        same_as: By variable, the one that it is another name of.
        scheduled: The last product in steps.
    """

    eqns: list[JaxprEqn] = field(default_factory=list)
    moved: dict[tuple[int, Sharding], Var] = field(default_factory=dict)
    same_as: dict[Var, Any] = field(default_factory=dict)
    scheduled: Scheduled | None = None

    def add(self, eqn: JaxprEqn) -> None:
        self.eqns.append(eqn)
        if eqn.primitive.name in _IDENTITIES:
            self.same_as[eqn.outvars[0]] = self.original(eqn.invars[0])

    def original(self, atom: Any) -> Any:
        """The value that an atom is a name of."""
        return atom if isinstance(atom, Literal) else self.same_as.get(atom, atom)


def _repeated_operands(parent: JaxprEqn | None, jaxpr: Jaxpr) -> dict[Var, Any]:
    """By argument of a body that has the operand of an earlier one, that one.

    What a loop carries may differ from its second run on.
    """
    if parent is None or parent.primitive.name not in _BODIES_OF_OPERANDS:
        return {}
    first: dict[Any, Var] = {}
    operands = parent.invars[len(parent.invars) - len(jaxpr.invars) :]
    return {
        var: first.setdefault(atom, var)
        for atom, var in zip(operands, jaxpr.invars, strict=True)
        if not isinstance(atom, Literal)
    }


@dataclass(eq=False)
class _Inserter:
    constraints: Mapping[str, Sharding]
    mesh: JaxMesh
    schedules: Mapping[str, DotSchedule | OnExamples]
    equations: ConstraintEquations = field(default_factory=ConstraintEquations)
    placed: set[str] = field(default_factory=set)
    lines: SourceLines = field(default_factory=SourceLines)

    def __post_init__(self) -> None:
        # The bodies on the way to some constraint; all others stay untouched.
        self.bodies = {
            path[: position + 1]
            for path in (*self.constraints, *self.schedules)
            for position, letter in enumerate(path)
            if letter == "/"
        }
        self.holders = {body.rpartition(".")[0] for body in self.bodies}
        self.shared = {
            use: path for path in self.constraints for use in split_uses(path) if use != path
        }
        self.of_uses = {
            **{path: path for path in self.constraints if "<" in path and "&" not in path},
            **self.shared,
        }
        self.used_equations = {use.partition("<")[0] for use in self.of_uses}

    def insert(self, jaxpr: Jaxpr, prefix: str, parent: JaxprEqn | None) -> Jaxpr:
        body = _Body(same_as=_repeated_operands(parent, jaxpr))
        results = self.walk(jaxpr, prefix, parent, body, {}, call=None)
        return Jaxpr(
            jaxpr.constvars,
            jaxpr.invars,
            results,
            body.eqns,
            jaxpr.effects,
            jaxpr.debug_info,
            jaxpr.is_high,
        )

    def walk(
        self,
        jaxpr: Jaxpr,
        prefix: str,
        parent: JaxprEqn | None,
        body: _Body,
        current: dict[Var, Any],
        *,
        call: JaxprEqn | None,
    ) -> list[Any]:
        """Add the equations of a jaxpr to a body; its results there.

        Args:
            jaxpr: Of the body, or of a call in it.
            prefix: Of its paths.
            parent: The equation that holds it.
            body: As far as it is made.
            current: By variable of `jaxpr`, what stands for it in the body if something else does.
            call: `parent` where it is replaced by its equations.
        """
        first = jaxpr.eqns[0] if jaxpr.eqns else parent
        turned = turned_before_use(jaxpr) if self.schedules else {}

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else current.get(atom, atom)

        def constrain(var: Any, path: str, like: JaxprEqn | None) -> None:
            equation = self.equation(read(var), path, like)
            body.eqns.append(equation)
            current[var] = equation.outvars[0]

        def constrain_uses(path: str, atoms: list[Any], like: JaxprEqn | None) -> list[Any]:
            found = [read(atom) for atom in atoms]
            if path in self.used_equations:
                for position in range(len(found)):
                    use = f"{path}<{position}"
                    found[position] = self.brought(found[position], use, like, body)
            return found

        for kind, variables in (("const", jaxpr.constvars), ("in", jaxpr.invars)):
            for position, var in enumerate(variables):
                if (path := f"{prefix}{kind}.{position}") in self.constraints:
                    constrain(var, path, first)

        for index, written in enumerate(jaxpr.eqns):
            path = f"{prefix}{index}"
            operands = constrain_uses(path, written.invars, written)
            eqn = written.replace(invars=operands)
            if call is not None:  # its body may stand in the place of another call too
                own = [Var(var.aval) for var in written.outvars]
                eqn = with_call_source(eqn, call, self.lines).replace(outvars=own)
            order = turned.get(written.outvars[0]) if path in self.schedules else None
            results = self.add(eqn, path, order, body)
            current.update(zip(written.outvars, results, strict=True))
            for position, var in enumerate(written.outvars):
                if (value := f"{path}.{position}") in self.constraints:
                    constrain(var, value, written)

        return constrain_uses(
            f"{prefix}out", jaxpr.outvars, jaxpr.eqns[-1] if jaxpr.eqns else parent
        )

    def add(self, eqn: JaxprEqn, path: str, order: Sequence[int] | None, body: _Body) -> list[Any]:
        """Add an equation, or what stands in its place; its results."""
        if path in self.schedules:
            body.eqns.append(self.in_steps(eqn, path, order, body))
        elif (called := self.called(eqn, path)) is not None:
            inner = dict(zip(called.invars, eqn.invars, strict=True))
            return self.walk(called, f"{path}.jaxpr/", eqn, body, inner, call=eqn)
        else:
            body.add(eqn.replace(params=self.params(eqn, path)))
        return [*eqn.outvars]

    def in_steps(
        self, eqn: JaxprEqn, path: str, order: Sequence[int] | None, body: _Body
    ) -> JaxprEqn:
        """The equation that a schedule puts in the place of another."""
        self.placed.add(path)
        schedule, operands = self.schedules[path], list(eqn.invars)
        if isinstance(schedule, OnExamples):
            return equation_on_examples(eqn, operands, schedule, self.mesh, path)
        earlier, body.scheduled = body.scheduled, Scheduled(eqn.outvars[0], schedule.homes[0])
        return scheduled_equation(eqn, operands, schedule, self.mesh, path, order, earlier)

    def brought(self, atom: Any, use: str, like: JaxprEqn | None, body: _Body) -> Any:
        """What one use reads, behind its constraints.

        A way with stops is gone once for all, and so is one that reads share.
        """
        stops = tuple(self.constraints_of_use(use))
        shared = body.moved if len(stops) > 1 or use in self.shared else {}
        for stop in stops:
            path = self.of_uses[stop]
            key = (id(body.original(atom)), self.constraints[path])
            if key not in shared:
                body.eqns.append(self.equation(atom, path, like))
                shared[key] = body.eqns[-1].outvars[0]
            self.placed.add(stop)
            atom = shared[key]
        return atom

    def constraints_of_use(self, use: str) -> Iterator[str]:
        """Paths of the constraints on a use: `38<1~0`, `38<1~1`, ..., then `38<1`."""
        for step in itertools.count():
            if (path := f"{use}~{step}") not in self.of_uses:
                break
            yield path
        if use in self.of_uses:
            yield use

    def called(self, eqn: JaxprEqn, path: str) -> Jaxpr | None:
        """The body of a call with constraints in it, if it says nothing else to the compiler."""
        is_call = bool(self.constraints) and eqn.primitive.name == "jit" and path in self.holders
        return inlinable_body(eqn) if is_call else None

    def params(self, eqn: JaxprEqn, path: str) -> dict[str, Any] | None:
        def rewrite(key: str, body: Jaxpr) -> Jaxpr:
            prefix = f"{path}.{key}/"
            return self.insert(body, prefix, eqn) if prefix in self.bodies else body

        if path not in self.holders:
            return None
        return rewrite_bodies(eqn, rewrite)

    def equation(self, atom: Any, path: str, like: JaxprEqn | None) -> JaxprEqn:
        sharding = self.constraints[path]
        if not is_constrainable(atom.aval):
            raise PlanError(
                f"the plan constrains a value of type {atom.aval.str_short()}, which cannot be cut",
                where=path,
                fix="plan again for this program",
            )
        if sharding.rank != atom.aval.ndim:
            raise PlanError(
                f"the plan's sharding has {sharding.rank} dimensions, the value there is"
                f" {atom.aval.str_short()}",
                where=path,
                fix="plan again for this program",
            )
        self.placed.add(path)
        return self.equations.make(
            atom, self.named(sharding, atom.aval, path), scope=f"autoshard[{path}]", like=like
        )

    def named(self, sharding: Sharding, aval: Any, path: str) -> NamedSharding:
        manual = aval.sharding.mesh
        if not manual.manual_axes:
            return self.mesh.named_sharding(sharding, where=path)
        axes = tuple(MeshAxis(str(name), size) for name, size in manual.shape.items())
        if axes != self.mesh.base.axes:  # the body is on another mesh over the same devices
            sharding = _on_body(sharding, Mesh(self.mesh.base.axes), Mesh(axes), path)
        taken = sorted({ref.name for ref in sharding.axis_refs()} & set(manual.manual_axes))
        if taken:
            raise ShardingError(
                f"axis {', '.join(taken)} is manual inside this shard_map body",
                where=path,
                fix="use axes the shard_map does not map over",
            )
        return NamedSharding(manual, sharding_to_spec(sharding))

    def check_all_placed(self) -> None:
        asked = (*self.constraints, *self.schedules)
        missing = [path for path in asked if not self.placed.issuperset(split_uses(path))]
        if missing:
            shown = ", ".join(missing[:_MAX_SHOWN])
            more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
            raise PlanError(
                f"the program has no value or use called {shown}{more}",
                where=f"{len(missing)} of {len(asked)} constraints",
                fix="plan again for this program, or pass the function the plan was made for",
            )


def _on_body(sharding: Sharding, plan: Mesh, body: Mesh, path: str) -> Sharding:
    found = translate_sharding(sharding, plan, body)
    if found is None:
        raise ShardingError(
            f"{format_sharding(sharding)} on {plan} cannot be said on {body}, the mesh of this"
            " shard_map body",
            where=path,
            fix="plan for the mesh of the shard_map",
        )
    return found
