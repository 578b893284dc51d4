"""Segments end where little is alive."""

from __future__ import annotations

from autoshard.remat.segments import cut_into_segments


def test_layers_are_cut_between_their_residual_streams() -> None:
    """Four layers that make 8 + 1 bytes each; between them one byte is alive."""
    made = [8, 1] * 4
    alive = [0, 9] + [1, 9] * 3
    assert cut_into_segments(made, alive) == (0, 0, 1, 1, 2, 2, 3, 3)


def test_a_pass_with_much_alive_everywhere_stays_whole() -> None:
    assert cut_into_segments([1, 1, 1, 1], [0, 50, 50, 50]) == (0, 0, 0, 0)


def test_no_equations_have_no_segments() -> None:
    assert cut_into_segments([], []) == ()
