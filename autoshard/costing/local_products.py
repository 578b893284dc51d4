"""The matrix product that one device computes under each candidate: rows, columns, summed length.

A matrix unit works on tiles, and pads what does not fill them. What counts is one product: the
tiles of a batched one do not span its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Graph, Op
from autoshard.graph.rule import Rule, factors_of
from autoshard.layouts import MeshParts, Parts

FloatArray = npt.NDArray[np.float64]

FEW_FEATURES = 8
"""Of fewer input features than this, a convolution takes the taps of its kernel as features too.

Source: house default. One of 3 features that libtpu 0.0.52 compiles for a v5e fills far more of the
matrix unit than 3 lanes of 128.
"""


@dataclass(frozen=True, slots=True)
class ProductFactors:
    """Which factors of a rule make up each dimension of a matrix product.

    Args:
        rows: Those of the first operand that the result keeps.
        columns: Those of the second operand that the result keeps.
        summed: Those of both operands that are summed.
        groups: Those that tell which rows meet which matrix: of the second operand alone, as the
            groups of a ragged product and the taps of a convolution's kernel are, and the part of
            them that strides share with the image.
        batch: Those of both operands that the result keeps.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    summed: tuple[int, ...]
    groups: tuple[int, ...]
    batch: tuple[int, ...]

    @property
    def is_depthwise(self) -> bool:
        """True for a convolution of each feature by itself, and for the gradient of its kernel.

        Features are the batch: of the convolution nothing is summed, of the gradient all else is.
        """
        return bool(self.batch) and (not self.summed or not (self.rows or self.columns))


def product_factors(rule: Rule) -> ProductFactors:
    """Sort the factors of a product or convolution of two operands."""
    left, right = (factors_of(dims) for dims in rule.operands[:2])
    made = factors_of(rule.results[0])
    taps = _strided_taps(rule)

    def of(chosen: set[int]) -> tuple[int, ...]:
        return tuple(sorted(chosen - taps))

    return ProductFactors(
        rows=of((left & made) - right),
        columns=of((right & made) - left),
        summed=of((left & right) - made),
        groups=tuple(sorted((right - left - made) | taps)),
        batch=of(left & right & made),
    )


def _strided_taps(rule: Rule) -> set[int]:
    """Factors of pixels between two that a convolution's stride starts at: they meet taps."""
    between = {factor for dim in rule.operands[0] for factor in dim[1:]}
    return between & {*rule.need_replication, *rule.permutation}


def local_products(
    parts: MeshParts, rule: Rule, candidates: Sequence[Candidate], taps: int = 1
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """float64[num_candidates] each: rows, columns and summed length on one device.

    Dimensions that their cut does not divide count as padded up. Of a product in steps it is the
    product of one step. Where a convolution has few input features, the taps of its kernel count
    as features too; of a matmul there is one.
    """
    found = product_factors(rule)
    cuts = _FactorCuts(parts, rule, candidates)
    rows, columns, summed = (
        cuts.local_size(factors) for factors in (found.rows, found.columns, found.summed)
    )
    return rows, columns, np.where(summed < FEW_FEATURES, summed * taps, summed)


def has_unit_dims(
    parts: MeshParts, rule: Rule, candidates: Sequence[Candidate]
) -> npt.NDArray[np.bool_]:
    """bool[num_candidates]: whether an operand has a dimension of size 1 on a device."""
    cuts = _FactorCuts(parts, rule, candidates)
    dims = {factors for operand in rule.operands[:2] for factors in operand}
    return np.asarray(np.min([cuts.local_size(factors) for factors in dims], axis=0) == 1)


def local_features(parts: MeshParts, rule: Rule, candidates: Sequence[Candidate]) -> FloatArray:
    """float64[num_candidates]: features of a depthwise convolution on one device, padded up."""
    return _FactorCuts(parts, rule, candidates).local_size(product_factors(rule).batch)


def computed_zeros(op: Op) -> float:
    """Multiply-adds that a depthwise convolution computes for each one that no zero is in.

    The gradient of a strided convolution's image computes the zeros between pixels but along one
    dimension: of bfloat16[32, 29, 29, 256] under 7 x 7 taps, strides of 2, it takes 204 us on a
    v5e, where the convolution takes 79 (libtpu 0.0.52).
    """
    between = [window.base_dilation for window in op.windows]
    return prod(between) / max(between, default=1)


def padded_taps(graph: Graph, op: Op) -> float:
    """Multiply-adds of a convolution that computes padding, for each one that does not.

    Vector units do: of depthwise convolutions of bfloat16[16, 56, 56, 128] and [16, 28, 28, 256]
    under 7 x 7 taps, and [32, 14, 14, 512] under 5 x 5, a v5e computes 490 to 503 a cycle in all,
    and 410 to 462 that meet no padding (libtpu 0.0.52).
    """
    image, made = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
    found = 1.0
    for window in op.windows:
        taps = window.size * made[window.made] / window.base_dilation
        found *= taps / max(window.hits(image[window.image], made[window.made]), 1)
    return found


def grouped_share(op: Op, tile_rows: int) -> float:
    """Share of the FLOP of a ragged matmul that a kernel of tiles computes; 1 where it masks.

    It takes each tile of rows once for each group in it; a group begins within a tile.

    Args:
        op: Any op.
        tile_rows: Of a tile; 0: the compiler has no such kernel.
    """
    if op.name != "ragged_dot" or op.rule is None or not tile_rows:
        return 1.0
    size, whole = op.rule.factor_sizes, op.rule.need_replication
    num_rows = prod(size[f] for f in factors_of(op.rule.operands[0]) if f in whole)
    num_groups = prod(size[f] for f in factors_of(op.rule.operands[2]))
    visits = num_rows / tile_rows + num_groups - 1
    return visits * tile_rows / (num_rows * num_groups) if num_rows >= tile_rows else 1.0


@dataclass(slots=True)
class _FactorCuts:
    """How many pieces each factor of the operands falls into, for all candidates at once."""

    parts: MeshParts
    rule: Rule
    candidates: Sequence[Candidate]

    def local_size(self, factors: Sequence[int]) -> FloatArray:
        """Product of the local sizes of some factors, each padded up."""
        size = np.ones(len(self.candidates))
        for factor in factors:
            size *= np.ceil(self.rule.factor_sizes[factor] / self.pieces(factor))
        return np.maximum(size, 1.0)

    def pieces(self, factor: int) -> FloatArray:
        """A dimension of several factors is cut from its major factor on."""
        operand, dim, before = _place(self.rule, factor)
        sizes: dict[Parts, int] = {}
        found = []
        for candidate in self.candidates:
            streamed = candidate.streamed
            cut = (streamed.needs if streamed else candidate.operands)[operand][dim]
            if cut not in sizes:
                sizes[cut] = self.parts.num_shards(cut)
            is_stepped = streamed is not None and streamed.over == factor
            found.append(sizes[cut] * (streamed.num_steps if streamed and is_stepped else 1))
        left = np.maximum(np.array(found, dtype=np.float64) / before, 1.0)
        return np.minimum(left, max(self.rule.factor_sizes[factor], 1))


def _place(rule: Rule, factor: int) -> tuple[int, int, int]:
    """An operand and a dimension of it that has the factor; the size of what is more major there.

    A dimension of that factor alone, if there is one.
    """
    places = [
        (
            len(factors) > 1,
            operand,
            dim,
            prod(rule.factor_sizes[f] for f in _before(factors, factor)),
        )
        for operand, dims in enumerate(rule.operands[:2])
        for dim, factors in enumerate(dims)
        if factor in factors
    ]
    _, operand, dim, before = min(places)
    return operand, dim, before


def _before(factors: tuple[int, ...], factor: int) -> tuple[int, ...]:
    return factors[: factors.index(factor)]
