"""What passes between a device and its host while loops compute, and what is waited for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoshard.planning.host_link import HostLink

BYTES_PER_SECOND = 1e9
sizes = st.integers(0, 4 * 10**11)  # waits of less than 1,000 s, the most that a price is
times = st.tuples(st.floats(0, 100), st.floats(0, 100))


def cost(link: HostLink, num_bytes: int) -> int:
    """The cheapest choice under which so many bytes pass."""
    sent = zip(link.left_bytes, link.wait_costs, strict=True)
    return min(int(waits) for left, waits in sent if num_bytes + left <= link.most_bytes)


def test_what_passes_while_loops_compute_costs_nothing() -> None:
    link = HostLink(BYTES_PER_SECOND, (1.0, 2.0), 5 * 10**9)
    assert cost(link, 10**9) == 0
    assert cost(link, 5 * 10**9) > 0


@given(seconds=times, offered=sizes, share=st.floats(0, 1))
def test_the_price_is_a_bound_of_the_waiting_and_less_than_an_eighth_too_low(
    seconds: tuple[float, float], offered: int, share: float
) -> None:
    link = HostLink(BYTES_PER_SECOND, seconds, offered)
    sent = int(share * offered)
    waits = 1e12 * sum(max(0.0, sent / BYTES_PER_SECOND - one) for one in seconds)
    at_least = 1e12 * sum(
        max(0.0, (sent / 1.15 - offered / 1000) / BYTES_PER_SECOND - one) for one in seconds
    )
    assert at_least - 2000 <= cost(link, sent) <= waits + 2000
