"""Our verdict and our text against those of the Shardy inside jaxlib."""

from __future__ import annotations

import random

import pytest

from autoshard.errors import ShardingError
from autoshard.sharding import (
    Mesh,
    MeshAxis,
    Sharding,
    format_mesh,
    format_sharding,
    parse_mesh,
    parse_sharding,
    resolve_mesh,
    verify_mesh,
    verify_sharding,
)
from tests.sharding.sdy_oracle import SdyOracle
from tests.sharding.strategies import damaged, sound_sharding

MESHES = [
    parse_mesh('<["x"=8, "y"=6, "z"=2]>'),
    parse_mesh('<["y"=4, "x"=12]>'),
    parse_mesh('<["x"=2, "y"=1], device_ids=[1, 0]>'),
    parse_mesh('<["é \\22"=4, "x"=16]>'),
    Mesh(),
    Mesh((), (3,)),
]
GARBLES = (
    "",
    ",",
    "?",
    "{",
    "}",
    ":",
    "(1)2",
    '"x"',
    "p1",
    "p01",
    " ",
    "//",
    "0",
    "1",
    "<",
    ">",
    "-",
)


@pytest.fixture(scope="module")
def oracle() -> SdyOracle:
    return SdyOracle()


def our_text(text: str, mesh: Mesh, rank: int) -> str | None:
    """Canonical text of a sharding we accept, None for one we refuse."""
    try:
        sharding = parse_sharding(text)
        mesh = resolve_mesh(sharding, {"mesh": mesh})
    except ShardingError:
        return None
    return None if verify_sharding(sharding, mesh, (8,) * rank) else format_sharding(sharding)


def their_text(oracle: SdyOracle, text: str, mesh: Mesh, rank: int) -> str | None:
    line = format_mesh(mesh, "mesh")
    verdict = oracle.sharding(text, [line], f"tensor<{'8x' * rank}f32>")
    return verdict.text if verdict.accepts else None


def random_case(draw: random.Random) -> tuple[str, Mesh, int]:
    """Text of a sharding, sound or damaged once or twice, in its value or in its text."""
    mesh, rank = draw.choice(MESHES), draw.randrange(4)
    sharding: Sharding = sound_sharding(mesh, 0 if mesh.is_maximal else rank, draw)
    for _ in range(draw.choice([0, 0, 1, 2])):
        sharding = damaged(sharding, draw)
    text = format_sharding(sharding)
    if draw.random() < 0.3 and "\\" not in text:  # jaxlib aborts on names that are not UTF-8
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice(GARBLES) + text[at + draw.randrange(3) :]
    return text, mesh, rank


def test_ten_thousand_random_shardings_get_the_verdict_and_text_shardy_gives(
    oracle: SdyOracle,
) -> None:
    draw = random.Random(2)
    num_sound = 0
    for _ in range(10_000):
        text, mesh, rank = random_case(draw)
        ours = our_text(f"#sdy.sharding{text}", mesh, rank)
        assert ours == their_text(oracle, text, mesh, rank), (text, mesh, rank)
        num_sound += ours is not None
    assert 2_000 < num_sound < 8_000  # both verdicts are well represented


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
    mesh = MESHES[0]
    ours = our_text(f"#sdy.sharding{text}", mesh, 1)
    assert ours == their_text(oracle, text, mesh, 1)


def random_mesh(draw: random.Random) -> Mesh:
    names = draw.choices(["x", "y", "z"], k=draw.randrange(4))
    axes = tuple(MeshAxis(name, draw.choice([1, 2, 3])) for name in names)
    if draw.random() < 0.4:
        return Mesh(axes)
    mesh = Mesh(axes)
    device_ids = list(range(mesh.num_devices))
    draw.shuffle(device_ids)
    if draw.random() < 0.4:
        device_ids[draw.randrange(len(device_ids))] = draw.randrange(-1, len(device_ids) + 2)
    if draw.random() < 0.2:
        device_ids.append(draw.randrange(5))
    return Mesh(axes, tuple(device_ids))


def test_random_meshes_get_the_verdict_and_text_shardy_gives(oracle: SdyOracle) -> None:
    draw = random.Random(3)
    for _ in range(300):
        mesh = random_mesh(draw)
        text = format_mesh(mesh, "mesh")
        ours = None if verify_mesh(mesh) else text
        verdict = oracle.mesh(text)
        assert ours == (verdict.text if verdict.accepts else None), text
