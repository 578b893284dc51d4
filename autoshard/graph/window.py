"""How windows of convolutions and pools move, and what neighbours exchange where space is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window that moves along one dimension of an image.

    Args:
        image: The dimension of the first operand.
        made: The dimension of the result.
        kernel: The dimension of the kernel, the second operand; -1 for pools.
        size: Taps.
        stride: Steps of the window, in elements of the dilated and padded image.
        low: Padding before the image; it may be negative.
        base_dilation: Distance of neighbouring elements of the image in the dilated one.
        dilation: Distance of neighbouring taps.
    """

    image: int
    made: int
    kernel: int = -1
    size: int
    stride: int = 1
    low: int = 0
    base_dilation: int = 1
    dilation: int = 1

    @property
    def starts_between_elements(self) -> bool:
        """True where padding cuts off some of the gaps before an element of a dilated image."""
        return self.low < 0 and self.low % self.base_dilation != 0

    def hits(self, image: int, made: int) -> int:
        """Pairs of an element of the result and a tap that meet an element of the image.

        Args:
            image: Elements of the image.
            made: Elements of the result.
        """
        outputs = np.arange(made)[:, None] * self.stride
        places = outputs + np.arange(self.size)[None, :] * self.dilation - self.low
        inside = (places >= 0) & (places <= (image - 1) * self.base_dilation)
        return int(np.count_nonzero(inside & (places % self.base_dilation == 0)))

    def is_aligned(self, image: int, made: int, pieces: int) -> bool:
        """True where the windows of each piece of the result start in the same piece of the image.

        Args:
            image: Elements of the image.
            made: Elements of the result.
            pieces: That both are cut into.
        """
        if image % pieces or made % pieces:
            return False
        return self.stride * (made // pieces) == self.base_dilation * (image // pieces)

    def span(self, made: int, pieces: int) -> tuple[int, int]:
        """Where the elements that a piece of the result is made of start and stop.

        Counted from the start of the piece of the image that windows are aligned with: a negative
        start is in the left neighbour.

        Args:
            made: Elements of the result.
            pieces: That it is cut into.

        Source: openxla/xla, `PartitionedHlo::ReshardAsWindowedInput` in `spmd_partitioner.cc`.
        """
        padding = int(self.low / self.base_dilation)
        first = self.base_dilation - 1 - (self.low - padding * self.base_dilation)
        taps = (self.size - 1) * self.dilation + 1
        last = first + self.stride * (made // pieces - 1) + taps
        return first // self.base_dilation - padding, last // self.base_dilation - padding

    def summed_span(self, image: int, kernel: int, made: int, pieces: int) -> tuple[int, int]:
        """The same where the kernel is cut like the image, and positions are summed over.

        Where their pieces do not advance alike, the largest halos count.

        Args:
            image: Elements of the image.
            kernel: Elements of the kernel.
            made: Elements of the result.
            pieces: That image and kernel are cut into.

        Source: openxla/xla, `PartitionConvolutionWithSpatialDimensionHaloExchangeOnLHS` in
            `convolution_handler.cc`.
        """
        piece = -(-image // pieces)
        grows = piece - -(-kernel // pieces) * self.dilation
        reached = self.stride * (made - 1) + 1 - self.dilation - self.low
        left = max(grows * place + self.low for place in (1, pieces - 1))
        right = max(reached - grows * place for place in (1, pieces - 1))
        return -left, piece + right
