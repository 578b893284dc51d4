from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.sharding import (
    ManualComputation,
    ManualShapes,
    Mesh,
    Sharding,
    format_manual_computation,
    make_manual_axes_explicit,
    manual_local_shape,
    parse_manual_computation,
    parse_mesh,
    parse_sharding,
    verify_manual_computation,
)
from tests.sharding.strategies import shardings

MESHES = {
    "m": parse_mesh('<["data"=2, "model"=2]>'),
    "same": parse_mesh('<["data"=2, "model"=2]>'),
    "other": parse_mesh('<["data"=4]>'),
    "empty": Mesh(),
}
TEXT = (
    'in_shardings=[<@m, [{"data"}, {"model", ?}]>] out_shardings=[<@m, [{"data"}, {?}]>] '
    'manual_axes={"data"}'
)
SHAPES = ManualShapes(
    operands=((16, 32),), results=((16, 32),), local_operands=((8, 32),), local_results=((8, 32),)
)


def manual(ins: str, outs: str, axes: str) -> ManualComputation:
    return parse_manual_computation(
        f"in_shardings=[{ins}] out_shardings=[{outs}] manual_axes={{{axes}}}"
    )


def test_a_manual_computation_prints_as_it_is_read() -> None:
    value = parse_manual_computation(TEXT)
    assert value.manual_axes == ("data",)
    assert value.in_shardings == (parse_sharding('<@m, [{"data"}, {"model", ?}]>'),)
    assert format_manual_computation(value) == TEXT
    assert verify_manual_computation(value, MESHES, SHAPES, strict=True) == []


def test_the_operation_before_and_the_region_after_are_skipped() -> None:
    line = f"%1:2 = sdy.manual_computation(%0, %arg3) {TEXT} (%arg1: tensor<8x32xf32>) {{"
    assert parse_manual_computation(line) == parse_manual_computation(TEXT)


@given(
    st.lists(shardings(), max_size=2).map(tuple),
    st.lists(shardings(), max_size=2).map(tuple),
    st.lists(st.text(max_size=3), max_size=3).map(tuple),
)
def test_manual_computations_round_trip(
    ins: tuple[Sharding, ...], outs: tuple[Sharding, ...], axes: tuple[str, ...]
) -> None:
    value = ManualComputation(ins, outs, axes)
    assert parse_manual_computation(format_manual_computation(value)) == value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sdy.manual_computation(%0)", "expected `in_shardings`, found the end"),
        (
            "in_shardings=[#sdy.sharding <@m, []>, #sdy.sharding<@m, []>] out_shardings=[]",
            "expected `<` right after `#sdy.sharding`, found `<`",
        ),
        ("in_shardings=[] manual_axes={}", "expected `out_shardings`, found `manual_axes`"),
        (
            "in_shardings=[<@m, []>,] out_shardings=[] manual_axes={}",
            "expected `<`, found `]`",
        ),
        (
            'in_shardings=[] out_shardings=[] manual_axes={"a":(1)2}',
            'expected the name of an axis, found `"a":(1)2`',
        ),
        (
            "in_shardings=[] out_shardings=[] manual_axes={} {",
            "expected nothing more, found `{`",
        ),
    ],
)
def test_what_is_not_a_manual_computation_is_refused(text: str, what: str) -> None:
    with pytest.raises(ShardingError) as caught:
        parse_manual_computation(text)
    assert caught.value.what == what


@pytest.mark.parametrize(
    ("value", "violations"),
    [
        (manual('<@m, [{"data"}]>', '<@same, [{"data"}]>', '"data"'), []),
        (manual('<@m, [{"data"}]>', "<@empty, [{}]>", '"data"'), []),
        (manual('<@m, [{"data"}]>', '<@other, [{"data"}]>', ""), []),
        (
            manual('<@m, [{"data"}]>', '<@other, [{"data"}]>', '"data"'),
            [
                "all shardings are on one mesh, and operand 0 is on mesh (data=2, model=2), "
                "result 0 on mesh (data=4)"
            ],
        ),
        (
            manual('<@m, [{"data"}]>', "<@nowhere, [{}]>", ""),
            ['result 0: there is no mesh "nowhere"; the meshes are: "m", "same", "other", "empty"'],
        ),
        (
            manual('<@m, [{"data"}]>', '<@m, [{"data"}]>', '"data", "q"'),
            ['manual axis "q" is not an axis of the mesh (data=2, model=2)'],
        ),
        (
            manual("<@empty, [{}]>", "<@empty, [{}]>", '"data"'),
            ['manual axis "data" is not an axis of the mesh ()'],
        ),
        (
            manual('<@m, [{}, {"model", "data"}]>', '<@m, [{}], replicated={"data"}>', '"data"'),
            [
                'operand 0: in dimension 1 the manual axis "data" comes after '
                'the free axis "model"; manual axes come first'
            ],
        ),
        (
            manual('<@m, [{"data"}, {"data"}]>', '<@m, [{"data"}]>', '"data"'),
            ['operand 0: "data" is used twice: in dimension 0 and in dimension 1'],
        ),
        (ManualComputation(manual_axes=("data",)), []),
        (ManualComputation(), []),
    ],
)
def test_each_rule_of_manual_computations_has_its_message(
    value: ManualComputation, violations: list[str]
) -> None:
    assert verify_manual_computation(value, MESHES) == violations


@pytest.mark.parametrize(
    ("value", "violations"),
    [
        (
            manual('<@m, [{"data", "model"}]>', '<@m, [{"data", "model"}]>', '"model", "data"'),
            ["manual axes are in the order of the mesh, each once: data, model, found model, data"],
        ),
        (
            manual('<@m, [{"data"}]>', "<@m, [{?}]>", '"data"'),
            ['result 0: the manual axis "data" is neither in a dimension nor replicated'],
        ),
        (
            manual('<@other, [{"data":(1)2}]>', '<@other, [{"data"}]>', '"data"'),
            ['operand 0: the manual axis "data":(2)2 is neither in a dimension nor replicated'],
        ),
    ],
)
def test_what_only_the_documents_ask_for_is_strict_and_can_be_put_right(
    value: ManualComputation, violations: list[str]
) -> None:
    assert verify_manual_computation(value, MESHES) == []
    assert verify_manual_computation(value, MESHES, strict=True) == violations
    explicit = make_manual_axes_explicit(value, MESHES)
    assert verify_manual_computation(explicit, MESHES, strict=True) == []


def test_making_manual_axes_explicit_replicates_what_is_not_named() -> None:
    value = manual("<@m, [{?}]>", '<@m, [{"data"}]>', '"model", "data"')
    assert format_manual_computation(make_manual_axes_explicit(value, MESHES)) == (
        'in_shardings=[<@m, [{?}], replicated={"data", "model"}>] '
        'out_shardings=[<@m, [{"data"}], replicated={"model"}>] manual_axes={"data", "model"}'
    )


def test_nested_manual_computations_bind_axes_of_their_own() -> None:
    inner = manual('<@m, [{"model"}]>', '<@m, [{"model"}]>', '"model"')
    assert verify_manual_computation(inner, MESHES, outer_manual_axes={"data"}) == []
    assert verify_manual_computation(inner, MESHES, outer_manual_axes={"model"}) == [
        'axis "model" is already manual in a manual computation around this one',
        'operand 0: dimension 0 uses axis "model", which a manual computation around it has bound',
        'result 0: dimension 0 uses axis "model", which a manual computation around it has bound',
    ]


@pytest.mark.parametrize(
    ("shapes", "violations"),
    [
        (
            ManualShapes(
                operands=((16, 32), (4,)),
                results=((16, 32),),
                local_operands=((8, 32), (4,)),
                local_results=((8, 32), (8, 32)),
            ),
            [
                "there are 1 operand shardings for 2 operands",
                "there are 1 results outside, 2 inside",
            ],
        ),
        (
            ManualShapes(
                operands=((16, 32),),
                results=((16, 32),),
                local_operands=((16, 32),),
                local_results=((8, 16),),
            ),
            [
                "operand 0: the local shape is [8, 32], and the region has [16, 32]",
                "result 0: the local shape is [8, 32], and the region has [8, 16]",
            ],
        ),
        (
            ManualShapes(
                operands=((None, 32),),
                results=((7, 32),),
                local_operands=((16, 32),),
                local_results=((4, 32),),
            ),
            [
                "operand 0: the local shape is [?, 32], and the region has [16, 32]",
                "result 0: dimension 0 has size 7, which the 2 pieces along the manual axes "
                "do not divide",
            ],
        ),
        (
            ManualShapes(
                operands=((16,),), results=(None,), local_operands=((8,),), local_results=(None,)
            ),
            [
                "operand 0: the sharding has 2 dimensions and the tensor has 1",
                "result 0: a sharding of a value that is not a tensor has no dimensions and no "
                "axes: write it []",
            ],
        ),
    ],
)
def test_shapes_outside_and_inside_belong_together(
    shapes: ManualShapes, violations: list[str]
) -> None:
    assert verify_manual_computation(parse_manual_computation(TEXT), MESHES, shapes) == violations


def test_only_manual_axes_make_a_shape_local() -> None:
    sharding = parse_sharding('[{"data", "model"}, {}]')
    assert manual_local_shape(sharding, MESHES["m"], {"data"}, (16, None)) == (8, None)
    assert manual_local_shape(sharding, MESHES["m"], {"data", "model"}, (16, 4)) == (4, 4)
    assert manual_local_shape(parse_sharding("[]"), MESHES["m"], {"data"}, None) is None
    with pytest.raises(ShardingError, match="the sharding has rank 2 and the tensor has rank 1"):
        manual_local_shape(sharding, MESHES["m"], {"data"}, (16,))
