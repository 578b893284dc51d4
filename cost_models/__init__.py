"""What machines can do and what collectives and ops cost on them; knows nothing of JAX."""

from cost_models.algorithms import (
    Algorithm,
    all_gather_algorithms,
    all_reduce_algorithms,
    fastest,
    reduce_scatter_algorithms,
)
from cost_models.catalog import CATALOG, get_hardware, machine_kind
from cost_models.collectives import (
    LinearCost,
    all_gather_cost,
    all_reduce_cost,
    all_to_all_cost,
    permute_cost,
    reduce_scatter_cost,
    shift_cost,
)
from cost_models.errors import CostModelError
from cost_models.hardware import (
    Compute,
    ElementPasses,
    Hardware,
    Link,
    Memory,
    PeakFlops,
    RingOrder,
    ScatteredAccess,
    StreamedAccess,
    Switch,
    Torus,
    verify_hardware,
)
from cost_models.hardware_file import (
    format_hardware,
    load_hardware,
    parse_hardware,
    save_hardware,
)
from cost_models.links import AxisLink, DimPart, GroupDim, LinkDim, group_dims
from cost_models.measured import Measured
from cost_models.model import AlphaBetaModel, AxisPart, CostModel
from cost_models.roofline import (
    OP_CLASSES,
    dtype_family,
    matmul_tile_efficiency,
    memory_efficiency,
    op_seconds,
)
from cost_models.slices import with_slices
from cost_models.topology import MeshLayout, layout_mesh, place_mesh

__all__ = [
    "CATALOG",
    "OP_CLASSES",
    "Algorithm",
    "AlphaBetaModel",
    "AxisLink",
    "AxisPart",
    "Compute",
    "CostModel",
    "CostModelError",
    "DimPart",
    "ElementPasses",
    "GroupDim",
    "Hardware",
    "LinearCost",
    "Link",
    "LinkDim",
    "Measured",
    "Memory",
    "MeshLayout",
    "PeakFlops",
    "RingOrder",
    "ScatteredAccess",
    "StreamedAccess",
    "Switch",
    "Torus",
    "all_gather_algorithms",
    "all_gather_cost",
    "all_reduce_algorithms",
    "all_reduce_cost",
    "all_to_all_cost",
    "dtype_family",
    "fastest",
    "format_hardware",
    "get_hardware",
    "group_dims",
    "layout_mesh",
    "load_hardware",
    "machine_kind",
    "matmul_tile_efficiency",
    "memory_efficiency",
    "op_seconds",
    "parse_hardware",
    "permute_cost",
    "place_mesh",
    "reduce_scatter_algorithms",
    "reduce_scatter_cost",
    "save_hardware",
    "shift_cost",
    "verify_hardware",
    "with_slices",
]
