"""Which results replace which donated arguments."""

from __future__ import annotations

from autoshard.wishes.carried import carried_pairs

MATRIX = ((8, 8), "float32")
VECTOR = ((8,), "float32")


def test_the_path_within_the_state_decides() -> None:
    pairs = carried_pairs(
        ["state['w']", "state['v']", "batch['x']"],
        [MATRIX, MATRIX, MATRIX],
        [True, True, False],
        ["result[0]['v']", "result[0]['w']", "result[1]"],
        [MATRIX, MATRIX, MATRIX],
    )
    assert pairs == ((0, 1), (1, 0))


def test_arguments_that_are_not_given_up_are_not_carried() -> None:
    assert carried_pairs(["state['w']"], [MATRIX], [False], ["result['w']"], [MATRIX]) == ()


def test_another_type_is_no_replacement() -> None:
    assert carried_pairs(["state['w']"], [MATRIX], [True], ["result['w']"], [VECTOR]) == ()
    half = ((8, 8), "bfloat16")
    assert carried_pairs(["state['w']"], [MATRIX], [True], ["result['w']"], [half]) == ()


def test_what_no_name_decides_goes_by_order_among_equal_types() -> None:
    pairs = carried_pairs(
        ["a", "b", "c"],
        [MATRIX, VECTOR, MATRIX],
        [True, True, True],
        ["result[0]", "result[1]", "result[2]"],
        [VECTOR, MATRIX, MATRIX],
    )
    assert pairs == ((0, 1), (1, 0), (2, 2))


def test_names_are_matched_before_order() -> None:
    pairs = carried_pairs(
        ["x", "state.w"],
        [MATRIX, MATRIX],
        [True, True],
        ["result[0].w", "result[1]"],
        [MATRIX, MATRIX],
    )
    assert pairs == ((0, 1), (1, 0))


def test_each_result_replaces_one_argument() -> None:
    pairs = carried_pairs(
        ["a['w']", "b['w']", "c['w']"],
        [MATRIX] * 3,
        [True] * 3,
        ["result[0]['w']", "result[1]['w']"],
        [MATRIX] * 2,
    )
    assert pairs == ((0, 0), (1, 1))


def test_of_two_results_that_end_alike_the_one_with_nothing_before_is_meant() -> None:
    pairs = carried_pairs(
        ["state['params']['w']", "state['slow']['params']['w']"],
        [MATRIX] * 2,
        [True] * 2,
        ["result['slow']['params']['w']", "result['params']['w']"],
        [MATRIX] * 2,
    )
    assert pairs == ((0, 1), (1, 0))
