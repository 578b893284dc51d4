"""What is copied into another order of dimensions after it is moved, in one step or in several."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from tests.planner.graphs import Program, encoder_for
from tests.planner.objective import check_objective_is_account


def transposed() -> Graph:
    """What is computed of an argument, transposed."""
    program = Program()
    made = program.elementwise(program.argument(512, 256), name="negate")
    rule = Rule((512, 256), (((0,), (1,)),), (((1,), (0,)),))
    return program.graph(*program.compute("transpose", (made,), [(256, 512)], rule, OpClass.COPY))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_objective_is_what_the_account_says(data: st.DataObject) -> None:
    check_objective_is_account(encoder_for(transposed(), "x=2,y=4", hardware="tpu-v5e"), data)
