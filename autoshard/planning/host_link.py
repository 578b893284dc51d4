"""The link between a device and host memory: what passes while loops compute, and what waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoshard.encoding.picoseconds import picoseconds

IntArray = npt.NDArray[np.int64]

_STEP = 1.15
"""By how much each number of bytes that may be waited for is more than the one before."""


@dataclass(frozen=True, slots=True)
class HostLink:
    """Transfers of one forward pass to the host, and back for the backward pass.

    Each way, what passes in the time that the loop computes costs nothing, and what is more costs
    its time: `max(0, bytes / bytes_per_second - seconds)`.

    Args:
        bytes_per_second: Each way.
        seconds: That the loops of both passes compute.
        offered_bytes: The most that may be sent.
    """

    bytes_per_second: float
    seconds: tuple[float, ...]
    offered_bytes: int

    @property
    def _bytes(self) -> IntArray:
        """int64[num_choices]: numbers of bytes, from what passes without waiting to the most."""
        least = int(min(self.seconds, default=0.0) * self.bytes_per_second)
        first = max(least, self.offered_bytes // 1000, 1)
        found, steps = [least], 0
        while found[-1] < self.offered_bytes:
            steps += 1
            found.append(min(int(first * _STEP**steps) + 1, max(self.offered_bytes, least)))
        return np.array(found, dtype=np.int64)

    @property
    def most_bytes(self) -> int:
        """Of the last choice."""
        return int(self._bytes[-1])

    @property
    def left_bytes(self) -> IntArray:
        """int64[num_choices]: what each choice leaves out of the most."""
        left: IntArray = self.most_bytes - self._bytes
        return left

    @property
    def wait_costs(self) -> IntArray:
        """int64[num_choices]: picoseconds of waiting, at least, for more than the choice before."""
        before = np.concatenate([self._bytes[:1], self._bytes[:-1]]) / self.bytes_per_second
        waits = sum((np.maximum(before - one, 0.0) for one in self.seconds), np.zeros(len(before)))
        return picoseconds(waits)
