"""Whole programs at random: one for each number."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.soak.body_texts import write_steps
from tests.soak.program import Asked, Body, Program, Spec, Type
from tests.soak.writer import FLOATS, INTEGERS, Writer

MESHES = ((8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 2, 2, 1), (8, 1))
HARDWARE = ("cpu-host",) * 6 + ("tpu-v5e", "tpu-v5p", "h100", "a100-80gb")
SIZES = (8, 8, 8, 16, 16, 24, 4, 4, 2, 1, 3, 5, 7, 13, 32)


def program_of(number: int, seed: int = 0) -> Program:
    """The program of a number."""
    rng = Random(f"{seed}/{number}")
    w = Writer(rng, rng.choice(MESHES))
    sizes = [rng.choice(SIZES) for _ in range(3)]
    if rng.random() < 0.03:
        sizes[0] = 0
    parameters = []
    for place in range(rng.randint(2, 4)):
        name = w.name()
        kind = _type(rng, sizes, is_first=place == 0)
        parameters.append((name, kind))
        w.known[name] = kind
    arguments = set(w.known)
    write_steps(w, rng.randint(4, 18))
    made = [name for name in w.known if name not in arguments and w.known[name].dtype != "int4"]
    results = made[-1:] + rng.sample(made[:-1], min(len(made[:-1]), rng.randint(0, 3)))
    if not results or rng.random() < 0.05:
        results.append(parameters[0][0])  # handed on as it is
    if rng.random() < 0.05:
        results.append(results[0])  # one value, twice
    main = _named(w, parameters, results)
    return Program(main, _asked(w, parameters, results))


def _named(w: Writer, parameters: list[tuple[str, Type]], results: list[str]) -> Body:
    return replace(w.body(results, parameters), name="main").live()


def _type(rng: Random, sizes: list[int], *, is_first: bool) -> Type:
    roll = rng.random()
    if is_first or roll < 0.7:
        dtype = "float32"
    elif roll < 0.8:
        dtype = rng.choice(FLOATS)
    elif roll < 0.9:
        dtype = rng.choice(INTEGERS)
    else:
        dtype = rng.choice(["bool", "complex64", "int32", "int4", "float8_e4m3fn"])
    if dtype == "int32" and rng.random() < 0.6:
        return Type((), dtype)
    rank = rng.choice([1, 2, 2, 2, 3, 3, 4])
    shape = [rng.choice(sizes) if rng.random() < 0.7 else rng.choice(SIZES) for _ in range(rank)]
    while rank > 2 and _elements(shape) > 4_000:
        shape[rng.randrange(rank)] = 2
    return Type(tuple(shape), dtype)


def _elements(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _asked(w: Writer, parameters: list[tuple[str, Type]], results: list[str]) -> Asked:
    rng = w.rng

    def some(kind: Type, share: float) -> Spec | None:
        return w.spec(kind.shape) if rng.random() < share else None

    share = rng.choice([0.0, 0.3, 0.8])
    arguments = tuple(some(kind, share) for _, kind in parameters)
    ended = tuple(some(w.known[name], share) for name in results)
    kinds = [w.known[name] for name in results]
    replaced = [place for place, (_, kind) in enumerate(parameters) if kind in kinds]
    donated = tuple(place for place in replaced if rng.random() < 0.5)
    free = [place for place, spec in enumerate(arguments) if spec is None]
    pinned = tuple(
        (place, w.spec(parameters[place][1].shape)) for place in free if rng.random() < 0.1
    )
    pairs = [
        (i, j)
        for i in free
        for j in free
        if i < j and parameters[i][1].shape == parameters[j][1].shape and parameters[i][1].shape
    ]
    return Asked(
        mesh=w.mesh,
        hardware=rng.choice(HARDWARE),
        arguments=arguments,
        results=ended,
        donated=donated,
        pinned=pinned if rng.random() < 0.5 else (),
        alike=rng.choice(pairs) if pairs and rng.random() < 0.1 else None,
        budget=rng.choice([0.6, 0.8, 0.95, 1.05]) if rng.random() < 0.25 else None,
    )
