"""When a TPU makes gradients that devices sum and only updates read."""

from __future__ import annotations

import pytest

from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, parts_of, plan

SIDE = 1024
WIDTH = 16 * SIDE
GRADIENT_BYTES = 4 * SIDE**2


def times(
    *, keeps_read: bool, is_measured: bool = False, width: int = WIDTH, num_products: int = 4
) -> tuple[int, int, int]:
    """When the gradient of two states is held, from and until, and when the last update runs.

    It is a product of activations, of which a device has `width / 2` KiB, and 4 MiB itself. These
    are let go when it is made, or read again at the end; a measured one is read by more than its
    update. So many products run in between.
    """
    program = Program()
    x, w, *states = (program.argument(SIDE, SIDE) for _ in range(4))
    seen = program.argument(width, SIDE)
    activations = program.matmul(x, program.argument(SIDE, width))
    gradient = program.matmul(activations, seen)
    made = x
    for _ in range(num_products):
        made = program.matmul(made, w)
    sums = [made, *[activations] * keeps_read, *[gradient] * is_measured]
    losses = [program.sum(value) for value in sums]
    new = [program.elementwise(gradient, state) for state in states]
    graph = program.graph(*new, *losses, donated=(2, 3))
    parts = parts_of("x=4")
    whole, rows, columns = map(parts.to_sharding, (((), ()), ((0,), ()), ((), (0,))))
    wishes = Wishes(
        arguments=[*[whole] * 4, rows, columns],
        results=[whole, whole, *[parts.to_sharding(((),))] * len(losses)],
        alike=[(2, 0), (3, 1)],
        values={activations: columns, gradient: whole, made: whole},
    )
    memory = plan(graph, "x=4", wishes, None, "tpu-v5p").account.memory
    held = [t for t in memory.held if t.kind == "value" and t.local_bytes == GRADIENT_BYTES]
    update = graph.values[new[-1]].op
    (one,) = [t for t in held if t.stop > update]
    return one.start, one.stop, update


def test_one_that_takes_more_than_it_lets_go_of_is_made_when_its_update_reads_it() -> None:
    start, stop, update = times(keeps_read=True)
    assert (start, stop) == (update, update + 1)


@pytest.mark.parametrize(("keeps_read", "is_measured"), [(False, False), (True, True)])
def test_one_that_lets_go_of_more_or_is_read_for_something_else_is_made_at_once(
    *, keeps_read: bool, is_measured: bool
) -> None:
    start, _, update = times(keeps_read=keeps_read, is_measured=is_measured)
    assert start < update - 2


def test_one_with_which_more_would_be_held_at_its_update_is_made_at_once() -> None:
    narrow = 4 * SIDE  # half the gradient
    start, _, update = times(keeps_read=False, width=narrow)
    assert start == update
    start, _, update = times(keeps_read=False, width=narrow, num_products=1)
    assert start < update - 1
