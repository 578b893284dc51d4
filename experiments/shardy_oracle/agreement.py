"""Whether our verdict and our text are those of Shardy, over many random texts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from autoshard.errors import ShardingError
from autoshard.sharding import (
    Mesh,
    find_manual_regions,
    format_manual_computation,
    format_mesh,
    format_op_sharding_rule,
    format_sharding,
    parse_manual_computation,
    parse_named_mesh,
    parse_op_sharding_rule,
    parse_sharding,
    resolve_mesh,
    verify_mesh,
    verify_op_sharding_rule,
    verify_sharding,
)
from experiments.shardy_oracle import random_regions, random_rules, random_shardings
from experiments.shardy_oracle.oracle import SdyOracle, mlir_type
from experiments.shardy_oracle.random_shardings import garbled

STRICTER = "expected one factor"
"""Begins our refusal of a set such as `{ij}`, which Shardy reads as `{i}`, dropping the rest."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What both sides say about one text.

    Args:
        text: What they were asked.
        ours: The text it prints as here, None where it is refused.
        theirs: Likewise in Shardy.
        is_stricter: Whether our refusal is one where we mean to differ from Shardy.
    """

    text: str
    ours: str | None
    theirs: str | None
    is_stricter: bool = False


@dataclass(slots=True)
class Agreement:
    """Counts over many texts, and the answers in which we and Shardy differ."""

    asked: int = 0
    accepted: int = 0
    stricter: int = 0
    different_verdicts: list[Answer] = field(default_factory=list)
    different_texts: list[Answer] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.asked += 1
        self.accepted += answer.theirs is not None
        if answer.is_stricter and answer.theirs is not None:
            self.stricter += 1
        elif (answer.ours is None) != (answer.theirs is None):
            self.different_verdicts.append(answer)
        elif answer.ours != answer.theirs:
            self.different_texts.append(answer)


def compare_sharding(oracle: SdyOracle, draw: random.Random) -> Answer:
    """A sharding on a mesh and a tensor: sound, damaged as a value, or damaged as text."""
    mesh, rank = draw.choice(random_shardings.MESHES), draw.randrange(4)
    sharding = random_shardings.sound_sharding(mesh, 0 if mesh.is_maximal else rank, draw)
    for _ in range(draw.choice([0, 0, 1, 2])):
        sharding = random_shardings.damaged(sharding, draw)
    text = format_sharding(sharding)
    if draw.random() < 0.3 and "\\" not in text:  # jaxlib aborts on names that are not UTF-8
        text = garbled(text, random_shardings.SHARDING_GARBLES, draw)
    return compare_sharding_text(oracle, text, mesh, rank)


def compare_sharding_text(oracle: SdyOracle, text: str, mesh: Mesh, rank: int) -> Answer:
    """A text without its `#sdy.sharding`, on a mesh called `mesh`."""
    ours = None
    try:
        sharding = parse_sharding(f"#sdy.sharding{text}")
        found = resolve_mesh(sharding, {"mesh": mesh})
        if not verify_sharding(sharding, found, (8,) * rank):
            ours = format_sharding(sharding)
    except ShardingError:
        pass
    verdict = oracle.sharding(text, [format_mesh(mesh, "mesh")], mlir_type((8,) * rank))
    return Answer(text, ours, verdict.accepted_text)


def compare_mesh(oracle: SdyOracle, draw: random.Random) -> Answer:
    """A mesh: sound, damaged as a value, or damaged as text."""
    text = format_mesh(random_shardings.random_mesh(draw), "mesh")
    if draw.random() < 0.3:
        head = len("sdy.mesh @mesh = ")
        text = text[:head] + garbled(text[head:], random_shardings.MESH_GARBLES, draw)
    ours = None
    try:
        name, mesh = parse_named_mesh(text)
        if not verify_mesh(mesh):
            ours = format_mesh(mesh, name)
    except ShardingError:
        pass
    return Answer(text, ours, oracle.mesh(text).accepted_text)


def compare_manual_computation(oracle: SdyOracle, draw: random.Random) -> Answer:
    """A program of manual computations; the text compared is what is read of its regions."""
    case = random_regions.random_region(draw)
    for _ in range(draw.choice([0, 0, 1, 1, 2])):
        case = random_regions.damaged_region(case, draw)
    border = format_manual_computation(case.computation)
    ours = None
    if draw.random() < 0.2:
        head = len("in_shardings=")
        middle = garbled(border[head:-1], random_regions.BORDER_GARBLES, draw)
        border = f"{border[:head]}{middle}}}"
    text = random_regions.module_text(case, border)
    try:
        case = random_regions.with_computation(case, parse_manual_computation(border))
        if not random_regions.region_violations(case, random_regions.MESHES):
            ours = repr((case.region,))
    except ShardingError:
        pass
    printed = oracle.module(text).accepted_text
    theirs = None if printed is None else repr(find_manual_regions(printed))
    return Answer(text, ours, theirs)


def compare_rule(oracle: SdyOracle, draw: random.Random) -> Answer:
    """An op sharding rule on a custom call: sound, damaged as a value, or damaged as text."""
    case = random_rules.random_rule(draw)
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        case = random_rules.damaged_rule(case, draw)
    text = format_op_sharding_rule(case.rule)
    if draw.random() < 0.3:
        text = garbled(text, random_rules.RULE_GARBLES, draw)
    return compare_rule_text(oracle, text, case)


def compare_rule_text(oracle: SdyOracle, text: str, case: random_rules.RuleCase) -> Answer:
    """A text without its prefix, on a custom call with the operands and results of the case."""
    ours = None
    is_stricter = False
    try:
        rule = parse_op_sharding_rule(f"#sdy.op_sharding_rule{text}")
        if not verify_op_sharding_rule(rule, case.operand_shapes, case.result_shapes):
            ours = format_op_sharding_rule(rule)
    except ShardingError as error:
        is_stricter = error.what.startswith(STRICTER)
    operands = [mlir_type(shape) for shape in case.operand_shapes]
    results = [mlir_type(shape) for shape in case.result_shapes]
    theirs = oracle.rule(text, operands, results).accepted_text
    return Answer(text, ours, theirs, is_stricter)


KINDS: dict[str, Callable[[SdyOracle, random.Random], Answer]] = {
    "shardings": compare_sharding,
    "meshes": compare_mesh,
    "manual computations": compare_manual_computation,
    "op sharding rules": compare_rule,
}


def count_agreement(kind: str, num_texts: int, seed: int) -> Agreement:
    """Ask both sides about random texts of one of `KINDS`."""
    oracle = SdyOracle()
    draw = random.Random(seed)
    agreement = Agreement()
    for _ in range(num_texts):
        agreement.add(KINDS[kind](oracle, draw))
    return agreement
