"""Our verdict and our text against those of the Shardy inside jaxlib."""

from __future__ import annotations

import pytest

from autoshard.sharding import OpShardingRule
from experiments.shardy_oracle import KINDS, SdyOracle, count_agreement
from experiments.shardy_oracle.agreement import compare_rule_text, compare_sharding_text
from experiments.shardy_oracle.random_rules import RuleCase
from experiments.shardy_oracle.random_shardings import MESHES


@pytest.fixture(scope="module")
def oracle() -> SdyOracle:
    return SdyOracle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [2, 3])
def test_thousands_of_random_texts_get_the_verdict_and_text_shardy_gives(
    kind: str, seed: int
) -> None:
    agreement = count_agreement(kind, 5_000, seed)
    assert agreement.different_verdicts == []
    assert agreement.different_texts == []
    assert 1_500 < agreement.accepted < 3_500  # both verdicts are well represented
    assert agreement.stricter < 50


@pytest.mark.parametrize(
    "text",
    [
        '<@mesh, [{"x"}]>',
        ' < @mesh , [ { "x" , ? } p0 ] > ',
        '<@mesh, [{"x"} // comment\n]>',
        '<@"mesh", [{"\\78"}]>',
        '<@mesh, [{"x": ( 0x2 ) 02}]>',
        '<@mesh, [{"x":(1)0x2, "z"}]>',
        "<@mesh, [{ }]>",
        '<@mesh, [{"y":(1)2}], replicated={"y":(3)2}>',
        '<@mesh, [{"y":(1)3}], replicated={"y":(2)3}>',
        '<@mesh, [{"z":(1)1}]>',
        '<@mesh, [{"x":(2)2, "x":(1)2}]>',
        '<@mesh, [{}], unreduced={"z"}, replicated={"x"}>',
        '<@mesh, [{}], replicated={"x"}, replicated={"z"}>',
        "<@mesh, [{}], replicated={}>",
        '<@mesh, [{}], unreduced=max{"x"}>',
        "<@other, [{}]>",
        '<@"", [{}]>',
        ' <@mesh, [{"x"}]>',
        '<@mesh, [{"x"}p9223372036854775807]>',
        '<@mesh, [{"x"}p9223372036854775808]>',
        '<@mesh, [{"x":(9223372036854775808)2}]>',
        '<mesh<["a"=2]>, [{"a"}]>',
        '<mesh <["a"=2], device_ids=[1, 0]>, [{"a"}]>',
        '<mesh<["a"=2], device_ids=[0, 1]>, [{"a"}]>',
        '<mesh<["a"=2, "a"=2]>, [{}]>',
        '<mesh<["a"=2], device_ids=[1, - 0]>, [{"a"}]>',
        '<mesh<["a"=2], device_ids=[1, --0]>, [{"a"}]>',
        '<mesh<["a"=2], device_ids=[1, 1]>, [{"a"}]>',
        "<mesh<[]>, [{}]>",
        "<mesh<[]>, []>",
        "<mesh<[], device_ids=[0]>, []>",
        "<mesh<[], device_ids=[0]>, [{}]>",
        "<mesh<[], device_ids=[0, 1]>, []>",
        '<#sdy.mesh<["a"=2]>, [{"a"}]>',
    ],
)
def test_corners_of_the_grammar_get_the_verdict_and_text_shardy_gives(
    text: str, oracle: SdyOracle
) -> None:
    answer = compare_sharding_text(oracle, text, MESHES[0], 1)
    assert answer.ours == answer.theirs


SIZES = "{i=2, j=8}"


@pytest.mark.parametrize(
    "text",
    [
        f"<([i, j])->([i, j]) {SIZES}>",
        " <([i, j])->([i, j]) {i=2, j=8}>",
        "< ( [ i , j ] ) -> ( [ i , j ] ) { i = 2 , j = 8 } , custom >",
        f"<([i, j])->([i, j]) {SIZES} // comment\n, custom>",
        f"<([i, j])- >([i, j]) {SIZES}>",
        f"<([i, j])->([i, j]) {SIZES} reduction={{}}>",
        f"<([i, j])->([i, j]) {SIZES} reduction=>",
        f"<([i, j])->([i, j]) {SIZES} reduction= {{ }} permutation=need_replication={{i}}>",
        f"<([i, j])->([i, j]) {SIZES} need_replication=permutation={{i}}>",
        f"<([i, j])->([i, j]) {SIZES} permutation={{i}} need_replication={{j}}>",
        f"<([i, j])->([i, j]) {SIZES} permutation={{i}} permutation={{j}}>",
        f"<([i, j])->([i, j]) {SIZES} permutation={{j, i}}>",
        f"<([i, j])->([i, j]) {SIZES} permutation={{i, i}}>",
        f"<([i, j])->([i, j]) {SIZES} permutation={{i}} blocked_propagation={{i, j}}>",
        f"<([i, j])->([i, j]) {SIZES} permutation={{k}}>",
        f"<([i, j])->([i, j]) {SIZES} reduction={{j}}>",
        f"<([i, j])->([i, j]) {SIZES} custom>",
        f"<([i, j])->([i, j]) {SIZES},>",
        f"<([i, j])->([i, j]) {SIZES}, custom, custom>",
        f"<([i, j])->([i, j]) {SIZES}>>",
        f"<([i, j])->([i, j]) {SIZES} {{}}>",
        "<([i, j])->([i, j]) {i=0x2, j=08}>",
        "<([i, j])->([i, j]) {i=- 2, j=-0x8}>",
        "<([i, j])->([i, j]) {i=2147483647, j=-2147483648}>",
        "<([i, j])->([i, j]) {i=2, j=- 2147483648}>",
        "<([i, j])->([i, j]) {i=2147483648, j=8}>",
        "<([i, j])->([i, j]) {i=-2147483649, j=8}>",
        "<([i, j])->([i, j]) {i=+2, j=8}>",
        "<([i, j])->([i, j]) {i=--2, j=8}>",
        "<([i, j])->([i, j]) {i=- -2, j=8}>",
        "<([i, j])->([i, j]) {i=2.0, j=8}>",
        "<([i, j])->([i, j]) {i=0, j=3}>",
        "<([i, j])->([i, j]) {j=8, i=2}>",
        "<([i, j])->([i, j]) {i=2, j=8,}>",
        "<([i, j])->([i, j]) {i=2, i=2}>",
        "<([i, j])->([i, j]) {ij=2}>",
        "<([i, j])->([i, j])>",
        "<([ij, k])->([i, jk]) {i=2, j=2, k=4}>",
        "<([i j, k])->([i, j k]) {i=2, j=2, k=4}>",
        "<([ij, k])->([i, jk]) {i=2, j=1, k=4}>",
        "<([i,])->([i, j]) {i=2, j=8}>",
        "<([, i])->([i, j]) {i=2, j=8}>",
        "<([i, ii])->([i, j]) {i=2, j=8}>",
        "<([i, z])->([i, z]) {i=2, j=8}>",
        "<([i, z_1])->([i, j]) {i=2, j=8}>",
        "<([i, z_0])->([i, j]) {i=2, j=8}>",
        "<([i, z_])->([i, j]) {i=2, j=8}>",
        "<([i, j_1])->([i, j]) {i=2, j=8}>",
        "<([i, h])->([i, j]) {i=2, j=8}>",
        '<([i, "j"])->([i, j]) {i=2, j=8}>',
        "<([i, i1])->([i, j]) {i=2, j=8}>",
        "<([i, in])->([i, j]) {i=2, j=8, k=1, l=1, m=1, n=2}>",
        "<()->([i, j]) {i=2, j=8}>",
        "<([i, j])->() {i=2, j=8}>",
        "<([i, j], [])->([i, j]) {i=2, j=8}>",
        "<([i])->([i, j]) {i=2, j=8}>",
    ],
)
def test_corners_of_the_grammar_of_rules_get_the_verdict_and_text_shardy_gives(
    text: str, oracle: SdyOracle
) -> None:
    answer = compare_rule_text(oracle, text, RuleCase(OpShardingRule(), ((2, 8),), ((2, 8),)))
    assert answer.ours == answer.theirs


EIGHTEEN = [chr(ord("i") + index) for index in range(18)]


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        (
            "<([i, j])->([i, j]) {i=2, j=8} need_replication={ij}>",
            "<([i, j])->([i, j]) {i=2, j=8} need_replication={i}>",
        ),
        (
            "<([i, j])->([i, j]) {i=2, j=true}>",
            "<([i, j])->([i, j]) {i=2, j=-1}>",
        ),
        (
            f"<([{''.join(EIGHTEEN[:-1])}, z_9223372036854775808])->([i, j]) "
            f"{{{', '.join(f'{name}=2' for name in EIGHTEEN)}}}>",
            f"<([{''.join(EIGHTEEN[:-1])}, z])->([i, j]) "
            f"{{{', '.join(f'{name}=2' for name in EIGHTEEN)}}}>",
        ),
    ],
)
def test_what_shardy_reads_as_something_else_is_refused(
    text: str, theirs: str, oracle: SdyOracle
) -> None:
    answer = compare_rule_text(oracle, text, RuleCase(OpShardingRule(), ((2, 8),), ((2, 8),)))
    assert (answer.ours, answer.theirs) == (None, theirs)
