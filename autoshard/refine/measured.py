"""The step of a plan run on the devices at hand: warmed up, repeated, told with its spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from autoshard.aot.compile_process import Underway, finished
from autoshard.apply.planned_function import PlannedFunction
from autoshard.errors import AutoshardError
from autoshard.plans.plan import PlanData
from autoshard.refine.compiled_plan import MEASURED, Compile, CompiledPlan
from autoshard.verification.verification import COMPILED, OUT_OF_MEMORY, REFUSED

_LEAST_RUNS, _MOST_RUNS = 5, 25
_SECONDS = 10.0
"""After which no further run begins, once there were as many as there must be. A choice."""


@dataclass(slots=True, eq=False)
class Measurement:
    """Runs plans of one program, each new one in turns with the fastest before it.

    Args:
        jitted: The function under a plan.
        arguments: What to run on, in the tree of its positional arguments; made by shape if None.
        avals: Types of the flat arguments.
        in_tree: Of the positional and keyword arguments.
        static_argnums: Places of positional arguments that are no arrays.
        read: Compiles a plan with names to learn from; None learns nothing.
    """

    jitted: Callable[[PlanData], PlannedFunction]
    arguments: tuple[Any, ...] | None
    avals: Sequence[Any]
    in_tree: Any
    static_argnums: tuple[int, ...] = ()
    read: Compile | None = None
    fastest: tuple[Callable[[], float], float] | None = None
    _host: tuple[Any, ...] | None = field(default=None, init=False)

    def __call__(self, data: PlanData, seconds: float) -> Underway[CompiledPlan]:
        """Run a plan; one that does not fit on the devices, or fails, is told as that.

        It begins when it is waited for: nothing is to disturb it.
        """
        yield
        began = time.monotonic()
        constraints = data.constraints or {}
        try:
            run, peak = self._prepared(data)
            own, other = self._timed(run, began + min(seconds, _SECONDS))
        except Exception as error:  # whatever a backend raises is this plan's alone
            message = str(error)
            is_memory = "RESOURCE_EXHAUSTED" in message or isinstance(error, MemoryError)
            return CompiledPlan(
                status=OUT_OF_MEMORY if is_memory else REFUSED,
                constraints=constraints,
                reason=f"{type(error).__name__}: {message.partition(chr(10))[0][:200]}",
            )
        median = statistics.median(own)
        if other is not None and self.fastest is not None:
            # What disturbed both in these turns is taken out of the comparison with the others.
            median *= self.fastest[1] / statistics.median(other)
        spread = statistics.median(abs(one - statistics.median(own)) for one in own)
        if self.fastest is None or median < self.fastest[1]:
            self.fastest = (run, median)
        named = self._read(data, began + seconds)
        return CompiledPlan(
            status=COMPILED,
            constraints=constraints,
            seconds=median,
            spread_seconds=spread,
            peak_bytes=peak,
            measure=MEASURED,
            compiler=f"{jax.default_backend()}, jaxlib {jaxlib.__version__}",
            module=None if named is None else named.module,
            prices=None if named is None else named.prices,
        )

    def _read(self, data: PlanData, until: float) -> CompiledPlan | None:
        """The compiled program, for its collectives and bytes; a run tells no seconds of ops."""
        left = until - time.monotonic()
        if self.read is None or left <= 0:
            return None
        try:
            return finished(self.read(data, left))
        except AutoshardError:  # the run is what counts
            return None

    def _timed(
        self, run: Callable[[], float], until: float
    ) -> tuple[list[float], list[float] | None]:
        """Seconds of the plan's runs and of the fastest one's, in turns and in changing order."""
        run()  # warm-up
        others = None if self.fastest is None else [self.fastest[0]]
        runs = [run, *(others or ())]
        taken: list[list[float]] = [[] for _ in runs]
        while len(taken[0]) < _LEAST_RUNS or (
            len(taken[0]) < _MOST_RUNS and time.monotonic() < until
        ):
            places = range(len(runs))
            order = places if len(taken[0]) % 2 == 0 else reversed(places)
            for place in order:
                taken[place].append(runs[place]())
        return taken[0], taken[1] if others else None

    def _prepared(self, data: PlanData) -> tuple[Callable[[], float], int]:
        """What runs a plan once and returns the seconds of the step, and its compiled peak."""
        jitted = self.jitted(data)
        args, kwargs = self._on_host()
        compiled = jitted.lower(*args, **kwargs).compile()
        memory = compiled.memory_analysis()
        peak = sum(
            sign * int(getattr(memory, f"{name}_size_in_bytes"))
            for name, sign in (("argument", 1), ("output", 1), ("temp", 1), ("alias", -1))
        )

        static = {
            index % len(args) for index in self.static_argnums if -len(args) <= index < len(args)
        }
        arrays = [one for index, one in enumerate(args) if index not in static]
        placed = _placed((tuple(arrays), kwargs), compiled.input_shardings)

        def run() -> float:
            copies = jax.tree.map(_copied, placed)  # donated ones are gone
            own, named = jax.block_until_ready(copies)
            rest = iter(own)
            given = [one if index in static else next(rest) for index, one in enumerate(args)]
            began = time.perf_counter()
            jax.block_until_ready(jitted(*given, **named))
            return time.perf_counter() - began

        return run, peak

    def _on_host(self) -> tuple[Any, Any]:
        """Arguments as passed, or ones of their shapes."""
        if self.arguments is not None:
            return self.arguments, {}
        if self._host is None:
            leaves = [_made(aval) for aval in self.avals]
            self._host = tuple(jax.tree.unflatten(self.in_tree, leaves))
        args, kwargs = self._host
        return args, kwargs


def _placed(given: Any, shardings: Any) -> Any:
    """Arrays where a compiled program takes them, so that no run moves them.

    Those that it does not use have no sharding, and stay where they are.
    """
    leaves, tree = jax.tree.flatten(given, is_leaf=_is_none)
    wanted = jax.tree.leaves(shardings, is_leaf=_is_none)
    if len(wanted) != len(leaves):  # some leaves are no arrays
        return given
    placed = [
        leaf if sharding is None else jax.device_put(leaf, sharding)
        for leaf, sharding in zip(leaves, wanted, strict=True)
    ]
    return jax.tree.unflatten(tree, placed)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _copied(leaf: Any) -> Any:
    return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf


def _made(aval: Any) -> Any:
    """An array of a type: zeros on the host, which has room for them; a key where it is one."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), aval.shape) if aval.shape else jax.random.key(0)
    return np.zeros(aval.shape, aval.dtype)
