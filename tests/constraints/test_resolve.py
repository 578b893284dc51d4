"""Terms on a program: what is asked of each tensor, and every contradiction at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.constraints import (
    Alike,
    Asked,
    Group,
    Pin,
    Resolved,
    TensorType,
    Term,
    Uses,
    resolve,
)
from autoshard.errors import ConstraintError, InputError, ShardingError
from autoshard.sharding import Sharding, parse_mesh_sizes, parse_sharding
from tests.constraints.programs import PROGRAM

MESH = parse_mesh_sizes("x=2,y=4")
FREE = (None,) * 4


def resolved(
    *terms: Term, ins: tuple[Sharding | None, ...] = FREE, outs: tuple[Sharding | None, ...] = ()
) -> Resolved:
    return resolve(terms, PROGRAM, MESH, ins, outs or (None, None))


def refused(*terms: Term, ins: tuple[Sharding | None, ...] = FREE) -> str:
    with pytest.raises(ConstraintError) as caught:
        resolved(*terms, ins=ins)
    return str(caught.value)


def test_a_pin_on_arguments_and_results_is_asked_of_them() -> None:
    found = resolved(Pin('**["head"]', '[{"x"}, {?}]'))
    wanted = parse_sharding('[{"x"}, {?}]')
    assert found.arguments == (None, wanted, None, None)
    assert found.results == (None, wanted)
    assert not found.values


def test_a_pin_on_a_line_is_asked_of_the_value() -> None:
    found = resolved(Pin("net.py:11", '[{"x"}, {?}]'), Pin("name:hidden", '[{?}, {"y"}]'))
    assert found.values == {"0.jaxpr/1.0": parse_sharding('[{"x"}, {"y"}]')}


def test_a_pin_extends_what_in_shardings_leave_open() -> None:
    given = parse_sharding('[{"x", ?}, {?}]')
    found = resolved(Pin("x", '[{?}, {"y"}]'), ins=(None, None, None, given))
    assert found.arguments[3] == parse_sharding('[{"x", ?}, {"y"}]')


def test_a_use_is_asked_of_the_reads_alone() -> None:
    found = resolved(Uses('params["head"]', "[{}, {}]", by="net.py:21"))
    assert found.uses == {"1<1": parse_sharding("[{}, {}]")}
    assert found.arguments == FREE
    assert found.values == {}


def test_a_use_and_a_pin_of_one_value_do_not_contradict() -> None:
    found = resolved(Pin("net.py:22", '[{"x"}, {}]'), Uses("net.py:22", "[{}, {}]"))
    assert found.values == {"2.0": parse_sharding('[{"x"}, {}]')}
    assert found.uses == {"out<0": parse_sharding("[{}, {}]")}


def test_groups_of_one_id_are_one_group() -> None:
    found = resolved(
        Group('params["head"]', id="w"), Group("x", id="other"), Group('result[1]["head"]', id="w")
    )
    assert found.groups == (Alike("group 'w'", ("in.1", "out<1")),)


def test_the_terms_are_remembered_with_what_they_are_about() -> None:
    found = resolved(
        Pin("params['head']", '<@mesh, [{"x"}, {}]>', where="c.yaml:3"),
        Uses("x", "[{}, {}]"),
        Group("x", "net.py:21"),
    )
    assert found.asked == (
        Asked("pin `params['head']` (c.yaml:3): [{\"x\"}, {}]", ("in.1",)),
        Asked("uses of `x`: [{}, {}]", ("0<1",)),
        Asked("group of `x`, `net.py:21`", ("in.3", "1.0")),
    )


def test_a_pin_against_in_shardings_names_both() -> None:
    given = parse_sharding('[{"x"}, {}]')
    assert refused(Pin("x", '[{"y"}, {?}]'), ins=(None, None, None, given)) == (
        '`x`: float32[8, 16] cannot be both [{"x"}, {}] and [{"y"}, {?}]: dimension 0 is closed on'
        " both sides and differs\n"
        "  where: in_shardings; pin `x`\n"
        "  fix: ask for one of them, or open a dimension of the other: {?} or P.UNCONSTRAINED"
    )


def test_two_pins_of_one_tensor_name_both_and_not_a_third() -> None:
    message = refused(
        Pin("**", "[{?}, {?}]", where="a.yaml:1"),
        Pin('params["head"]', '[{"x"}, {?}]', where="a.yaml:2"),
        Pin('**["head"]', "[{}, {?}]", where="a.yaml:3"),
    )
    assert (
        "- `params['head']`: float32[16, 16] cannot be both [{\"x\"}, {?}] and [{}, {?}]" in message
    )
    assert 'where: pin `params["head"]` (a.yaml:2); pin `**["head"]` (a.yaml:3)' in message


def test_a_pin_of_another_rank_names_the_tensor() -> None:
    assert refused(Pin("bias", '[{"x"}, {}]')) == (
        '<@mesh, [{"x"}, {}]> has 2 dimensions, `bias`: float32[16] has 1\n'
        "  where: pin `bias`\n"
        "  fix: write one dimension for each of the tensor's, or select it apart"
    )


def test_a_pin_that_does_not_divide_names_the_tensor() -> None:
    assert refused(Pin('params["stack"]', '[{"x"}, {}, {}]')) == (
        "`params['stack']`: float32[3, 16, 16]: dimension 0 has size 3, which 2 shards do not"
        " divide\n"
        '  where: pin `params["stack"]`\n'
        "  fix: pad it to 4, or shard another dimension"
    )


def test_members_of_a_group_pinned_apart_are_named() -> None:
    assert refused(
        Pin("x", '[{"x"}, {}]'), Pin("net.py:21", "[{}, {}]"), Group("x", "net.py:21")
    ) == (
        'members of a group are asked to differ: `x`: float32[8, 16] is asked to be [{"x"}, {}] by'
        " pin `x`, and dot_general at net.py:21 (model): float32[8, 16] is asked to be [{}, {}] by"
        " pin `net.py:21`: dimension 0 is closed on both sides and differs\n"
        "  where: group of `x`, `net.py:21`\n"
        "  fix: ask for one sharding for all of them, or take one out of the group"
    )


def test_members_of_a_group_have_one_rank() -> None:
    assert refused(Group("x", "bias")) == (
        "`x`: float32[8, 16] and `bias`: float32[16] have different numbers of dimensions, so they"
        " cannot be sharded the same\n"
        "  where: group of `x`, `bias`\n"
        "  fix: group tensors of one rank"
    )


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert refused(Pin("y", "[{}]"), Pin("x", "[{}]"), Uses("result[0]", "[{}, {}]")) == (
        "3 things asked for cannot be had:\n"
        "- `y` selects nothing in this program\n"
        "    where: pin `y`\n"
        "    fix: arguments and results begin with: `params`, `bias`, `x`, `result`\n"
        "- <@mesh, [{}]> has 1 dimension, `x`: float32[8, 16] has 2\n"
        "    where: pin `x`\n"
        "    fix: write one dimension for each of the tensor's, or select it apart\n"
        "- `result[0]`: float32[8, 16] is a result, which nothing in the program reads\n"
        "    where: uses of `result[0]`\n"
        "    fix: pin it instead\n"
        "  where: constraints, mesh (x=2, y=4)\n"
        "  fix: correct each of them"
    )


def test_a_use_that_nobody_makes_is_refused() -> None:
    assert refused(Uses("x", "[{}, {}]", by="net.py:22")) == (
        "nothing at `net.py:22` reads `x`: float32[8, 16]\n"
        "  where: uses of `x` by `net.py:22`\n"
        "  fix: name a line that reads it: `net.py:20 scan`; or pin the tensor itself. A body of"
        " scan reads a tensor of its own (a slice, what is carried, a device's piece): give that a"
        " jax.ad_checkpoint.checkpoint_name there, and select it by name:..."
    )


def test_a_mesh_without_a_definition_is_refused() -> None:
    assert refused(Pin("x", '<@ring, [{"r"}, {}]>')) == (
        "`x`: float32[8, 16]: no mesh is called @ring here\n"
        "  where: pin `x`\n"
        "  fix: write the plan's mesh as @mesh, or define @ring under `meshes:` in a constraints"
        ' file, or write it into the sharding: <mesh<["a"=2]>, ...>'
    )


def test_a_sharding_on_a_finer_mesh_is_one_of_sub_axes() -> None:
    found = resolved(Pin("x", '<mesh<["x"=2, "a"=2, "b"=2]>, [{"a"}, {}]>'))
    assert found.arguments[3] == parse_sharding('[{"y":(1)2}, {}]')


def test_a_term_is_read_when_it_is_made() -> None:
    with pytest.raises(ShardingError):
        Pin("x", "[{x}]")
    with pytest.raises(InputError):
        Uses("x[", "[{}]")
    with pytest.raises(InputError):
        Group("x", "y[")
    with pytest.raises(InputError, match="a group without selectors holds nothing"):
        Group(id="empty")


@pytest.mark.parametrize(
    ("sharding", "what", "fix"),
    [
        (
            '[{"y":(1)3}, {}]',
            'the sharding uses "y":(1)3, and 1 * 3 = 3 does not divide the size 4 of the axis',
            'write a part as "x":(size before it)its size, both dividing the axis together',
        ),
        (
            "[{}p1, {}]",
            "dimension 0 is empty and closed, so its priority p1 has nothing to order",
            "leave the priority out, or open the dimension: {?}p1",
        ),
    ],
)
def test_a_sharding_that_breaks_a_rule_is_refused(sharding: str, what: str, fix: str) -> None:
    assert refused(Pin("x", sharding)) == (
        f"`x`: float32[8, 16]: {what}\n  where: pin `x`\n  fix: {fix}"
    )


def test_the_id_of_a_group_is_a_name_or_a_number() -> None:
    with pytest.raises(InputError) as caught:
        Group("x", id=["a"])  # type: ignore[arg-type]
    assert str(caught.value) == (
        "expected a name or number for a group, found list\n"
        "  where: id=['a']\n"
        '  fix: write Group("params**", "momentum**", id="state")'
    )


def test_the_members_of_a_group_are_on_another_mesh_where_one_is() -> None:
    backwards = '<mesh<["r"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>, [{"r"}, {}]>'
    found = resolved(Group("x", "net.py:21", "result[0]"), Pin("x", backwards))
    wanted = parse_sharding(backwards)
    assert (found.arguments[3], found.values, found.results[0]) == (wanted, {"1.0": wanted}, wanted)


def test_a_member_that_another_mesh_does_not_divide_is_named() -> None:
    backwards = '<mesh<["r"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>, [{"r"}, {}]>'
    stack, _, *others = PROGRAM.argument_types
    odd = replace(PROGRAM, argument_types=(stack, TensorType((12, 16), "float32"), *others))
    with pytest.raises(ConstraintError) as caught:
        resolve([Group('params["head"]', "x"), Pin("x", backwards)], odd, MESH, FREE, (None, None))
    assert str(caught.value) == (
        "`params['head']`: float32[12, 16]: dimension 0 has size 12, which 8 shards do not divide\n"
        '  where: group of `params["head"]`, `x`\n'
        "  fix: pad it to 16, or shard another dimension"
    )
