"""A plan beside what a real compiler made of it: collectives, memory, time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.verification.collective_comparison import CollectiveRow

COMPILED = "compiled"
PARTLY = "compiled with fewer constraints"
CRASHED = "crashed"
TIMED_OUT = "timed out"
OUT_OF_MEMORY = "out of memory"
REFUSED = "refused"

ADVICE = {
    COMPILED: "the plan compiles as it is",
    PARTLY: "the compiler fails on the constraints named; report it to its makers with the program"
    " (plan.stablehlo()), and run under plan.wrap without them if the difference is small",
    CRASHED: "the compiler fails even without the plan's constraints, or no set that compiles was"
    " found within the tries allowed; try another topology or a newer compiler",
    TIMED_OUT: "allow it more time, or compile fewer layers: scan over equal ones",
    OUT_OF_MEMORY: "plan again with a smaller memory budget, a larger mesh or rematerialisation",
    REFUSED: "change what the message names; the plan itself was not judged",
}
"""What to do next, by status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheck:
    """Bytes of one device, predicted and compiled.

    Args:
        predicted_bytes: The plan's peak.
        compiled_bytes: Arguments, results and temporaries together, what lies in the same memory
            once.
        predicted_argument_bytes: Arguments in the plan.
        argument_bytes: Arguments as compiled, padding included.
        output_bytes: Results.
        alias_bytes: Results in the memory of donated arguments.
        temp_bytes: Temporaries, gaps between them included.
        code_bytes: The program itself; not counted above.
        predicted_host_bytes: Of the plan in host memory.
        host_bytes: In host memory as compiled; not counted above.
    """

    predicted_bytes: int
    compiled_bytes: int
    predicted_argument_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    predicted_host_bytes: int = 0
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCheck:
    """Seconds of one step, as planned and as estimated from the compiled program.

    The compiler estimates cycles of its own fusions and products; what collectives take is priced
    by the cost model, from the collectives that were compiled.

    Args:
        predicted_compute_seconds: Of the plan.
        predicted_link_seconds: Of the plan's collectives.
        predicted_overlapped_seconds: Of the plan, with collectives beside the computing where the
            machine runs them so.
        compute_seconds: The compiler's cycles over the clock.
        at_memory_speed_seconds: Likewise, but of work element by element no more than device memory
            takes to read and write it.
        link_seconds: The compiled collectives on the links of the machine.
        overlapped_seconds: Both together where asynchronous collectives run beside the work that
            the compiler scheduled between their start and their end.
        cycles: The compiler's estimate.
        clock_hz: Of the device.
    """

    predicted_compute_seconds: float
    predicted_link_seconds: float
    predicted_overlapped_seconds: float
    compute_seconds: float
    at_memory_speed_seconds: float
    link_seconds: float
    overlapped_seconds: float
    cycles: float
    clock_hz: float

    @property
    def predicted_seconds(self) -> float:
        """Of the plan, nothing overlapped."""
        return self.predicted_compute_seconds + self.predicted_link_seconds

    @property
    def compiled_seconds(self) -> float:
        """Of the compiled program, nothing overlapped."""
        return self.compute_seconds + self.link_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCompile:
    """A compile that came to nothing.

    Args:
        status: `crashed`, `timed out`, `out of memory` or `refused`.
        what: The signal, the limit, or the compiler's message.
        last_lines: The end of what the compiler wrote on its error stream.
        num_constraints: Constraints that were in the program.
    """

    status: str
    what: str
    last_lines: tuple[str, ...]
    num_constraints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan beside the program that a compiler made of it.

    Args:
        function: Name of the function planned.
        mesh: Of the plan, as text.
        topology: What was compiled for, as asked: `v5e:4x4`.
        device_kind: As the compiler calls the device; "" where nothing compiled.
        versions: Of JAX and the compiler.
        status: `compiled`, `compiled with fewer constraints`, `crashed`, `timed out`,
            `out of memory`, `refused`.
        windowed_einsum: Whether the compiler was free to turn collectives beside products into
            loops of permutations.
        compiler_options: Flags that were set.
        collectives: Predicted and compiled, by kind, axes and group; the largest difference first.
        predicted_bytes: Through all collectives of a step, per device.
        compiled_bytes: Likewise.
        memory: None where nothing compiled.
        time: None where nothing compiled, or the compiler estimates no cycles.
        failures: Compiles that came to nothing, in order.
        culprits: Constraints that made the compiler fail, each added to those kept before it.
        untried: Constraints left out because the tries were used up.
        notes: What else has to be known to read the figures.
        compile_seconds: Wall time of the compile that is told about.
    """

    function: str
    mesh: str
    topology: str
    device_kind: str
    versions: Mapping[str, str]
    status: str
    windowed_einsum: bool
    compiler_options: Mapping[str, str]
    collectives: tuple[CollectiveRow, ...]
    predicted_bytes: float
    compiled_bytes: float
    memory: MemoryCheck | None
    time: TimeCheck | None
    failures: tuple[FailedCompile, ...] = ()
    culprits: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    compile_seconds: float = 0.0

    @property
    def is_compiled(self) -> bool:
        """Whether there is a compiled program to compare with."""
        return self.memory is not None

    @property
    def advice(self) -> str:
        """What to do next."""
        return ADVICE[self.status]

    @property
    def bytes_difference(self) -> float:
        """Predicted over compiled bytes through collectives, less one."""
        return _difference(self.predicted_bytes, self.compiled_bytes)

    @property
    def memory_difference(self) -> float:
        """Predicted over compiled peak memory, less one; 0 where nothing compiled."""
        if self.memory is None:
            return 0.0
        return _difference(self.memory.predicted_bytes, self.memory.compiled_bytes)

    @property
    def host_difference(self) -> float:
        """Likewise of host memory."""
        if self.memory is None:
            return 0.0
        return _difference(self.memory.predicted_host_bytes, self.memory.host_bytes)

    @property
    def largest_difference(self) -> float:
        """The larger of the two, without sign."""
        return max(abs(self.bytes_difference), abs(self.memory_difference))

    def __str__(self) -> str:
        """A line or two; `report.verification_text` has the whole comparison."""
        lines = [f"{self.function} on {self.mesh}, compiled for {self.topology}: {self.status}"]
        if self.memory is None:
            lines += [f"{failure.status}: {failure.what}" for failure in self.failures[-1:]]
            return "\n".join(lines)
        lines.append(
            f"bytes through collectives {self.bytes_difference:+.1%},"
            f" peak memory {self.memory_difference:+.1%} (predicted over compiled)"
        )
        return "\n".join(lines)

    def to_json(self) -> str:
        """Every field as JSON text, keys as above."""
        return json.dumps(_plain(self), indent=2) + "\n"


def _difference(predicted: float, compiled: float) -> float:
    if compiled == 0:
        return 0.0 if predicted == 0 else float("inf")
    return predicted / compiled - 1.0


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
