"""Loop nests as text after each step."""

from __future__ import annotations

from autoshard.loops import Schedule, format_foralls, format_pseudo_code, schedule


def summa_steps() -> list[Schedule]:
    start = schedule("A(i,j) += B(i,k) * C(k,j)", i=8, j=8, k=8)
    spread = start.distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
    divided = spread.divide("k", "ko", "ki", 2)
    reordered = divided.reorder("ko", "ii", "ji", "ki")
    placed = reordered.communicate("A", "jo")
    return [start, spread, divided, reordered, placed, placed.communicate(("B", "C"), "ko")]


STATEMENT = "A(i,j) += B(i,k) * C(k,j)"
PARTS = "divide(i, io, ii, 2) and divide(j, jo, ji, 2)"


def test_every_step_of_summa_prints_its_nest_in_one_line() -> None:
    grid = "Distributed(1)"
    assert [format_foralls(step) for step in summa_steps()] == [
        f"forall(i, forall(j, forall(k, {STATEMENT})))",
        f"suchthat(forall(io, forall(jo, forall(ii, forall(ji, forall(k, {STATEMENT}))), {grid}),"
        f" Distributed(0)), {PARTS})",
        "suchthat(forall(io, forall(jo, forall(ii, forall(ji, forall(ko, forall(ki,"
        f" {STATEMENT})))), {grid}), Distributed(0)), {PARTS} and divide(k, ko, ki, 2))",
        "suchthat(forall(io, forall(jo, forall(ko, forall(ii, forall(ji, forall(ki,"
        f" {STATEMENT})))), {grid}), Distributed(0)), {PARTS} and divide(k, ko, ki, 2))",
        "suchthat(forall(io, forall(jo, forall(ko, forall(ii, forall(ji, forall(ki,"
        f" {STATEMENT})))), {grid}, transfers: transfer(A(i,j))), Distributed(0)), {PARTS} and"
        " divide(k, ko, ki, 2))",
        "suchthat(forall(io, forall(jo, forall(ko, forall(ii, forall(ji, forall(ki,"
        f" {STATEMENT}))), transfers: transfer(B(i,k)), transfer(C(k,j))), {grid}, transfers:"
        f" transfer(A(i,j))), Distributed(0)), {PARTS} and divide(k, ko, ki, 2))",
    ]


def test_summa_reads_as_a_program() -> None:
    assert format_pseudo_code(summa_steps()[-1]) == (
        "on dimension 0 of the grid, io in 0..2:\n"
        "    on dimension 1 of the grid, jo in 0..2:\n"
        "        for ko in 0..2:\n"
        "            bring B(i,k): 4 x 4\n"
        "            bring C(k,j): 4 x 4\n"
        "            for ii in 0..4:\n"
        "                i = io * 4 + ii\n"
        "                for ji in 0..4:\n"
        "                    j = jo * 4 + ji\n"
        "                    for ki in 0..4:\n"
        "                        k = ko * 4 + ki\n"
        "                        A(i,j) += B(i,k) * C(k,j)\n"
        "        send A(i,j) to where it lives, adding"
    )


def test_a_rotation_says_what_its_loop_stands_for() -> None:
    nest = summa_steps()[3].rotate("ko", ("io", "jo"), "kos").communicate(("B", "C"), "kos")
    assert format_foralls(nest).endswith(" and rotate(ko, {io, jo}, kos))")
    assert "for kos in 0..2:\n            ko = (kos + io + jo) mod 2\n" in format_pseudo_code(nest)


def test_a_mirrored_rotation_says_both_ways() -> None:
    nest = schedule("A(i,j) += B(i,k) * C(k,j)", i=8, j=8, k=8)
    nest = nest.distribute(("j",), ("jo",), ("ji",), (2,)).divide("i", "io", "ii", 2)
    nest = nest.divide("ii", "ih", "il", 2).reorder("io", "ih", "ji", "il")
    nest = nest.rotate("io", ("jo",), "ios", mirrored="ih")
    assert format_foralls(nest).endswith(" and rotate(io, {jo}, ios, mirrored=ih))")
    assert "io = ((ios if ih == 0 else -ios) + jo) mod 2" in format_pseudo_code(nest)


def test_a_scalar_is_brought_as_one_number() -> None:
    nest = schedule("A(i) += B(i) * s()", i=4).distribute(("i",), ("io",), ("ii",), (2,))
    code = format_pseudo_code(nest.communicate(("A", "B", "s"), "io"))
    assert "bring s(): one number" in code
