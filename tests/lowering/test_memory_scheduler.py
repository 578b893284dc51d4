"""The order that holds little memory."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given

from autoshard.lowering.memory_scheduler import (
    Work,
    _depth_first,
    _most_live,
    _visited,
    memory_orders,
    users_of,
)
from tests.lowering.works import assert_all_run, live_bytes, works


def memory_order(found: Sequence[Work]) -> list[int]:
    """The order that is taken where this is all of the program."""
    orders = memory_orders(found)
    return orders.places[orders.best]


def test_what_frees_more_runs_first() -> None:
    found = [Work(num_bytes=4), Work((0,), 8), Work((0,), 1), Work((1, 2))]
    assert memory_order(found) == [0, 2, 1, 3]


def test_a_body_in_which_all_is_computed_with_its_reader_runs_nothing() -> None:
    assert memory_order([]) == []


def test_a_gradient_is_made_before_the_activation_of_the_layer_before_it() -> None:
    """Backward through three layers: each gradient frees the activation that it reads."""
    forward = [Work(num_bytes=4), Work((0,), 4), Work((1,), 4)]
    back = [Work((2,), 4), Work((1, 3), 1, is_kept=True), Work((3,), 4), Work((0, 5), 1, True)]
    order = memory_order([*forward, *back])
    assert order.index(4) < order.index(6)
    assert live_bytes([*forward, *back], order) == 16


NUM_LAYERS = 12


def trained_layers() -> list[Work]:
    """Layers with residual connections, their gradients, and updates from the first layer on."""
    found = [Work(num_bytes=4)]
    acts, gradients = [0], []

    def add(needs: tuple[int, ...], num_bytes: int, is_kept: bool = False) -> int:
        found.append(Work(needs, num_bytes, is_kept))
        return len(found) - 1

    weights = [add((), 2) for _ in range(NUM_LAYERS)]
    for weight in weights:
        inner = add((acts[-1], weight), 4)
        acts.append(add((acts[-1], inner), 4))
    cotangent = add((acts[-1],), 4)
    for act, weight in zip(reversed(acts[:-1]), reversed(weights), strict=True):
        gradients.append(add((act, cotangent), 1))
        inner = add((cotangent, act, weight), 4)
        cotangent = add((cotangent, inner), 4)
    for gradient in reversed(gradients):
        add((gradient,), 1, True)
    return found


def test_depth_first_the_last_layer_is_updated_first_though_its_update_is_written_last() -> None:
    """Else the gradients of all activations wait for those of the weights."""
    found = trained_layers()
    users = users_of([one.needs for one in found])
    roots = [place for place, one in enumerate(users) if not one]
    order = _depth_first(found, users, roots, _visited(found, roots, None))
    updates = [place for place in order if found[place].is_kept]
    assert updates == sorted(updates, reverse=True)


def test_what_runs_in_the_kernel_of_another_runs_right_behind_it() -> None:
    """The larger result is made last where it has a kernel of its own."""
    alone = [Work(num_bytes=1), Work((0,), 1), Work((0,), 8, True), Work((1,), 1, True)]
    assert memory_order(alone)[-1] == 2
    joined = [*alone[:2], Work((1,), 8, True, joins=1), alone[3]]
    assert memory_order(joined) == [0, 1, 2, 3]


def test_what_is_written_to_a_donated_argument_takes_nothing() -> None:
    """The update of the state waits in the one order, and takes its bytes in the other."""
    made = [Work(num_bytes=8), Work((0,), 2), Work((1,), 9, True), Work((0, 1), 1, True)]
    assert memory_order(made) == [0, 1, 3, 2]
    in_place = [made[0], made[1], Work((1,), 9, True, is_in_place=True), made[3]]
    users = users_of([one.needs for one in in_place])
    assert _most_live(in_place, users, [0, 1, 2, 3], 0) == 11


def test_results_are_visited_in_their_order() -> None:
    found = [Work(), Work((0,), 1, True), Work((0,), 1, True)]
    assert _visited(found, (2, 1), None) == [0, 2, 1]


@given(works())
def test_all_runs_once_after_what_it_needs(found: list[Work]) -> None:
    assert_all_run(found, memory_order(found))


def test_a_called_body_holds_its_own_while_it_runs_in_each_order() -> None:
    called = [Work(num_bytes=4), Work((0,), 1, called_bytes=(10, 20, 30)), Work((1,), 2, True)]
    assert memory_orders(called).held == (15, 25, 35)
