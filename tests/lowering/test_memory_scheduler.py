"""The order that holds little memory."""

from __future__ import annotations

from hypothesis import given

from autoshard.lowering.memory_scheduler import (
    Work,
    _as_written,
    _depth_first,
    memory_order,
    users_of,
)
from tests.lowering.works import assert_all_run, live_bytes, works


def test_what_frees_more_runs_first() -> None:
    found = [Work(num_bytes=4), Work((0,), 8), Work((0,), 1), Work((1, 2))]
    assert memory_order(found) == [0, 2, 1, 3]


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
    order = _depth_first(found, users, _as_written(found, users))
    updates = [place for place in order if found[place].is_kept]
    assert updates == sorted(updates, reverse=True)


@given(works())
def test_all_runs_once_after_what_it_needs(found: list[Work]) -> None:
    assert_all_run(found, memory_order(found))
