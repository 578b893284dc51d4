"""The rules, one function each: look at one node, shrink the graph around it if they can.

Every rule keeps at least one best answer (cheapest among those that fit the memory limit), and the
record in `ChoiceGraph.undo` turns it back into a best answer of the original.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from solvers.kernels import compiled
from solvers.presolve.graph import ChoiceGraph, Term
from solvers.problem import IntArray
from solvers.saturating import FORBIDDEN_FROM, add, is_allowed

Rule = Callable[[ChoiceGraph, int], None]

MOST_PARTNERS_TO_MOVE = 4
"""A follower with more neighbours than this is merged only if its tables do not grow."""

_BLOCKED = 2**61


def forbid(graph: ChoiceGraph, node: int) -> None:
    """Removes choices that are forbidden or have no allowed partner at some neighbour."""
    compute = graph.cache.compute
    costs = graph.costs_of(node)
    found = [compute(_forbidden, costs)]
    for other in graph.neighbours[node]:
        table, axis = graph.base_table(node, other), 1 if node < other else 0
        found.append(compute(_without_partner, table, extra=(axis,)))
    lost = [choices for choices in found if choices.size]
    if lost:
        keep = np.ones(len(costs), dtype=bool)
        keep[np.concatenate(lost)] = False
        graph.keep_choices(node, keep)


def _forbidden(costs: IntArray) -> IntArray:
    """Returns int64[forbidden choices]."""
    return np.flatnonzero(~is_allowed(costs))


def _without_partner(table: IntArray, axis: int) -> IntArray:
    """Returns int64[choices that are forbidden with all of the other's]."""
    is_turned = axis == 0
    alone = np.zeros(table.shape[1 if is_turned else 0], dtype=bool)
    _find_alone(table, is_turned, alone)
    return np.flatnonzero(alone)


@compiled
def _find_alone(table: IntArray, is_turned: bool, alone: npt.NDArray[np.bool_]) -> None:
    """Sets per row, or per column of a turned table, whether all its entries are forbidden."""
    for choice in range(len(alone)):
        alone[choice] = True
        for other in range(table.shape[0 if is_turned else 1]):
            paid = table[other, choice] if is_turned else table[choice, other]
            if paid < FORBIDDEN_FROM:
                alone[choice] = False
                break


def decompose(graph: ChoiceGraph, node: int) -> None:
    """Drops pairs whose table is a row term plus a column term, into the nodes' costs."""
    for other in sorted(graph.neighbours[node]):
        if other < node or (node, other) in graph.pair_terms:
            continue
        table = graph.tables[node, other]
        rows = graph.cache.compute(_row_term_if_decomposable, table)
        if rows.size:
            graph.add_node_costs(node, rows)
            graph.add_node_costs(other, graph.cache.compute(_first_row, table))
            graph.drop_pair(node, other)


def _first_row(table: IntArray) -> IntArray:
    row: IntArray = table[0]
    return row


def _row_term_if_decomposable(table: IntArray) -> IntArray:
    """Returns int64[rows], 0 first, such that ``table - row`` is the same in all rows.

    Empty where no rows are.
    """
    if not _is_decomposable(table):
        return np.empty(0, dtype=np.int64)
    return np.asarray(table[:, 0] - table[0, 0], dtype=np.int64)


@compiled
def _is_decomposable(table: IntArray) -> bool:
    """Returns True if nothing is forbidden and each row is the first plus one number."""
    for x in range(table.shape[0]):
        more = table[x, 0] - table[0, 0]
        for y in range(table.shape[1]):
            if table[x, y] >= FORBIDDEN_FROM or table[x, y] - table[0, y] != more:
                return False
    return True


def fix_single(graph: ChoiceGraph, node: int) -> None:
    """Takes out a node with one choice."""
    if len(graph.costs_of(node)) == 1:
        graph.fix(node)


def merge_forced(graph: ChoiceGraph, node: int) -> None:
    """Takes out neighbours whose choice follows from this node's choice."""
    for other in sorted(graph.neighbours[node]):
        if other not in graph.neighbours[node]:
            continue
        table, is_turned = graph.base_table(node, other), node > other
        partner = graph.cache.compute(_only_partner, table, extra=(is_turned,))
        if not partner.size:
            continue
        does_grow = table.shape[1 if is_turned else 0] > table.shape[0 if is_turned else 1]
        degree = len(graph.neighbours[other])
        if does_grow and degree > MOST_PARTNERS_TO_MOVE:
            continue
        is_later = not does_grow and degree > len(graph.neighbours[node])
        if is_later and graph.cache.compute(_met_twice, partner).size == 0:
            continue  # The other end merges into this one's place when its turn comes.
        graph.merge(other, node, partner)


def _only_partner(table: IntArray, is_turned: bool) -> IntArray:
    """Returns int64[rows]: the one column each row allows; empty if one allows another number."""
    partner = np.empty(table.shape[1 if is_turned else 0], dtype=np.int64)
    return partner if _has_one_partner(table, is_turned, partner) else partner[:0]


@compiled
def _has_one_partner(table: IntArray, is_turned: bool, partner: IntArray) -> bool:
    """Returns True if each row, or column of a turned table, allows one entry; sets its place."""
    for choice in range(len(partner)):
        num_allowed = 0
        for other in range(table.shape[0 if is_turned else 1]):
            paid = table[other, choice] if is_turned else table[choice, other]
            if paid < FORBIDDEN_FROM:
                num_allowed += 1
                partner[choice] = other
            if num_allowed > 1:
                break
        if num_allowed != 1:
            return False
    return True


def _met_twice(partner: IntArray) -> IntArray:
    """Returns int64[choices that are the partner of more than one]."""
    return np.flatnonzero(np.bincount(partner) > 1)


def merge_leaf(graph: ChoiceGraph, node: int) -> None:
    """Takes out a node with one neighbour if each choice there leaves it one choice to want.

    That is the cheapest with the neighbour's choice, if it holds least at every time as well.
    """
    if len(graph.neighbours[node]) != 1:
        return
    (leader,) = graph.neighbours[node]
    if graph.terms_between(node, leader):
        return
    key = (merge_leaf, *graph.surroundings(node))
    wanted = graph.cache.recall(key, lambda: _wanted_at_leaf(graph, node, leader))
    if wanted.size:
        graph.merge(node, leader, wanted)


def _wanted_at_leaf(graph: ChoiceGraph, node: int, leader: int) -> IntArray:
    """Returns int64[choices of the leader]: what the leaf wants with each; empty if it depends."""
    nothing = np.empty(0, dtype=np.int64)
    costs = add(graph.table(leader, node), graph.costs_of(node)[None, :])
    allowed = is_allowed(costs)
    if not allowed.any(axis=1).all():
        return nothing  # `forbid` comes first
    wanted = costs == costs.min(axis=1)[:, None]
    for usage in usage_by_time(graph.node_terms[node]):
        held = np.where(allowed, usage[None, :], _BLOCKED)
        wanted &= held == held.min(axis=1)[:, None]
        if not wanted.any(axis=1).all():
            return nothing
    return np.asarray(wanted.argmax(axis=1), dtype=np.int64)


def drop_dominated(graph: ChoiceGraph, node: int) -> None:
    """Drops a choice where another never costs more, whatever the neighbours choose.

    Choice s goes if for some p: ``c_p - c_s + sum over neighbours of max_t(M[p,t] - M[s,t]) <= 0``
    and p holds no more memory at any time, on the node and on each pair.
    """
    costs = graph.costs_of(node)
    if len(costs) == 1 or costs.max() >= FORBIDDEN_FROM:
        return
    key = (drop_dominated, *graph.surroundings(node))
    keep = graph.cache.recall(key, lambda: _undominated(graph, node))
    if not keep.all():
        graph.keep_choices(node, keep)


def _undominated(graph: ChoiceGraph, node: int) -> npt.NDArray[np.bool_]:
    """Returns bool[choices]: those that no other beats; of equal choices the first stays.

    To beat is transitive: a choice that is beaten need not be compared with any further one. So
    each is compared with the most likely one first, and what is left with all that is left.
    """
    costs = graph.costs_of(node)
    keep = np.ones(len(costs), dtype=bool)
    others = sorted(graph.neighbours[node])
    tables = {other: _with_partner_first(graph, node, other) for other in others}
    total = costs[None, :] - costs[:, None]  # [s, p]: what p costs more than s, at least
    for table in tables.values():
        _add_least_excess(table, graph.cache.compute(_liked, table), total)
    np.fill_diagonal(total, _BLOCKED)
    for usage in usage_by_time(graph.node_terms[node]):
        _block_holding_more(usage, total)
    likely = total.argmin(axis=1)
    first = np.flatnonzero(total[np.arange(len(costs)), likely] <= 0)
    if not first.size:
        return keep
    p1, s1, excess = _those_beating(graph, node, tables, likely[first], first, total)
    keep[s1[(p1 < s1) | (excess < 0)]] = False
    left = np.flatnonzero(keep)
    s, p = np.nonzero(total.take(left, 0).take(left, 1) <= 0)
    p, s, _ = _those_beating(graph, node, tables, left[p], left[s], total)
    beats = np.zeros((len(costs),) * 2, dtype=bool)
    beats[p, s] = True
    keep[s[(p < s) | ~beats[s, p]]] = False
    return keep


def _those_beating(
    graph: ChoiceGraph,
    node: int,
    tables: Mapping[int, IntArray],
    p: IntArray,
    s: IntArray,
    total: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """Returns the pairs in which p beats s on all edges, and what p costs more than s, at most.

    Args:
        graph: The graph.
        node: Whose choices these are.
        tables: By neighbour, the partners in the rows.
        p: int64[pairs].
        s: int64[pairs].
        total: int64[choices, choices]: by s and p, what p costs more than s, at least.
    """
    excess = total[s, p]
    for other, table in tables.items():
        # One by one, the least each may add is replaced by what it adds.
        if not p.size:
            break
        liked = graph.cache.compute(_liked, table)[s]
        excess = excess - (table[liked, p] - table[liked, s])
        most, own = np.minimum(-excess, FORBIDDEN_FROM - 1), np.empty_like(excess)
        _find_excess(_with_own_first(graph, node, other), p, s, most, own)
        may_beat = own <= most
        p, s, excess = p[may_beat], s[may_beat], (excess + own)[may_beat]
    for other in tables:
        terms = graph.terms_between(node, other)
        if terms and p.size:
            times, usages = _live_sets(terms)
            no_more = np.empty(len(p), dtype=bool)
            _find_holding_no_more(times, np.stack(usages), p, s, no_more)
            p, s, excess = p[no_more], s[no_more], excess[no_more]
    return p, s, excess


def _with_partner_first(graph: ChoiceGraph, node: int, other: int) -> IntArray:
    """Returns int64[choices of other, choices of node], one array for equal tables."""
    table = graph.base_table(node, other)
    return table if node > other else _turned(graph, table)


def _with_own_first(graph: ChoiceGraph, node: int, other: int) -> IntArray:
    """Returns int64[choices of node, choices of other], one array for equal tables."""
    table = graph.base_table(node, other)
    return table if node < other else _turned(graph, table)


def _turned(graph: ChoiceGraph, table: IntArray) -> IntArray:
    return graph.cache.recall((_turned, id(table)), lambda: np.ascontiguousarray(table.T))


def _liked(table: IntArray) -> IntArray:
    """Returns int64[choices]: the partner each likes best, partners in the table's rows."""
    liked = np.zeros(table.shape[1], dtype=np.int64)
    _find_liked(table, table[0].copy(), liked)
    return liked


@compiled
def _find_liked(table: IntArray, least: IntArray, liked: IntArray) -> None:
    """Sets ``liked[y]`` to the first row with the least of a column; `least` starts as row 0."""
    for x in range(1, table.shape[0]):
        row = table[x]
        for y in range(len(liked)):
            liked[y] = x if row[y] < least[y] else liked[y]
            least[y] = min(row[y], least[y])


@compiled
def _block_holding_more(usage: IntArray, total: IntArray) -> None:
    """Sets ``total[s, p]`` to `_BLOCKED` where p holds more than s."""
    for s in range(len(usage)):
        for p in range(len(usage)):
            if usage[p] > usage[s]:
                total[s, p] = _BLOCKED


@compiled
def _add_least_excess(table: IntArray, liked: IntArray, total: IntArray) -> None:
    """Adds to each ``total[s, p]`` what p costs above s with the partner s likes best.

    Args:
        table: int64[partners, choices].
        liked: int64[choices]: that partner.
        total: int64[choices, choices]; `_BLOCKED` at most.
    """
    num_choices = len(liked)
    for s in range(num_choices):
        row, sums = table[liked[s]], total[s]
        least = row[s]
        for p in range(num_choices):
            excess = row[p] - least
            sums[p] = min(sums[p] + (_BLOCKED if excess >= FORBIDDEN_FROM else excess), _BLOCKED)


@compiled
def _find_excess(
    table: IntArray, p: IntArray, s: IntArray, most: IntArray, excess: IntArray
) -> None:
    """Sets the most that each p costs above its s, over the partners s is allowed with.

    Where that is above `most`, any partner that tells so will do: the one of the pair before first.
    """
    telling = 0
    for pair in range(len(p)):
        found = table[p[pair], telling] - table[s[pair], telling]
        if found <= most[pair]:
            for partner in range(table.shape[1]):
                found = max(found, table[p[pair], partner] - table[s[pair], partner])
                if found > most[pair]:
                    telling = partner
                    break
        excess[pair] = found


@compiled
def _find_holding_no_more(
    times: IntArray, usages: IntArray, p: IntArray, s: IntArray, no_more: npt.NDArray[np.bool_]
) -> None:
    """Sets per pair whether p holds no more than s at any time, whatever the partner chooses.

    Args:
        times: int64[sets, usages]: how often each usage counts in the sets that are live together.
        usages: int64[usages, choices, partners].
        p: int64[pairs].
        s: int64[pairs].
        no_more: bool[pairs].
    """
    for pair in range(len(p)):
        no_more[pair] = True
        for live in times:
            for partner in range(usages.shape[2]):
                more = 0
                for kind in range(len(live)):
                    if live[kind]:
                        own = usages[kind, p[pair], partner] - usages[kind, s[pair], partner]
                        more += live[kind] * own
                if more > 0:
                    no_more[pair] = False
                    break
            if not no_more[pair]:
                break


def usage_by_time(terms: list[Term]) -> list[IntArray]:
    """Returns the summed usage of every set of terms that is live at one time, each set once."""
    if not terms:
        return []
    times, usages = _live_sets(terms)
    return list(np.tensordot(times, np.stack(usages), 1))


def _live_sets(terms: list[Term]) -> tuple[IntArray, list[IntArray]]:
    """Returns the sets of terms that are live at one time, each once, and their usages.

    Copies of a part that make one choice hold the same at many times. Sums that are multiples of
    one another, which rules read alike, count as one.

    Returns:
        int64[sets, usages]: how often each usage is live, and the usages.
    """
    usages = {id(term.usage): term.usage for term in terms}
    if len(usages) == 1:
        return np.ones((1, 1), dtype=np.int64), list(usages.values())
    place = {key: i for i, key in enumerate(usages)}
    bounds = np.array([(term.start, term.stop) for term in terms], dtype=np.int64)
    kinds = np.array([place[id(term.usage)] for term in terms], dtype=np.int64)
    moments, at = np.unique(bounds, return_inverse=True)
    starts, stops = at.reshape(-1, 2).T
    change = np.zeros((len(moments), len(usages)), dtype=np.int64)
    np.add.at(change, (starts, kinds), 1)
    np.subtract.at(change, (stops, kinds), 1)
    live = np.cumsum(change, axis=0)
    live //= np.maximum(np.gcd.reduce(live, axis=1), 1)[:, None]
    sets = dict.fromkeys(map(np.ndarray.tobytes, live[live.any(axis=1)]))
    times = np.frombuffer(bytearray().join(sets), np.int64).reshape(-1, len(usages))
    return times, list(usages.values())


STRUCTURAL_RULES: tuple[Rule, ...] = (forbid, decompose, fix_single, merge_forced)
"""Those that look only at what is allowed and at the shape of tables: fast on any problem."""

ALL_RULES: tuple[Rule, ...] = (*STRUCTURAL_RULES, merge_leaf, drop_dominated)

LONG_RULES: tuple[Rule, ...] = (drop_dominated,)
"""Those that compare every two choices: they wait until no other rule finds anything."""
