"""Groups of devices that lie in no regular pattern: the traffic is sent and the links are counted.

Every message takes a shortest way, the first dimension first; of two shortest ways round a ring,
half of it takes each. All groups are at work at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cost_models.links import GroupDim, LinkDim

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(slots=True)
class _Traffic:
    """What the links carry.

    Attributes:
        dims: Of the machine.
        loads: Per dimension float64[2, num_devices]: what leaves each device up and down a ring or
            line, or what leaves and enters it at a switch or network.
        farthest_seconds: Latency of the longest way.
    """

    dims: tuple[LinkDim, ...]
    loads: list[FloatArray] = field(init=False)
    farthest_seconds: float = 0.0

    def __post_init__(self) -> None:
        num_devices = int(np.prod([dim.size for dim in self.dims]))
        self.loads = [np.zeros((2, num_devices)) for _ in self.dims]

    def send(self, sources: IntArray, targets: IntArray, amount: float) -> None:
        """Sends so much from each source to its target; both int64[num_messages, num_dims]."""
        places = sources.copy()
        seconds = np.zeros(len(places))
        for index, dim in enumerate(self.dims):
            ahead = targets[:, index] - places[:, index]
            if dim.kind in ("switch", "network"):
                moving = ahead != 0
                self._add(index, 0, places[moving], amount)
                places[:, index] = targets[:, index]
                self._add(index, 1, places[moving], amount)
                hops = moving.astype(np.int64)
            else:
                up, down = _hops(dim, ahead)
                both = (up > 0) & (down > 0)
                self._walk(index, 0, places, up, np.where(both, amount / 2, amount))
                self._walk(index, 1, places, down, np.where(both, amount / 2, amount))
                hops = np.maximum(up, down)
                places[:, index] = targets[:, index]
            seconds += hops * dim.latency_seconds
        self.farthest_seconds = max(self.farthest_seconds, float(seconds.max(initial=0.0)))

    def busiest_seconds(self) -> float:
        """Until the last link is done, for amounts in bytes."""
        return max(
            float(load.max()) / dim.bytes_per_second
            for load, dim in zip(self.loads, self.dims, strict=True)
        )

    def _walk(
        self, index: int, way: int, places: IntArray, hops: IntArray, amounts: FloatArray
    ) -> None:
        walking = places.copy()
        for step in range(int(hops.max(initial=0))):
            moving = hops > step
            self._add(index, way, walking[moving], amounts[moving])
            walking[:, index] += 1 if way == 0 else -1
            walking[:, index] %= self.dims[index].size

    def _add(self, index: int, way: int, places: IntArray, amounts: FloatArray | float) -> None:
        flat = np.ravel_multi_index(tuple(places.T), tuple(dim.size for dim in self.dims))
        np.add.at(self.loads[index][way], flat, amounts)


def _hops(dim: LinkDim, ahead: IntArray) -> tuple[IntArray, IntArray]:
    """Hops up and down; the longer way has none, ways of one length both have theirs."""
    if dim.kind == "line":
        return np.maximum(ahead, 0), np.maximum(-ahead, 0)
    up = ahead % dim.size
    down = (dim.size - up) % dim.size
    return np.where(up <= down, up, 0), np.where(down <= up, down, 0)


def scattered_group(dims: tuple[LinkDim, ...], places: IntArray, members: IntArray) -> GroupDim:
    """What groups find that lie anyhow.

    An all-gather goes round each group as a ring in mesh order, half of it each way; a permutation
    is as slow as the slower of a shift to the next device and of what every device sends to every
    other. The latency is that of the longest way in a group.

    Args:
        dims: Of the machine, all its devices.
        places: int64[num_devices, num_dims] where each device of the mesh is.
        members: int64[num_groups, size] the mesh devices of each group.
    """
    size = members.shape[1]
    ring = _Traffic(dims)
    shifted = _Traffic(dims)
    exchange = _Traffic(dims)
    for shift in range(1, size):
        sources = places[members.ravel()]
        targets = places[np.roll(members, -shift, axis=1).ravel()]
        exchange.send(sources, targets, 1 / size)
        if shift == 1:
            shifted.send(sources, targets, 1.0)
            ring.send(sources, targets, 0.5)
            ring.send(targets, sources, 0.5)
    return GroupDim(
        kind="scattered",
        size=size,
        gather_bytes_per_second=1 / ring.busiest_seconds(),
        steps=1,
        latency_seconds=exchange.farthest_seconds,
        exchange_seconds_per_byte=exchange.busiest_seconds(),
        permute_seconds_per_byte=max(shifted.busiest_seconds(), exchange.busiest_seconds()),
    )
