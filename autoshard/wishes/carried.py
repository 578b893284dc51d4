"""Which results become arguments of the next step, and so must keep their sharding."""

from __future__ import annotations

from collections.abc import Sequence

Type = tuple[tuple[int, ...], str]


def carried_pairs(
    argument_names: Sequence[str],
    argument_types: Sequence[Type],
    donated: Sequence[bool],
    result_names: Sequence[str],
    result_types: Sequence[Type],
    updated: Sequence[tuple[int, int]] = (),
) -> tuple[tuple[int, int], ...]:
    """Pairs `(argument, result)` of donated arguments and the results that replace them.

    A donated argument is matched with the result of the same type whose name ends in the same
    path and has least before it: `state['params']['w']` with `result[0]['params']['w']`. What no
    name decides goes by order among results of the same type, as buffers are reused.

    Args:
        argument_names: By flat argument.
        argument_types: Shape and element type of each.
        donated: Whether the caller gives each up.
        result_names: By flat result.
        result_types: Shape and element type of each.
        updated: Pairs that are known: a result replaces an argument in an object, donated or not.
    """
    taken = {result for _, result in updated}
    pairs = list(updated)
    paired = {argument for argument, _ in updated}
    left: list[int] = []
    by_suffix: dict[tuple[str, Type], list[int]] = {}
    for result, (name, kind) in enumerate(zip(result_names, result_types, strict=True)):
        for start, letter in enumerate(name):
            if letter in "[.":
                by_suffix.setdefault((name[start:], kind), []).append(result)
    for argument, name in enumerate(argument_names):
        if not donated[argument] or argument in paired:
            continue
        suffix = _suffix(name)
        kind = argument_types[argument]
        found = [r for r in by_suffix.get((suffix, kind), ()) if r not in taken] if suffix else []
        if found:
            nearest = min(found, key=lambda result: len(result_names[result]))
            taken.add(nearest)
            pairs.append((argument, nearest))
        else:
            left.append(argument)
    for argument in left:
        for result, kind in enumerate(result_types):
            if result not in taken and kind == argument_types[argument]:
                taken.add(result)
                pairs.append((argument, result))
                break
    return tuple(sorted(pairs))


def _suffix(name: str) -> str:
    places = [name.find(letter) for letter in "[." if letter in name]
    return name[min(places) :] if places else ""
