"""What a compiler backend does otherwise than the op sharding rules say, as measured.

The plan is priced as the backend will run it, so that what it lists is what gets compiled. Figures
for jaxlib 0.10.2 on CPU; `experiments/fidelity.py` measures them again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autoshard.graph.fusing import AS_ON_CPU, Fusing
from autoshard.graph.op_traits import EXPENSIVE

if TYPE_CHECKING:
    from cost_models import Hardware

# Ops the partitioner runs whole on every device, whatever their rule allows.
_KEPT_WHOLE = {"cpu": frozenset({"top_k", "fft"})}

# Temporaries as allocated over temporaries as counted from live ranges: copies in other dimension
# orders for matmuls, and gaps between buffers. On CPU the mean over the small workloads on three
# meshes; the spread is +-15 %. On TPU gaps are found by laying temporaries out (`heap_bytes`).
# On GPU, of 31 training steps for an H100 that the CUDA plugin 0.10.2 compiled, the median and the
# mean are 1.05 (half of them 1 to 1.09): gaps, and products of few rows that are made in parts.
_TEMPORARY_OVERHEAD = {"cpu": 1.13, "gpu": 1.05}
# Of eight of them that were planned within 1.1 times the least memory, six had gaps of 0 to 6 % and
# two, of an MLP and another plan of it, of 10 and 15 %: equal large tensors that lie apart.
# On a TPU five such plans for a v5p took 5 % less to 3 % more than planned, and one of a mixture of
# experts 14 % more: gaps are chance, where much of different sizes lies close.
_OVERHEAD_WHERE_SCARCE = {"gpu": 1.1, "tpu": 1.1}


# Bits in which a backend computes, keeps and sends an element type, where wider than the type.
_WIDENED_BITS = {("cpu", "bf16"): 32}


def machine_kind(name: str) -> str:
    """What a machine is called whatever slices it has: `tpu-v5e` of `2x tpu-v5e:4x4`."""
    return name.partition(":")[0].rpartition(" ")[2]


def widened_bits(backend: str, dtype: str, bits: int) -> int:
    """Bits an intermediate element really takes: XLA's CPU backend does bfloat16 in float32."""
    return _WIDENED_BITS.get((backend, dtype), bits)


# Bits of which a product at default precision makes use, where fewer than its operands have.
_MULTIPLIED_BITS = {("tpu", "f32"): 16}


def multiplied_bits(backend: str, dtype: str, bits: int) -> int:
    """Bits of an operand that a product at default precision takes: TPUs multiply bfloat16."""
    return _MULTIPLIED_BITS.get((backend, dtype), bits)


def converts_before_moving(backend: str) -> bool:
    """Whether an operand that its readers take in narrower elements is narrowed where it lies.

    libtpu 0.0.42 does so on v5e before gathers, all-to-alls and permutations of values that only
    products and conversions read, also through transposes, reshapes, slices (those of a loop too),
    paddings, broadcasts, selections and concatenations. A moved copy that anything else reads too
    travels as it is, once.
    """
    return backend == "tpu"


# Bytes, read and written, up to which libtpu 0.0.42 takes conversions to be twice as fast as larger
# ones: from `float32` to `bfloat16` 1 MiB written on a v5e, and 2 MiB on a v5p.
_CONVERTED_FAST = {"tpu-v5e": 3 * 2**20, "tpu-v5p": 6 * 2**20}


def most_converted_fast(machine: Hardware) -> int:
    """Up to how many bytes, read and written together, a conversion takes half as long."""
    return _CONVERTED_FAST.get(machine_kind(machine.name), 0)


def computes_single_rows(backend: str) -> bool:
    """Whether a product of one row, one column or one term is computed as no product.

    libtpu 0.0.42 multiplies and sums element by element then, in the width of the operands: weights
    of `float32[512, 4, 512]` were gathered and kept so for an LSTM with one sequence on a device.
    """
    return backend == "tpu"


def keeps_whole(backend: str, op_name: str) -> bool:
    """Whether a backend replicates an op instead of cutting it."""
    return op_name in _KEPT_WHOLE.get(backend, frozenset())


def temporary_overhead(backend: str, *, is_scarce: bool = False) -> float:
    """Factor on the bytes of temporaries; 1 where nothing was measured.

    Args:
        backend: As of `Hardware`.
        is_scarce: Whether memory is: then it is what gaps may take, not what they mostly take.
    """
    found = _TEMPORARY_OVERHEAD.get(backend, 1.0)
    return _OVERHEAD_WHERE_SCARCE.get(backend, found) if is_scarce else found


def counts_equal_moves_once(backend: str) -> bool:
    """Whether two moves of a value to one sharding are counted as the one copy that they become.

    Not on host CPUs: of an MLP whose products run in steps, within 1.3 times what it holds, plans
    took 9 % more than they counted so, and no more than they counted else (jaxlib 0.10.2).
    """
    return backend != "cpu"


def lays_out_as_made(backend: str) -> bool:
    """Whether temporaries are given their place in the order they are made in, gaps and all.

    Seen in the buffer assignments of libtpu 0.0.42 (`heap_bytes`). Other compilers place the
    largest first, and leave next to no gaps.
    """
    return backend == "tpu"


def copies_convolution_gradients(backend: str) -> bool:
    """Whether gradients of convolutions first copy their operands to another dimension order."""
    return backend == "cpu"


# libtpu 0.0.42 keeps 16 KiB for each op with several results, over the whole program: a table of
# pointers to them. Copies onto the chip and out of it are such ops, two tables for each slice, and
# so is each update. Of 46 training steps, for each argument of which a device holds less than so
# many bytes, and besides for each product: what an update reads is brought in and its result taken
# out, but of vectors only a third on a v5e (of 550) and half on a v5p (of 472), and little of what
# is too large. A v5e brings in what has 1 MiB and more in slices, four of most. On a v5p products
# write to device memory, and what is computed next has their results copied onto the chip.
_POINTER_TABLE_BYTES = 2**14
_TABLES_BY_ARGUMENT = {
    "tpu-v5e": ((2**12, 1.0), (2**20, 2.0), (2**24, 8.0), (math.inf, 5.0)),
    "tpu": ((2**12, 1.3), (2**24, 2.1), (math.inf, 0.6)),
}
_TABLES_BY_PRODUCT = {"tpu-v5e": 1.2, "tpu": 3.0}


def pointer_table_bytes(machine: Hardware, arguments: Sequence[int], num_products: int) -> int:
    """Bytes of the tables of pointers that a program holds.

    Args:
        machine: Whose compiler it is.
        arguments: Bytes that a device holds of each argument.
        num_products: Products and convolutions of the program, those in loops once.
    """
    tables = _TABLES_BY_PRODUCT.get(_table_kind(machine), 0.0) * num_products
    tables += sum(num_pointer_tables(machine, held) for held in arguments)
    return round(tables) * _POINTER_TABLE_BYTES


def num_pointer_tables(machine: Hardware, held_bytes: int) -> float:
    """Tables of pointers for an argument of which a device holds so many bytes, on the average."""
    by_size = _TABLES_BY_ARGUMENT.get(_table_kind(machine), ((math.inf, 0.0),))
    return next(few for least, few in by_size if held_bytes < least)


def _table_kind(machine: Hardware) -> str:
    kind = machine_kind(machine.name)
    return kind if kind in _TABLES_BY_ARGUMENT else machine.backend


_ON_TPU = Fusing(
    kept=frozenset(),
    with_products=True,
    from_wider=False,
    one_hot_scatters=True,
    frees_first=True,
    writes_scattered=True,
)
_FUSING = {
    "tpu-v5e": replace(_ON_TPU, from_wider=True),
    "tpu": _ON_TPU,
    "gpu": Fusing(
        kept=EXPENSIVE - {"divide", "exponential", "logistic"},
        kept_bits=16,
        from_one=True,
        least_part=64,
        with_gathers=True,
        with_scatters=True,
        fills_early=True,
        into_addends=True,
        turns=True,
        waits_for_products=8,
    ),
}


def fusing(machine: Hardware) -> Fusing:
    """What a machine's compiler computes together.

    Seen in buffer assignments of training steps: libtpu 0.0.42 computes a product's operands and
    what follows it with the product, again and again if need be (a layer of the MLP keeps one
    tensor: its sums with the bias added; a softmax keeps its masked scores, in float32; a
    conversion to wider elements is left to what reads them). For a v5e that holds for the weights
    of a softmax too; for a v5p they are written, in bfloat16, be the scores bfloat16 or float32.
    The CUDA plugin 0.10.2 for an H100 computes softmaxes and `tanh` in float32 again, and keeps a
    `tanh` in bfloat16; it takes a label's logit from the product's result, with no float32 copy,
    and adds the label's gradient in place. Its products compute operands made of one tensor, its
    scatters what they add; zeros for these are written early. Of 190 products of weight gradients
    in 33 training steps for an H100 the mean ran after 5 of 8 others that were left; of 39 for TPUs
    26 ran at once.
    """
    return _FUSING.get(machine_kind(machine.name), _FUSING.get(machine.backend, AS_ON_CPU))


# Bytes of memory on the chip in which temporaries lie, by machine: of the 128 MiB of vector memory
# that a v5e has, libtpu 0.0.42 hands out 112 (the buffer assignments of all programs looked at).
# On a v5p it has products and collectives write to device memory: in the buffer assignments of nine
# training steps none of 347 tensors of 2 MB and more that they made was on the chip (of four for a
# v5e, 290 of 331), only copies of what is read next and the results of element-wise fusions: 259 of
# 282 from half a MB to 48 MB that were read soon, and none of those that were larger.
_ON_CHIP_BYTES = {"tpu-v5e": 112 * 2**20, "tpu-v5p": 48 * 2**20}


def on_chip_bytes(machine: Hardware) -> int:
    """Bytes of memory on the chip, for temporaries that are read soon.

    The compiler keeps there what is read soon, and moves what is read much later to device memory
    and in again. Arguments and results stay in device memory.
    """
    return _ON_CHIP_BYTES.get(machine_kind(machine.name), 0)


def keeps_products_on_chip(machine: Hardware) -> bool:
    """Whether products, collectives and look-ups write to memory on the chip too."""
    return machine_kind(machine.name) == "tpu-v5e"


def joins_updates(backend: str) -> bool:
    """Whether rows of several stacks that are computed from the same are written by one kernel.

    Seen with libtpu 0.0.42 in the loops of recurrent networks.
    """
    return backend == "tpu"


# Lanes of a TPU's vector registers; a row of a tile has as many elements.
_ROW_LANES = {"tpu": 128}


def row_lanes(backend: str) -> int:
    """To a multiple of how many elements rows are padded that are looked up; 1 for no padding.

    Elsewhere libtpu lets another dimension than that of narrow rows fill the lanes. For a gather or
    scatter of whole rows it copies the table, what is scattered and the result into padded rows:
    float32[65536, 16], looked up 16384 times, took 42 MB on a v5p in the place of 5 (libtpu 0.0.42;
    on a v5e the copies lay on the chip).
    """
    return _ROW_LANES.get(backend, 1)


# Sublanes of a TPU's vector registers; a tile has as many rows.
_LEAST_IMAGES = {"tpu": 8}


def least_images(backend: str) -> int:
    """Of fewer images than this on a device, convolutions cut the rows into as many pieces each.

    libtpu 0.0.42 makes more images so, and copies them there and back: of 1, 4, 5 and 7 on a v5e,
    of 1 and 4 on a v5p, and not of 8, 9 and 16. 1 where images stay as they are.
    """
    return _LEAST_IMAGES.get(backend, 1)


_LEAST_ROWS = {"tpu": 32}


def least_rows(backend: str) -> int:
    """A matrix product of fewer rows than this takes as long as one of so many.

    A unit of 128 x 128 takes 32 cycles to load the other operand's next tile (products of 8 to 64
    rows in the loops of recurrent networks, libtpu 0.0.42 for a v5e and a v5p).
    """
    return _LEAST_ROWS.get(backend, 1)


_FILLING_CYCLES = {"tpu-v5e": 256, "tpu-v5p": 256}


def filling_cycles(machine: Hardware) -> int:
    """Cycles that a product takes beside its arithmetic, to fill and empty the matrix units.

    The least that libtpu 0.0.42 estimates for a product is 264 on a v5e, where all it reads and
    writes is on the chip, and 2,388 on a v5p, where another kernel takes 2,120.
    """
    return _FILLING_CYCLES.get(machine_kind(machine.name), 0)


def turns_gathers(backend: str) -> bool:
    """Whether what is gathered along another than the leading dimension is copied into order.

    XLA for host CPUs gathers with that dimension outermost, and then copies (twice the gathered
    bytes at that time, for float32[64, 128, 256] over 4 devices).
    """
    return backend == "cpu"


COPIES_OF_TURNED = 3
"""As how many copies it counts that rows gathered from short pieces lie in another order.

A TPU gathers pieces of less than 128 columns with that dimension outermost, and where no product
reads them all that is computed with them is turned. In a data-parallel step of GPT with the
gradient of an embedding so gathered (float32[8192, 1024] from 64 columns each) libtpu 0.0.42 for a
v5p copied weights and moments there and back; a stack of weights gathered so before its loop took
six times as long to be sliced, row by row, as to be copied.
"""


def keeps_order_of_gathers(backend: str) -> bool:
    """Whether what is moved and then transposed is used as it came, and all beside it copied.

    With the weight gradients of an MLP gathered before they are transposed, libtpu 0.0.42 for a
    v5e copied weights and both moments of Adam into the gradients' dimension order, and the new
    ones back. With products that end in pieces it chose their order itself, and copied nothing.
    """
    return backend == "tpu"


def rearranges_exchanges(backend: str) -> bool:
    """Whether an all-to-all comes with a copy that brings its pieces into order.

    In the training steps of an MLP that libtpu 0.0.42 compiled for a v5e every all-to-all had one,
    of all it moved. The time of an all-to-all that was measured has it in it.
    """
    return backend in ("tpu", "gpu")


def sums_by_dimension(backend: str) -> bool:
    """Whether partial sums over several cut dimensions take an all-reduce for each of them.

    The partitioner makes one for each dimension; the compilers of TPUs fold them into one (seen
    with libtpu 0.0.52 for a v5e), that of host CPUs does not.
    """
    return backend == "cpu"


def sums_after_loops(backend: str) -> bool:
    """Whether partial sums that a loop adds up are summed over devices once, after the loop.

    XLA moves the all-reduce out of the loop (seen with libtpu 0.0.42 for a v5e and with jaxlib
    0.10.2 for an H100: of 8 microbatches one all-reduce is left, also where the product is
    converted before it is added, not where it is scaled); on host CPUs it stays. A reduce-scatter
    stays everywhere.
    """
    return backend in ("tpu", "gpu")


def joins_added_sums(backend: str) -> bool:
    """Whether partial sums that are added to one another are summed over devices once.

    XLA adds what each device has first (seen with libtpu 0.0.42 for a v5e and jaxlib 0.10.2 for an
    H100): products to products, of which dimensions may be reordered between, and scatters to
    scatters; all-reduces and reduce-scatters alike. A sum that anything else reads too is taken by
    itself, and on host CPUs every one is.
    """
    return backend in ("tpu", "gpu")


# Chips of a slice all of which gather by a sum, and by machine the most bytes that they gather so.
# Seen with libtpu 0.0.42: all chips of a v5p 4 x 4 x 4, 2 x 4 x 8 and 4 x 4 x 8 sum up to 2.1 GB,
# those of a v5e 8 x 8 and 8 x 16 up to 16.8 MB and not 21; those of a v5e 4 x 8 and a v5p 2 x 4 x 4
# gather 0.1 MB, and so do groups of 16 and 64 in larger slices.
_SUMMING_CHIPS = 64
_GATHERED_BY_SUM = {"tpu-v5e": 2.0**24, "tpu-v5p": math.inf}


def most_gathered_by_sum(machine: Hardware, group_size: int, slice_size: int) -> float:
    """Bytes, of the result, up to which an all-gather is run as an all-reduce; 0 for none.

    libtpu adds pieces to zeros where all chips of a large slice gather. Operands are not narrowed
    before that.

    Args:
        machine: Whose compiler it is.
        group_size: Devices of the group.
        slice_size: Devices of the slice.
    """
    if group_size < max(_SUMMING_CHIPS, slice_size):
        return 0.0
    return _GATHERED_BY_SUM.get(machine_kind(machine.name), 0.0)


def runs_by_level(backend: str) -> bool:
    """Whether a collective over several slices is a collective in each, and one between them.

    Seen with libtpu 0.0.42 for two slices of v5e and v5p: pieces are gathered between slices first;
    sums are scattered in the slice, summed between slices and gathered; an all-to-all is one
    exchange between hosts. Nothing is narrowed before it leaves the slice.
    """
    return backend == "tpu"


def scatters_along_lines(backend: str) -> bool:
    """Whether only groups along one physical dimension, or two by more, take a reduce-scatter.

    Seen with libtpu 0.0.42: so do groups of 4 and 8 on slices v5e 2 x 4 and v5p 2 x 2 x 2; those of
    all chips of v5e 4 x 4, v5p 2 x 2 x 2 and 2 x 2 x 4 take an all-reduce and a cut.
    """
    return backend == "tpu"


def scatters_whole_tiles(backend: str) -> bool:
    """Whether a sum takes a reduce-scatter only where its pieces are made of whole tiles.

    The compilers of TPUs take all other sums by an all-reduce and a cut: those scattered onto two
    dimensions, those of vectors (of a million elements too), and those whose pieces do not fill
    tiles: of bfloat16, 128 columns do not, and 8 rows do only in matrices. Seen with libtpu 0.0.42
    for a v5e, 38 shapes.
    """
    return backend == "tpu"


# Without it XLA for host CPUs starts each collective, and makes each copy, as soon as its operand
# is there, and what it makes is held until it is wanted: a training step of three MLPs, planned
# within 2.99 MiB with 5 of 17 heavy products at once, compiled to 5.49 MiB so, to 2.63 in order.
_IN_ORDER = {"cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}}


def in_order_options(backend: str) -> Mapping[str, str]:
    """Compiler options with which a program runs in order, and holds what the plan says."""
    return _IN_ORDER.get(backend, {})


# Collectives that a machine's compiler starts, computes beside, and waits for later: by machine
# where one differs from its backend. Seen in training steps compiled by libtpu 0.0.52 with its
# default flags, on slices of 8 and 16 chips: a v5e gathers beside matrix products; on v5p and v6e
# every all-gather blocks; sums and all-to-alls block on all of them; permutations never do. GPUs:
# not seen, but as with XLA's latency-hiding scheduler switched on.
_RUN_BESIDE = {
    "tpu-v5e": frozenset({"all-gather", "collective-permute"}),
    "tpu": frozenset({"collective-permute"}),
    "gpu": frozenset(
        {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"}
    ),
}


def loops_over_scattered_sums(backend: str) -> bool:
    """Whether the compiler makes a ring of a product whose sums are scattered.

    One for TPUs does (a windowed einsum), where the product takes long enough. Gathers that a plan
    asks for it leaves alone, as each is pinned at its product.
    """
    return backend == "tpu"


# Elements that a product sums on each device for every byte of an element of its result, above
# which its scattered sum becomes a windowed einsum: the product then takes as long as the sending.
# Seen with libtpu 0.0.42 for v5e and v5p: in groups of 8, which send both ways round, 640 elements
# of a bfloat16 product are enough and 512 are not (float32: not 1024, but 8192); in groups of 4,
# 1280 and not 1024. Groups of 2 never are, nor those of 2 x 2 chips of a v5p; all chips of a v5p
# 2 x 2 x 2 and of a v5e 4 x 4 are.
_SUMMED_PER_BYTE = 512
_BOTH_WAYS_FROM = 8


def windows_scattered_sum(
    machine: Hardware, links: Sequence[int], summed: float, bits: int
) -> bool:
    """Whether a scattered sum is long enough in the making for a windowed einsum.

    Args:
        machine: Whose compiler it is.
        links: Devices of its group along each physical dimension that it spans.
        summed: Elements that the product sums on each device.
        bits: Of an element of its result.
    """
    size = math.prod(links)
    if size < 4 or (machine_kind(machine.name) == "tpu-v5p" and tuple(links) == (2, 2)):
        return False
    ways = 2 if size >= _BOTH_WAYS_FROM else 1
    return summed > _SUMMED_PER_BYTE * bits / 8 / ways


def runs_beside(machine: Hardware, kind: str) -> bool:
    """Whether a machine computes while a collective of this kind is under way."""
    by_backend = _RUN_BESIDE.get(machine.backend, frozenset())
    return kind in _RUN_BESIDE.get(machine_kind(machine.name), by_backend)


def sends_beside_products_alone(machine: Hardware) -> bool:
    """Whether collectives run beside products alone, the last ones before what reads them.

    Seen in steps of an MLP, a GPT, an LSTM and a recommender compiled by libtpu 0.0.42 for 8 chips
    of a v5e: nearly every gather that runs beside anything starts right before a product, with what
    is fused into it, and ends before its own reader; what updates make is gathered alone. Beside
    custom calls: not seen.
    """
    return machine.backend == "tpu"


def overlaps_on(machine: Hardware) -> bool:
    """Whether a machine computes while any collective is under way."""
    return machine.backend in _RUN_BESIDE
