"""Plans to test with: one that reads like a real one, one that was not found, and random ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from autoshard.frontend.program_record import ProgramRecord
from autoshard.graph.collective import PredictedCollective
from autoshard.loops.dot_schedule import DotSchedule
from autoshard.plans.plan import (
    AskedSharding,
    AskedTerm,
    Baseline,
    HeldTensor,
    LiveTensor,
    MemoryUse,
    Miss,
    PlanData,
    PlannedOp,
    PlannedRound,
    PlannedTensor,
    ProgramLine,
    SolverFacts,
)
from autoshard.plans.planned_product import PlannedProduct
from autoshard.plans.verify_plan import STATUSES
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    MeshAxis,
    Sharding,
    canonicalize,
    parse_sharding,
)

MESH = Mesh((MeshAxis("data", 2), MeshAxis("model", 4)))
_LAYERS = 3


def gpt_plan() -> PlanData:
    """A training step of a small GPT on a 2x4 mesh, by hand."""
    arguments = tuple(
        tensor
        for layer in range(_LAYERS)
        for tensor in (
            _tensor(f"params['blocks'][{layer}]['w1']", (512, 2048), '[{"data"}, {"model"}]'),
            _tensor(f"params['blocks'][{layer}]['w2']", (2048, 512), '[{"model"}, {"data"}]'),
            _tensor(f"params['blocks'][{layer}]['ln']", (512,), "[{}]"),
        )
    )
    arguments += (
        _tensor("params['embed']", (32000, 512), '[{"model", "data"}, {}]'),
        _tensor("kv", (8, 4, 64), '[{"data"}, {"model":(1)2}, {}]'),
        _tensor("tokens", (8, 1024), '[{"data"}, {}]', "i32"),
    )
    ops = tuple(
        op
        for layer in range(_LAYERS)
        for op in (
            _op(10 * layer, "dot_general", "gpt.py:41 (mlp)", 2.0e-3, 0.5e-3),
            _op(10 * layer + 1, "tanh", "gpt.py:42 (mlp)", 1.0e-4, 0.0),
        )
    )
    collectives = (
        PredictedCollective(
            "all-gather", ("data",), 2, 1_048_576, 3.0, "dot_general at gpt.py:41 (mlp)"
        ),
        PredictedCollective(
            "all-reduce", ("model",), 4, 4_194_304, 3.0, "dot_general at gpt.py:43 (mlp)"
        ),
        PredictedCollective("all-reduce", ("model",), 4, 4, 1.0, "reduce at gpt.py:60 (loss)"),
        PredictedCollective(
            "reduce-scatter", ("data", "model:(1)2"), 4, 65_536_000, 1.0, "scatter at gpt.py:20"
        ),
    )
    return PlanData(
        function="train_step",
        program=ProgramRecord(
            fingerprint="9f2c41d07be355aa",
            argument_names=tuple(tensor.name for tensor in arguments),
            argument_types=tuple(tensor.dtype for tensor in arguments),
            result_names=("result",),
            result_types=("f32",),
            num_equations=120,
            line_digests="00a1b2",
        ),
        mesh=MESH,
        hardware="tpu-v5e",
        compiler_model="libtpu 0.0.42 for v5e",
        memory_budget=150_000_000,
        arguments=arguments,
        results=(_tensor("result", (), "[]"),),
        values={
            "3.0": parse_sharding('[{"data"}, {}, {"model"}]'),
            "7.jaxpr/2.0": parse_sharding('[{"data"}, {"model"}]'),
        },
        wanted_uses={"9<1": parse_sharding('[{}, {"model"}]')},
        constraints={
            "3.0": parse_sharding('[{"data"}, {?}, {"model"}]'),
            "9<1": parse_sharding('[{}, {"model"}]'),
        },
        misses=(
            Miss(
                path="12.0",
                planned=parse_sharding('[{"data"}]'),
                propagated=parse_sharding("[{}]"),
                extra_seconds=1.5e-6,
            ),
        ),
        ops=ops,
        collectives=collectives,
        compute_seconds=6.3e-3,
        communication_seconds=1.5e-3,
        memory=MemoryUse(
            argument_bytes=40_000_000,
            peak_bytes=120_000_000,
            peak_op=20,
            peak_where="dot_general at gpt.py:41 (mlp)",
            live_at_peak=(
                LiveTensor(
                    name="params['embed']",
                    source="",
                    type_text="f32[32000, 512]",
                    sharding=parse_sharding('[{"model", "data"}, {}]'),
                    local_bytes=8_192_000,
                ),
                LiveTensor(
                    name="",
                    source="gpt.py:41 (mlp)",
                    type_text="f32[8, 1024, 2048]",
                    sharding=parse_sharding('[{"data"}, {}, {"model"}]'),
                    local_bytes=8_388_608,
                ),
                LiveTensor(
                    name="",
                    source="gpt.py:41 (mlp)",
                    type_text="f32[8, 1024, 2048]",
                    sharding=parse_sharding('[{"data"}, {}, {"model"}]'),
                    local_bytes=8_388_608,
                ),
            ),
            timeline=((0, 40_000_000), (20, 120_000_000), (21, 60_000_000)),
            held=(
                _held("params['embed']", "argument", 8_192_000, 0, 22),
                _held("tanh", "value", 33_554_432, 20, 22),
                _held("copy of tanh for dot_general", "copy", 41_943_040, 20, 21),
            ),
        ),
        solver=SolverFacts(
            status="within gap",
            advice="Ask for a smaller relative_gap to search on.",
            backend="ortools-highs",
            seconds=7.8e-3,
            bound_seconds=7.75e-3,
            gap=(7.8e-3 - 7.75e-3) / 7.8e-3,
            num_ops=120,
            num_choices=4_812,
            reduced_nodes=31,
            reduced_columns=902,
            model_gap=0.003,
            log=("presolve: 120 nodes to 31",),
        ),
        baselines=(
            Baseline(
                name="replicated",
                seconds=21.0e-3,
                collective_bytes=0.0,
                peak_bytes=400_000_000,
                fits=False,
            ),
            Baseline(
                name="data parallel",
                seconds=11.7e-3,
                collective_bytes=210_000_000.0,
                peak_bytes=140_000_000,
                fits=True,
            ),
        ),
        notes=("loop with unknown trip count: taken as 10 (gpt.py:55)",),
        places={
            "3.0": "gpt.py:41 (mlp), on what dot_general makes",
            "9<1": "gpt.py:43 (mlp), before operand 1 of dot_general, for this read alone",
            "12.0": "gpt.py:60 (loss), on what reduce makes",
        },
        stage_seconds={"trace": 0.4, "solve": 1.25, "costs": 0.031},
        versions={"autoshard": "0.1.0", "jax": "0.10.2", "ortools": "9.15"},
        asked=(
            AskedTerm(
                text="pin `params**['w1']`: [{?}, {\"model\"}]", paths=("in.0", "in.3", "in.6")
            ),
            AskedTerm(text="pin `gpt.py:41`: P('data',)", paths=("3.0", "7.jaxpr/2.0")),
            AskedTerm(text='uses of `kv` by `gpt.py:43`: [{}, {"model"}]', paths=("9<1",)),
        ),
    )


def plan_with_many_ops(num_ops: int = 5_000) -> PlanData:
    """A plan of a program of that many ops, each on a line and of a size of its own."""
    plan = gpt_plan()
    mesh = Mesh((MeshAxis("data", 16), MeshAxis("model", 16)))
    shardings = tuple(
        map(
            parse_sharding,
            ('[{"data"}, {"model"}]', '[{"model"}, {}]', "[{}, {}]", '[{"data", "model"}, {}]'),
        )
    )
    spread = range(num_ops)
    ops = tuple(
        replace(
            _op(number, f"op_{number % 40}", _line(number), 1e-6 * (number % 97), 1e-7 * number),
            result=f"f32[{256 * (1 + number % 64)}, 4096]",
            sharding=shardings[number % 4],
        )
        for number in spread
    )
    return replace(
        plan,
        mesh=mesh,
        arguments=tuple(
            replace(
                _tensor(f"params['blocks'][{number}]['w']", (4096, 4096), "[{}, {}]"),
                sharding=shardings[number % 4],
            )
            for number in range(num_ops // 10)
        ),
        values={f"{number}.0": shardings[number % 4] for number in spread},
        wanted_uses={},
        constraints={f"{number}.0": shardings[number % 4] for number in range(0, num_ops, 10)},
        ops=ops,
        collectives=tuple(
            PredictedCollective(
                ("all-gather", "all-reduce", "reduce-scatter")[number % 3],
                (("data",), ("model",), ("data", "model"))[number % 3],
                (16, 16, 256)[number % 3],
                1_000 * (number + 1),
                1.0,
                f"{ops[number].name} at {ops[number].source}",
            )
            for number in range(0, num_ops, 2)
        ),
        compute_seconds=sum(op.compute_seconds for op in ops),
        communication_seconds=sum(op.communication_seconds for op in ops),
        memory=replace(
            plan.memory,
            timeline=tuple(
                (number, 40_000_000 + 10_000 * min(number, num_ops - number)) for number in spread
            ),
            peak_op=num_ops // 2,
            peak_bytes=40_000_000 + 10_000 * (num_ops // 2),
            held=tuple(
                _held(f"tensor {number}", "value", 100_000 + number, 5 * number, 5 * number + 400)
                for number in range(num_ops // 5)
            ),
        ),
    )


def _line(number: int) -> str:
    return f"model.py:{number + 1} (block)" if number % 3 else f"train.py:{number + 1} (step)"


def _held(name: str, kind: str, local_bytes: int, start: int, stop: int) -> HeldTensor:
    return HeldTensor(
        name=name,
        kind=kind,
        source="gpt.py:41 (mlp)" if kind != "argument" else "",
        type_text="f32[8, 1024, 2048]",
        sharding=parse_sharding('[{"data"}, {}, {"model"}]'),
        local_bytes=local_bytes,
        start=start,
        stop=stop,
    )


def plan_that_does_not_fit() -> PlanData:
    """No plan keeps within the budget; the least peak found is 20 MB over it."""
    plan = gpt_plan()
    return replace(
        plan,
        memory_budget=100_000_000,
        solver=replace(
            plan.solver,
            status="infeasible",
            advice="Raise the memory limit, or use more devices.",
            seconds=0.0,
            bound_seconds=0.0,
            gap=float("inf"),
        ),
        constraints=None,
        misses=(),
        baselines=(),
    )


def plan_in_rounds() -> PlanData:
    """A plan of three rounds: batch first, then Megatron, then ZeRO; round 1 is left out."""
    batch = AskedSharding(where="argument x: f32[8, 64]", sharding=parse_sharding('[{"data"}, {}]'))
    weights = tuple(
        AskedSharding(
            where=f"argument w[{layer}]: f32[64, 128]", sharding=parse_sharding('[{}, {"model"}p2]')
        )
        for layer in range(3)
    )
    moment = AskedSharding(
        where="argument m: f32[64, 128]", sharding=parse_sharding('[{"data"}p3, {"model"}p2]')
    )
    return replace(
        gpt_plan(),
        rounds=(
            _round(0, (batch,), ("data",), 4e-3, '[{"data"}, {}]', "[{}, {}]", "[{}, {}]"),
            _round(
                2,
                (*weights, moment),
                ("data", "model"),
                3e-3,
                '[{"data"}, {"model"}]',
                '[{}, {"model"}]',
                '[{}, {"model"}]',
            ),
            _round(
                3,
                (moment,),
                ("data", "model"),
                2e-3,
                '[{"data"}, {"model"}]',
                '[{}, {"model"}]',
                '[{"data"}, {"model"}]',
            ),
        ),
        listing=tuple(
            ProgramLine(text=text, source=source)
            for text, source in (
                ("%0: f32[8, 64] = argument x", ""),
                ("%1: f32[64, 128] = argument w[0]", ""),
                ("%2: f32[64, 128] = argument m", ""),
                ("loop 3 times", "gpt.py:40 (step)"),
                ("  %3: f32[8, 128] = dot_general %0 %1", "gpt.py:41 (mlp)"),
                ("  %4: f32[] = reduce %3", "gpt.py:42 (mlp)"),
                ("return result %2", ""),
            )
        ),
    )


def _round(
    priority: int,
    asked: tuple[AskedSharding, ...],
    axes: tuple[str, ...],
    seconds: float,
    hidden: str,
    weight: str,
    moment: str,
) -> PlannedRound:
    return PlannedRound(
        priority=priority,
        asked=asked,
        axes=axes,
        seconds=seconds,
        collective_bytes=1e6 * priority,
        peak_bytes=80_000_000 // (priority + 1),
        shardings=tuple(
            tuple(map(parse_sharding, texts))
            for texts in (
                ('[{"data"}, {}]',),
                (weight,),
                (moment,),
                (),
                (hidden,),
                ("[]",),
                (moment,),
            )
        ),
    )


def _tensor(name: str, shape: tuple[int, ...], sharding: str, dtype: str = "f32") -> PlannedTensor:
    found = parse_sharding(sharding)
    num_bytes = 4
    for size in shape:
        num_bytes *= size
    shards = 1
    for axis in found.axis_refs():
        shards *= axis.size_on(MESH)
    return PlannedTensor(
        name=name,
        shape=shape,
        dtype=dtype,
        sharding=found,
        num_bytes=num_bytes,
        local_bytes=num_bytes // shards,
    )


def _op(index: int, name: str, source: str, compute: float, communication: float) -> PlannedOp:
    return PlannedOp(
        index=index,
        name=name,
        source=source,
        result="f32[8, 1024, 2048]",
        sharding=parse_sharding('[{"data"}, {}, {"model"}]'),
        cut=8,
        repeat=1.0,
        compute_seconds=compute,
        communication_seconds=communication,
    )


# Random plans

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)

_printable = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
_text = st.text(_printable, max_size=12)
_name = st.text(_printable, min_size=1, max_size=4)
_amount = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
_bytes = st.integers(min_value=0, max_value=2**70)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    names = draw(st.lists(_name, max_size=3, min_size=1, unique=True))
    axes = tuple(MeshAxis(name, draw(st.sampled_from([1, 2, 4, 6, 8]))) for name in names)
    mesh = Mesh(axes)
    if draw(st.booleans()):
        mesh = Mesh(axes, tuple(draw(st.permutations(range(mesh.num_devices)))))
    return mesh


@st.composite
def shardings(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    """A sound sharding: whole axes and halves of axes, dealt out to places at most once."""
    parts = []
    for axis in mesh.axes:
        if axis.size > 2 and draw(st.booleans()):
            parts += [AxisRef(axis.name, 1, 2), AxisRef(axis.name, 2, axis.size // 2)]
        elif axis.size > 1:
            parts.append(AxisRef(axis.name))
    places: list[list[AxisRef]] = [[] for _ in range(rank + 3)]
    for part in draw(st.permutations(parts)):
        places[draw(st.integers(0, rank + 2))].append(part)
    dims = tuple(
        DimSharding(tuple(axes), draw(st.booleans()), draw(st.none() | st.integers(0, 3)))
        for axes in places[:rank]
    )
    sharding = Sharding(dims, tuple(places[rank]), tuple(places[rank + 1]))
    return canonicalize(sharding, mesh)


@st.composite
def dot_schedules(draw: st.DrawFn, mesh: Mesh) -> DotSchedule:
    """A schedule of a matrix product on some axes of a mesh."""
    axes = st.lists(st.sampled_from(mesh.axis_names), min_size=1, unique=True)
    grid = tuple(draw(axes))

    def home(rank: int) -> Sharding:
        cuts: list[list[AxisRef]] = [[] for _ in range(rank + 1)]  # the last ones cut nothing
        for axis in draw(st.permutations(grid)):
            cuts[draw(st.integers(0, rank))].append(AxisRef(axis))
        return Sharding(tuple(DimSharding(tuple(refs)) for refs in cuts[:rank]))

    panels = DotSchedule(
        statement="A(a,b) += B(a,c) * C(c,b)",
        homes=(home(2), home(2), home(2)),
        grid=grid,
        cut=tuple(draw(st.sampled_from("abc")) for _ in grid),
        over="c",
        panel=draw(st.integers(1, 64)),
        num_steps=draw(st.integers(1, 64)),
    )
    if draw(st.booleans()):
        return panels
    moved = draw(st.sampled_from("ABC"))
    return replace(
        panels,
        over=draw(st.sampled_from({"A": "ab", "B": "ac", "C": "cb"}[moved])),
        num_steps=mesh.sizes[grid[0]],
        rings=grid[:1],
        moved=moved,
        both_ways=draw(st.booleans()),
    )


@st.composite
def plans(draw: st.DrawFn) -> PlanData:
    """Any plan that `verify_plan` takes, small."""
    mesh = draw(meshes())

    def some_sharding() -> Sharding:
        return draw(shardings(mesh, draw(st.integers(0, 3))))

    def tensors() -> tuple[PlannedTensor, ...]:
        shapes = draw(st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=3))
        return tuple(
            PlannedTensor(
                name=draw(_text),
                shape=shape,
                dtype=draw(_text),
                sharding=draw(shardings(mesh, len(shape))),
                num_bytes=draw(_bytes),
                local_bytes=draw(_bytes),
            )
            for shape in shapes
        )

    def by_path() -> dict[str, Sharding]:
        return {path: some_sharding() for path in draw(st.lists(_text, max_size=3, unique=True))}

    def repeated() -> range:
        return range(draw(st.integers(0, 2)))

    texts = st.lists(_text, max_size=2).map(tuple)
    lines = tuple(ProgramLine(text=draw(_text), source=draw(_text)) for _ in repeated())
    priorities = draw(st.sets(st.integers(0, 9), min_size=2, max_size=3) | st.just(set[int]()))
    return PlanData(
        function=draw(_text),
        program=ProgramRecord(
            fingerprint=draw(_text),
            argument_names=draw(texts),
            argument_types=draw(texts),
            result_names=draw(texts),
            result_types=draw(texts),
            num_equations=draw(st.integers(0, 9)),
            line_digests=draw(_text),
        ),
        mesh=mesh,
        hardware=draw(_text),
        memory_budget=draw(st.none() | _bytes),
        arguments=tensors(),
        results=tensors(),
        values=by_path(),
        wanted_uses=by_path(),
        constraints=by_path() if draw(st.booleans()) else None,
        misses=tuple(
            Miss(
                path=draw(_text),
                planned=some_sharding(),
                propagated=some_sharding(),
                extra_seconds=draw(_amount),
            )
            for _ in repeated()
        ),
        ops=tuple(
            PlannedOp(
                index=index,
                name=draw(_text),
                source=draw(_text),
                result=draw(_text),
                sharding=some_sharding(),
                cut=draw(st.integers(1, 8)),
                repeat=draw(_amount),
                compute_seconds=draw(_amount),
                communication_seconds=draw(_amount),
            )
            for index in repeated()
        ),
        collectives=tuple(
            PredictedCollective(
                draw(_text),
                draw(texts),
                draw(st.integers(1, 8)),
                draw(_bytes),
                draw(_amount),
                draw(_text),
            )
            for _ in repeated()
        ),
        compute_seconds=draw(_amount),
        communication_seconds=draw(_amount),
        memory=MemoryUse(
            argument_bytes=draw(_bytes),
            peak_bytes=draw(_bytes),
            peak_op=draw(st.integers(0, 9)),
            peak_where=draw(_text),
            live_at_peak=tuple(
                LiveTensor(
                    name=draw(_text),
                    source=draw(_text),
                    type_text=draw(_text),
                    sharding=some_sharding(),
                    local_bytes=draw(_bytes),
                )
                for _ in repeated()
            ),
            timeline=tuple((index, draw(_bytes)) for index in repeated()),
            held=tuple(
                HeldTensor(
                    name=draw(_text),
                    kind=draw(
                        st.sampled_from(["argument", "output", "value", "copy", "panels", "work"])
                    ),
                    source=draw(_text),
                    type_text=draw(_text),
                    sharding=some_sharding(),
                    local_bytes=draw(_bytes),
                    start=start,
                    stop=start + draw(st.integers(0, 9)),
                )
                for start in repeated()
            ),
        ),
        solver=SolverFacts(
            status=draw(st.sampled_from(STATUSES)),
            advice=draw(_text),
            backend=draw(_text),
            seconds=draw(_amount),
            bound_seconds=draw(_amount),
            gap=draw(_amount | st.just(float("inf"))),
            num_ops=draw(st.integers(0, 9)),
            num_choices=draw(st.integers(0, 9)),
            reduced_nodes=draw(st.integers(0, 9)),
            reduced_columns=draw(st.integers(0, 9)),
            model_gap=draw(_amount),
            log=draw(texts),
        ),
        baselines=tuple(
            Baseline(
                name=draw(_text),
                seconds=draw(_amount),
                collective_bytes=draw(_amount),
                peak_bytes=draw(_bytes),
                fits=draw(st.booleans()),
                overlapped_seconds=draw(st.none() | _amount),
            )
            for _ in repeated()
        ),
        notes=draw(texts),
        places=draw(st.dictionaries(_text, _text, max_size=2)),
        stage_seconds=draw(st.dictionaries(_text, _amount, max_size=2)),
        versions=draw(st.dictionaries(_text, _text, max_size=2)),
        overlapped_seconds=draw(st.none() | _amount),
        rounds=tuple(
            PlannedRound(
                priority=priority,
                asked=tuple(
                    AskedSharding(where=draw(_text), sharding=some_sharding()) for _ in repeated()
                ),
                axes=draw(texts),
                seconds=draw(_amount),
                collective_bytes=draw(_amount),
                peak_bytes=draw(_bytes),
                shardings=tuple(tuple(some_sharding() for _ in repeated()) for _ in lines),
            )
            for priority in sorted(priorities)
        ),
        listing=lines,
        asked=tuple(AskedTerm(text=draw(_text), paths=draw(texts)) for _ in repeated()),
        products=tuple(
            PlannedProduct(
                equation=draw(_text),
                name=draw(_text),
                source=draw(_text),
                result=draw(_text),
                schedule=draw(st.none() | dot_schedules(mesh)),
                seconds=draw(_amount),
                extra_bytes=draw(_bytes),
                other_seconds=draw(st.none() | _amount),
                other_bytes=draw(st.none() | _bytes),
                other_fits=draw(st.booleans()),
            )
            for _ in repeated()
        ),
    )
