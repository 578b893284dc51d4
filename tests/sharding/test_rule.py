from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.graph.rule import Rule, aligned_rule, batched_rule, identity_rule
from autoshard.sharding import (
    OpShardingRule,
    check_op_sharding_rule,
    format_factor,
    format_op_sharding_rule,
    parse_op_sharding_rule,
    verify_op_sharding_rule,
)
from autoshard.sharding.manual import Shape
from tests.sharding.strategies import op_sharding_rules

MATMUL = OpShardingRule(
    factor_sizes=(8, 4, 16),
    operands=(((0,), (2,)), ((2,), (1,))),
    results=(((0,), (1,)),),
    reduction=(2,),
)
MATMUL_TEXT = "<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}>"
MATMUL_SHAPES = (((8, 16), (16, 4)), ((8, 4),))


def test_the_rule_of_a_matmul_reads_verifies_and_prints_back() -> None:
    assert parse_op_sharding_rule(MATMUL_TEXT) == MATMUL
    assert format_op_sharding_rule(MATMUL) == MATMUL_TEXT
    assert verify_op_sharding_rule(MATMUL, *MATMUL_SHAPES) == []


def test_every_part_of_a_rule_prints_as_shardy_prints_it() -> None:
    text = (
        "<([i, jk, l], [])->([i, kj], [l]) {i=2, j=3, k=5, l=7, m=1} reduction={m} "
        "need_replication={i, l} permutation={j} blocked_propagation={i, k}, custom>"
    )
    rule = parse_op_sharding_rule(text)
    assert rule == OpShardingRule(
        (2, 3, 5, 7, 1),
        (((0,), (1, 2), (3,)), ()),
        (((0,), (2, 1)), ((3,),)),
        reduction=(4,),
        need_replication=(0, 3),
        permutation=(1,),
        blocked_propagation=(0, 2),
        is_custom=True,
    )
    assert format_op_sharding_rule(rule) == text


@pytest.mark.parametrize(
    "text",
    [
        "#sdy.op_sharding_rule" + MATMUL_TEXT,
        "< ( [ i , k ] , [ k,j ] )->([i, j]) { i = 8, j = 0x4, k = 016 } reduction = { k } >",
        "<([i, k], [k, j])// matmul\n->([i, j]) {i=8, j=4, k=16} reduction={k} permutation={}>",
    ],
)
def test_other_ways_to_write_a_rule_mean_the_same(text: str) -> None:
    assert parse_op_sharding_rule(text) == MATMUL


@pytest.mark.parametrize(
    ("index", "symbol"), [(0, "i"), (1, "j"), (17, "z"), (18, "z_1"), (19, "z_2"), (117, "z_100")]
)
def test_factors_are_called_i_to_z_and_then_z_with_a_number(index: int, symbol: str) -> None:
    assert format_factor(index) == symbol
    rule = parse_op_sharding_rule(f"<([z{symbol}i])->([])>")
    assert rule.operands == (((17, index, 0),),)


@given(op_sharding_rules())
def test_rules_round_trip(rule: OpShardingRule) -> None:
    text = format_op_sharding_rule(rule)
    assert parse_op_sharding_rule(text) == rule
    assert parse_op_sharding_rule("#sdy.op_sharding_rule" + text) == rule


@given(st.text(alphabet="<>[](){}ijz_12,=- \ncustomredpa", max_size=40))
def test_any_text_is_read_as_a_rule_or_refused_with_a_caret(text: str) -> None:
    try:
        rule = parse_op_sharding_rule(f"<([{text}])->([])>")
    except ShardingError as error:
        assert error.where.endswith("^")  # noqa: PT017
    else:
        assert parse_op_sharding_rule(format_op_sharding_rule(rule)) == rule


@pytest.mark.parametrize(
    "rule",
    [
        identity_rule((8, 4), 2),
        aligned_rule(((8, 4), (), (8, 4)), ((8, 4),), frozenset({1})),
        batched_rule(((8, 4, 3), (8, 5)), ((8, 7),), 1),
        Rule((2,) * 20, (tuple((factor,) for factor in range(20)),), ((),), frozenset(range(20))),
    ],
)
def test_the_rules_of_the_planner_print_in_the_same_grammar(rule: Rule) -> None:
    parsed = parse_op_sharding_rule(f"<{rule}>")
    assert parsed.factor_sizes == rule.factor_sizes
    assert (parsed.operands, parsed.results) == (rule.operands, rule.results)
    assert frozenset(parsed.reduction) == rule.reduction
    assert frozenset(parsed.need_replication) == rule.need_replication


FIX = "\n  fix: factors are called i to z, then z_1, z_2 and so on"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "<([i, h])->([i]) {i=2}>",
            "`h` in `h` is not a factor\n"
            "  where: line 1, column 7\n"
            "    <([i, h])->([i]) {i=2}>\n"
            "          ^" + FIX,
        ),
        (
            "<([i, jz_0])->([i]) {i=2}>",
            "`z_` is followed by a number from 1, found `jz_0`\n"
            "  where: line 1, column 7\n"
            "    <([i, jz_0])->([i]) {i=2}>\n"
            "          ^" + FIX,
        ),
        (
            "<([z_9223372036854775808])->([i]) {i=2}>",
            "the factor z_9223372036854775808 is too large\n"
            "  where: line 1, column 4\n"
            "    <([z_9223372036854775808])->([i]) {i=2}>\n"
            "       ^\n"
            "  fix: Shardy's numbers go up to 9223372036854775807",
        ),
        (
            '<(["i"])->([i]) {i=2}>',
            'expected factors such as `ij`, found `"i"`\n'
            "  where: line 1, column 4\n"
            '    <(["i"])->([i]) {i=2}>\n'
            "       ^" + FIX,
        ),
        (
            "<([i j])->([ij]) {i=2, j=2}>",
            "expected `,` or `]`, found `j`\n"
            "  where: line 1, column 6\n"
            "    <([i j])->([ij]) {i=2, j=2}>\n"
            "         ^\n"
            "  fix: factors of one dimension stand together, as in [i, jk]",
        ),
        (
            "<()->([i]) {i=2}>",
            "expected `[`, found `)`\n"
            "  where: line 1, column 3\n"
            "    <()->([i]) {i=2}>\n"
            "      ^\n"
            "  fix: a rule is about an operation with at least one operand and one result",
        ),
        (
            "<([i])- >([i]) {i=2}>",
            "expected `->`, found `-`\n"
            "  where: line 1, column 7\n"
            "    <([i])- >([i]) {i=2}>\n"
            "          ^",
        ),
        (
            "<([i])->([i]) {j=2}>",
            "expected the size of `i`, found `j`\n"
            "  where: line 1, column 16\n"
            "    <([i])->([i]) {j=2}>\n"
            "                   ^\n"
            "  fix: give the sizes in order, from `i` on",
        ),
        (
            "<([i])->([i]) {i=2147483648}>",
            "the number 2147483648 is too large\n"
            "  where: line 1, column 18\n"
            "    <([i])->([i]) {i=2147483648}>\n"
            "                     ^\n"
            "  fix: Shardy's numbers go up to 2147483647",
        ),
        (
            "<([i, j])->([i, j]) {i=2, j=2} permutation={ij}>",
            "expected one factor, such as `i`, found `ij`\n"
            "  where: line 1, column 45\n"
            "    <([i, j])->([i, j]) {i=2, j=2} permutation={ij}>\n"
            "                                                ^"
            + FIX
            + ", with commas between them",
        ),
        (
            "<([i])->([i]) {i=2} permutation={i} reduction={i}>",
            "expected `>`, found `reduction`\n"
            "  where: line 1, column 37\n"
            "    <([i])->([i]) {i=2} permutation={i} reduction={i}>\n"
            "                                        ^\n"
            "  fix: write each set once, in this order: "
            "reduction, need_replication, permutation, blocked_propagation",
        ),
        (
            "<([i])->([i]) {i=2},>",
            "expected `custom`, found `>`\n"
            "  where: line 1, column 21\n"
            "    <([i])->([i]) {i=2},>\n"
            "                        ^",
        ),
    ],
)
def test_a_syntax_error_shows_the_line_and_a_caret(text: str, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        parse_op_sharding_rule(text)
    assert str(caught.value) == message


VECTOR = OpShardingRule((8,), (((0,),),), (((0,),),))


@pytest.mark.parametrize(
    ("rule", "violations"),
    [
        (
            replace(VECTOR, operands=()),
            ["a rule is about at least one operand, and there is none"],
        ),
        (
            replace(VECTOR, results=(((0,),), ((0,),))),
            ["the rule maps 2 results, and the operation has 1"],
        ),
        (
            replace(VECTOR, operands=(((0,), (0,)),)),
            [
                "operand 0: the rule maps 2 dimensions, and the tensor has 1",
                "operand 0: factor i is used twice: in dimension 0 and in dimension 1",
            ],
        ),
        (replace(VECTOR, results=(((),),)), ["result 0: dimension 0 has no factor"]),
        (
            replace(VECTOR, results=(((1,),),)),
            ["result 0: factor j in dimension 0 has no size"],
        ),
        (
            replace(VECTOR, factor_sizes=(8, 1), operands=(((0, 1),),)),
            [
                "operand 0: factor j in dimension 0 has size 1 and stands beside others: "
                "leave it out"
            ],
        ),
        (
            replace(VECTOR, factor_sizes=(8, 4)),
            ["factor j=4 is in no operand and no result"],
        ),
        (replace(VECTOR, reduction=(0,)), ["factor i is reduced, and it is in a result"]),
        (
            replace(VECTOR, blocked_propagation=(2,)),
            ["factor k in blocked_propagation has no size"],
        ),
        (
            replace(VECTOR, need_replication=(0, 0)),
            ["need_replication factors are in order, each once: i, found i, i"],
        ),
        (
            replace(VECTOR, factor_sizes=(2, 4), operands=(((0, 1),),), permutation=(1, 0)),
            ["permutation factors are in order, each once: i, j, found j, i"],
        ),
        (
            replace(VECTOR, need_replication=(0,), permutation=(0,), blocked_propagation=(0,)),
            ["factor i is in need_replication and in permutation; it is in one of them"],
        ),
        (replace(VECTOR, factor_sizes=(3,)), []),
        (replace(VECTOR, is_custom=True), []),
    ],
)
def test_each_rule_of_rules_has_its_message(rule: OpShardingRule, violations: list[str]) -> None:
    assert verify_op_sharding_rule(rule, [(8,)], [(8,)]) == violations


@pytest.mark.parametrize("shape", [None, (None,)])
def test_only_tensors_of_known_sizes_have_a_rule(shape: Shape) -> None:
    assert verify_op_sharding_rule(VECTOR, [shape], [(8,)]) == [
        "operand 0: only a tensor whose sizes are all known has a rule"
    ]


def test_only_a_custom_call_has_a_custom_rule() -> None:
    rule = replace(VECTOR, is_custom=True)
    assert verify_op_sharding_rule(rule, [(8,)], [(8,)], op_name="stablehlo.negate") == [
        "only a stablehlo.custom_call has a custom rule, and this is a stablehlo.negate"
    ]


def test_all_violations_of_a_rule_come_together() -> None:
    rule = parse_op_sharding_rule("<([i, l])->([i, j]) {i=2, j=4, k=3} reduction={j, i}, custom>")
    with pytest.raises(ShardingError) as caught:
        check_op_sharding_rule(rule, [(2, 4)], [(2, 4)], op_name="stablehlo.add")
    assert str(caught.value) == (
        "operand 0: factor l in dimension 1 has no size\n"
        "factor k=3 is in no operand and no result\n"
        "factor j is reduced, and it is in a result\n"
        "factor i is reduced, and it is in a result\n"
        "reduction factors are in order, each once: i, j, found j, i\n"
        "only a stablehlo.custom_call has a custom rule, and this is a stablehlo.add\n"
        "  where: stablehlo.add: <([i, l])->([i, j]) {i=2, j=4, k=3} reduction={j, i}, custom>\n"
        "  fix: correct the rule"
    )
    check_op_sharding_rule(VECTOR, [(8,)], [(8,)])
