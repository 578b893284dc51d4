"""Where a processor adds up, and how sums get home, decided digit by digit."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoshard.errors import ScheduleError
from autoshard.loops.bringing import Lane, lanes_at, passing
from autoshard.loops.digits import Digit, digits_of
from autoshard.loops.distribution_text import format_distribution
from autoshard.loops.holdings import Coordinates, grid_points
from autoshard.loops.placed import Placed, box_within


@dataclass(eq=False)
class Sending:
    """How the result of a schedule is added up and brought home.

    * Over a grid dimension along which terms are summed: a reduce-scatter if it cuts the result at
      home, else an all-reduce.
    * Over one along which the result was cut but is held everywhere at home: an all-gather.
    * Communicated in a rotated loop, the sums themselves travel: each processor adds its term to
      what it got and passes it on, so that a sum is at home when its last term is added.

    Args:
        placed: The schedule and the homes.
        digits: Of the result.
        depth: The number of time loops around the place where sums begin.
        lanes: Of which sums are kept one by one.
        fixed: The loops that are fixed at that place.
        offsets: For each lane, where the next turn's sum comes from; None if sums do not travel.

    Raises:
        ScheduleError: The result ends up elsewhere than at home in a way that none of these mends.
    """

    placed: Placed
    digits: tuple[Digit, ...] = field(init=False)
    depth: int = field(init=False)
    lanes: tuple[Lane, ...] = field(init=False)
    fixed: frozenset[str] = field(init=False)
    offsets: dict[Lane, Coordinates] | None = field(init=False)

    def __post_init__(self) -> None:
        self.digits = digits_of(self.placed, self.tensor)
        self.depth = self.placed.schedule.depth(self.tensor)
        self.lanes, self.fixed = lanes_at(self.placed, self.tensor, self.depth)
        self.offsets = self.placed.passed_on(self.tensor)
        if self.depth > 0:
            self._check_travels()
        else:
            self._check_stays()

    @property
    def tensor(self) -> str:
        return self.placed.schedule.statement.result.tensor

    @property
    def free(self) -> tuple[Digit, ...]:
        """The digits of what a processor adds up."""
        schedule = self.placed.schedule
        return tuple(d for d in self.digits if not d.is_fixed(schedule, self.fixed))

    @property
    def scattered(self) -> tuple[int, ...]:
        """Grid dimensions of a reduce-scatter, in turn."""
        at_home = {digit.grid_dim for digit in self.digits}
        return tuple(g for g in self._summed if g in at_home)

    @property
    def reduced(self) -> tuple[int, ...]:
        """Grid dimensions of one all-reduce."""
        return tuple(g for g in self._summed if g not in self.scattered)

    @property
    def gathered(self) -> tuple[tuple[Digit, int], ...]:
        """Digits that are gathered at the end, and the grid dimension that each is spread over."""
        loops = {loop.variable: loop.grid_dim for loop in self.placed.schedule.grid_loops}
        return tuple(
            (digit, loops[digit.leaf] or 0)
            for digit in self.digits
            if digit.grid_dim is None and digit not in self.free and digit.leaf in loops
        )

    def passing(self, lane: Lane) -> tuple[tuple[Coordinates, Coordinates], ...]:
        """Sender and receiver of sums under way between turns."""
        assert self.offsets is not None
        return passing(self.placed, self.offsets[lane])

    @property
    def _summed(self) -> tuple[int, ...]:
        """Grid dimensions along which terms are summed when all turns are over."""
        schedule = self.placed.schedule
        leaves = {name for d in self.digits for name in schedule.loops_of(d.leaf)}
        indices = {
            loop for index in schedule.statement.result.indices for loop in schedule.loops_of(index)
        }
        known = leaves if self.depth > 0 else indices
        return tuple(g for g, loop in enumerate(schedule.grid_loops) if loop.variable not in known)

    def _check_travels(self) -> None:
        schedule = self.placed.schedule
        loop = schedule.time_loops[self.depth - 1].variable
        if self.offsets is None or not self._starts_at_home(loop):
            raise ScheduleError(
                f"{self.tensor} is sent home in every turn of {loop}, and its sums do not travel"
                " from neighbour to neighbour",
                where=f"communicate({self.tensor}, {schedule.communicated_at(self.tensor)})",
                fix="communicate the result at the last loop over the grid, or rotate"
                f" {loop} by the loop over which it is summed",
            )

    def _starts_at_home(self, loop: str) -> bool:
        return all(
            box_within(
                self.placed.needs(
                    self.tensor, {loop: 0, **dict(lane), **self.placed.at_processor(processor)}
                ),
                self.placed.held[self.tensor][processor],
            )
            for lane in self.lanes
            for processor in grid_points(self.placed.grid)
        )

    def _check_stays(self) -> None:
        schedule = self.placed.schedule
        for digit in self.digits:
            if digit.grid_dim is None or digit.is_own_coordinate(schedule):
                continue
            if digit.is_fixed(schedule, self.fixed) or digit.grid_dim not in self._summed:
                raise ScheduleError(
                    f"the pieces of {self.tensor} are computed along other dimensions of the grid"
                    f" than they live: dimension {digit.grid_dim}",
                    where=format_distribution(self.placed.home_of[self.tensor]),
                    fix=f"place {self.tensor} where it is computed, or distribute other loops",
                )
