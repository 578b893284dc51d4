"""Distributions drawn as text."""

from __future__ import annotations

from autoshard.loops import draw_maps, parse_distribution


def test_points_and_processors_of_one_colour_share_a_letter() -> None:
    assert draw_maps(parse_distribution("T xy -> xy0 M"), (4, 4), (2, 2, 2)) == (
        "T xy -> xy0 M\n"
        "\n"
        "T[:,:]      M[0,:,:]\n"
        "  a a b b     a .\n"
        "  a a b b     b .\n"
        "  c c d d   M[1,:,:]\n"
        "  c c d d     c .\n"
        "              d .\n"
        "\n"
        "colour a = (x 0, y 0), b = (x 0, y 1), c = (x 1, y 0), d = (x 1, y 1)"
    )


def test_a_dealt_out_vector_shows_its_turns() -> None:
    assert draw_maps(parse_distribution("T x -> x% M"), (8,), (4,)) == (
        "T x -> x% M\n"
        "\n"
        "T[:]                M[:]\n"
        "  a b c d a b c d     a b c d\n"
        "\n"
        "colour a = (x 0), b = (x 1), c = (x 2), d = (x 3)"
    )


def test_a_copied_scalar_has_one_colour() -> None:
    assert draw_maps(parse_distribution("a -> ** M"), (), (2, 2)) == (
        "a -> ** M\n\na     M[:,:]\n  a     a a\n        a a\n\none colour"
    )


def test_more_colours_than_letters_take_two() -> None:
    drawn = draw_maps(parse_distribution("T x -> x M"), (64,), (64,))
    assert "aa = (x 62), ab = (x 63)" in drawn
