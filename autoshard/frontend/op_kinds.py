"""What the exporter knows of op names: which are element-wise, and how each spends its time."""

from __future__ import annotations

from autoshard.graph.program import OpClass

ELEMENTWISE = frozenset(
    """abs add and atan2 bitcast_convert cbrt ceil clamp compare complex convert cosine
    count_leading_zeros divide exponential exponential_minus_one floor imag is_finite log
    log_plus_one logistic maximum minimum multiply negate not or popcnt power real
    reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor""".split()
)

CHLO_ELEMENTWISE = frozenset(
    """acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc is_inf
    is_neg_inf is_pos_inf lgamma mulhi next_after polygamma sinh square tan zeta broadcast_add
    broadcast_and broadcast_atan2 broadcast_compare broadcast_complex broadcast_divide
    broadcast_maximum broadcast_minimum broadcast_multiply broadcast_next_after broadcast_or
    broadcast_polygamma broadcast_power broadcast_remainder broadcast_select
    broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical
    broadcast_subtract broadcast_xor broadcast_zeta""".split()
)

# Collectives the user writes in a shard_map body.
MANUAL_COLLECTIVES = frozenset(
    """all_gather all_reduce all_to_all collective_broadcast collective_permute cross-replica-sum
    reduce_scatter""".split()
)

# Those among them whose tensors free axes may cut. For the others the partitioner gathers the
# operand over the free axes first (seen in programs that jaxlib 0.10.2 compiles for CPU).
SHAPE_KEEPING_COLLECTIVES = frozenset({"all_reduce", "collective_permute", "cross-replica-sum"})

# Custom calls whose result is their operand, marked in some way.
IDENTITY_CUSTOM_CALLS = frozenset(
    """annotate_device_placement InspectSharding LayoutConstraint MoveToDevice MoveToHost
    ResultAccuracy Sharding""".split()
)

# Custom calls on stacks of matrices, which work on each matrix alone; names are XLA's on TPU. Some
# of Shardy's own rules for them let a matrix be cut, which says where a sharding may propagate, not
# that the pieces can be computed apart. (LAPACK and cuSOLVER calls carry a rule of JAX's.)
MATRIX_CUSTOM_CALLS = frozenset(
    "Cholesky Eigh LuDecomposition ProductOfElementaryHouseholderReflectors Qr".split()
)

# Ops that only move or rename elements, and that XLA fuses like element-wise ones.
SHAPE_ONLY = frozenset("broadcast_in_dim reshape transpose slice reverse pad concatenate".split())

# With only such ops between a constant and a value, each device can make its own piece.
FREE_SOURCES = frozenset("constant iota create_token after_all".split())
FREE_IF_OPERANDS_FREE = ELEMENTWISE | CHLO_ELEMENTWISE | frozenset({"broadcast_in_dim", "slice"})

_CLASS_BY_NAME = {
    "dot_general": OpClass.MATMUL,
    "dot": OpClass.MATMUL,
    "ragged_dot": OpClass.MATMUL,
    "convolution": OpClass.CONVOLUTION,
    "reduce": OpClass.REDUCE,
    "reduce_window": OpClass.REDUCE,
    "select_and_scatter": OpClass.SCATTER,
    "gather": OpClass.GATHER,
    "dynamic_gather": OpClass.GATHER,
    "scatter": OpClass.SCATTER,
    "sort": OpClass.SORT,
    "top_k": OpClass.SORT,
    "dynamic_slice": OpClass.COPY,
    "dynamic_update_slice": OpClass.COPY,
    "rng_bit_generator": OpClass.ELEMENTWISE,
    "rng": OpClass.ELEMENTWISE,
}


def op_class(name: str) -> OpClass:
    """The class of work of an op by its name without dialect."""
    if name in _CLASS_BY_NAME:
        return _CLASS_BY_NAME[name]
    if name in ELEMENTWISE or name in CHLO_ELEMENTWISE:
        return OpClass.ELEMENTWISE
    if name in SHAPE_ONLY:
        return OpClass.COPY
    return OpClass.CUSTOM
