"""Who sends what to whom, in rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoshard.loops.delivery import delivery_rounds


def test_one_piece_for_all_takes_the_rounds_of_a_binomial_tree() -> None:
    wants: dict[tuple[int, ...], list[str]] = {(p,): ["piece"] for p in range(8)}
    rounds = delivery_rounds(wants, {"piece": [(0,)]}, (8,))
    assert [len(handovers) for handovers in rounds] == [1, 2, 4]


def test_a_shift_takes_one_round() -> None:
    wants: dict[tuple[int, ...], list[int]] = {(p,): [(p + 1) % 4] for p in range(4)}
    holders = {p: [(p,)] for p in range(4)}
    assert [len(h) for h in delivery_rounds(wants, holders, (4,))] == [4]


@given(
    wants=st.dictionaries(
        st.tuples(st.integers(0, 5)), st.lists(st.integers(0, 3), max_size=3), max_size=6
    ),
    homes=st.lists(st.integers(0, 5), min_size=4, max_size=4),
)
def test_every_piece_arrives_once_from_someone_who_has_it(
    wants: dict[tuple[int, ...], list[int]], homes: list[int]
) -> None:
    holders = {key: [(home,)] for key, home in enumerate(homes)}
    has = {(home, key) for key, home in enumerate(homes)}
    arrived: list[tuple[tuple[int, ...], int]] = []
    for handovers in delivery_rounds(wants, holders, (6,)):
        assert len({h.source for h in handovers}) == len(handovers)
        assert len({h.target for h in handovers}) == len(handovers)
        for h in handovers:
            assert (h.source[0], h.key) in has
            assert h.is_from_home == (h.source == (homes[h.key],))
        has |= {(h.target[0], h.key) for h in handovers}
        arrived += [(h.target, h.key) for h in handovers]
    needed = [
        (target, key)
        for target, keys in wants.items()
        for key in dict.fromkeys(keys)
        if target != (homes[key],)
    ]
    assert sorted(arrived) == sorted(needed)
