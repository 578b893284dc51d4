"""The way of a value from how it is made to how one op reads it, in a decided plan."""

from __future__ import annotations

from autoshard.encoding.encode import Decoded, Encoded
from autoshard.graph.program import Op
from autoshard.reshard import Step


def way_to_reader(encoded: Encoded, decoded: Decoded, op: Op, position: int) -> tuple[Step, ...]:
    """The steps that bring an operand where an op with a choice wants it; none if it is there.

    Where the value is moved for several readers, this one starts from that copy if it is nearer.
    """
    value = encoded.graph.values[op.operands[position]]
    maker = encoded.graph.ops[value.op]
    if not value.shape or maker.index not in decoded.candidates:
        return ()
    made = decoded.layouts[value.index]
    wanted = decoded.candidates[op.index].operands[position]
    if made == wanted:
        return ()
    table = encoded.tables[value.shape, value.bits]
    copy = decoded.shared.get((op.index, position), made)
    seconds, index = table.seconds, table.index
    is_nearer = seconds[index[copy], index[wanted]] < seconds[index[made], index[wanted]]
    if copy == made or not is_nearer:
        return table.chain(made, wanted)
    return (*table.chain(made, copy), *table.chain(copy, wanted))
