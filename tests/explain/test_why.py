"""Why a tensor is sharded as it is: an alternative is the plan with a pin to it, or forbidden."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import autoshard
from autoshard.errors import InputError, PlanError
from autoshard.explain.explanation import AlikeTensor, Refusal
from autoshard.explain.why import explain_tensor
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from autoshard.plan import Plan
from autoshard.planning.solution import Solution
from autoshard.sharding import parse_sharding
from autoshard.wishes.wishes import AlikeWish, Wishes
from tests.plan.plans import gpt_plan, plan_that_does_not_fit
from tests.planner.graphs import Program, plan, wishes_for

MESH = "x=2,y=4"


def two_layers(width: int = 512) -> Graph:
    program = Program()
    x = program.argument(256, width, name="x")
    first = program.argument(width, 1024, name="first")
    second = program.argument(1024, width, name="second")
    hidden = program.elementwise(program.matmul(x, first), name="tanh")
    return program.graph(program.matmul(hidden, second))


def seconds(solution: Solution) -> float:
    return solution.account.compute_seconds + solution.account.communication_seconds


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_an_alternative_costs_what_the_plan_with_a_pin_to_it_costs(argument: int) -> None:
    graph = two_layers()
    solution = plan(graph, MESH)
    found = explain_tensor(solution, f"in.{argument}", num_alternatives=100)
    assert len(found.alternatives) == found.num_shardings - 1 > 5
    assert not found.estimates
    for other in found.alternatives:
        pinned = plan(graph, MESH, wishes_for(graph, {argument: other.sharding}))
        assert other.status == "optimal"
        assert other.extra_seconds == pytest.approx(seconds(pinned) - seconds(solution), abs=1e-9)
        assert other.least_extra_seconds == pytest.approx(other.extra_seconds, rel=1e-3, abs=1e-9)
        # of two plans that cost the same, either may be found
        assert other.peak_bytes == pytest.approx(pinned.account.memory.peak_bytes, rel=0.03)
        changed = sum(change.extra_seconds for change in other.changes)
        assert changed == pytest.approx(other.extra_seconds, rel=0.02, abs=1e-9)
    extras = [other.extra_seconds for other in found.alternatives]
    assert extras == sorted(extras)  # type: ignore[type-var]


def test_what_was_not_planned_with_is_estimated_and_never_below_the_true_cost() -> None:
    graph = two_layers()
    solution = plan(graph, MESH)
    some = explain_tensor(solution, "in.1", num_alternatives=2)
    every = explain_tensor(solution, "in.1", num_alternatives=100)
    true_extra = {other.sharding: other.extra_seconds for other in every.alternatives}
    assert len(some.alternatives) == 2
    assert len(some.estimates) == every.num_shardings - 3
    for one in some.estimates:
        extra = true_extra[one.sharding]
        assert extra is not None
        assert one.extra_seconds >= extra - 1e-9


def test_an_alternative_that_fits_no_budget_has_no_time_and_says_what_it_needs() -> None:
    graph = two_layers()
    least = plan(graph, MESH, memory_limit=1).result.least_peak
    assert least is not None
    limit = least + 700_000  # a weight in four pieces takes 262 144 more, a whole one 1 835 008
    solution = plan(graph, MESH, memory_limit=limit)
    found = explain_tensor(solution, "in.1", num_alternatives=100)
    whole = next(o for o in found.alternatives if o.sharding == parse_sharding("[{}, {}]"))
    assert (whole.status, whole.extra_seconds, whole.changes) == ("infeasible", None, ())
    assert whole.peak_bytes > limit
    fitting = [other for other in found.alternatives if other.extra_seconds is not None]
    assert fitting
    assert all(other.peak_bytes <= limit for other in fitting)
    assert found.best_alternative == fitting[0]


# -- what forbids the rest -------------------------------------------------------------------------


def refusals(graph: Graph, path: str, wishes: Wishes | None = None) -> tuple[Refusal, ...]:
    return explain_tensor(plan(graph, MESH, wishes), path, num_alternatives=0).refusals


def test_a_size_that_an_axis_does_not_divide_is_named() -> None:
    assert refusals(two_layers(510), "in.1") == (
        Refusal(dimension=0, axes=("y",), reason="510 is no multiple of 4"),
    )


def test_a_pin_is_named_for_what_it_forbids() -> None:
    graph = two_layers()
    pinned = wishes_for(graph, {1: parse_sharding('[{"x"}, {?}]')})
    reason = 'asked for: <@mesh, [{"x"}, {?}]>, given as the sharding of the argument'
    assert refusals(graph, "in.1", pinned) == (
        Refusal(dimension=0, axes=("y",), reason=reason),
        Refusal(dimension=1, axes=("x",), reason=reason),
    )


def donated(pin: str) -> tuple[Graph, Wishes]:
    program = Program()
    state = program.argument(64, 64, name="state")
    graph = program.graph(program.elementwise(state, name="tanh"), donated=(0,))
    return graph, wishes_for(graph, results={0: parse_sharding(pin)}, alike=[(0, 0)])


def test_a_donated_argument_is_held_by_a_pin_on_what_replaces_it() -> None:
    graph, wishes = donated('[{"x"}, {}]')
    found = explain_tensor(plan(graph, MESH, wishes), "in.0")
    reason = 'result[0] must be sharded alike and is asked to be <@mesh, [{"x"}, {}]>'
    assert found.refusals == (
        Refusal(dimension=0, axes=("y",), reason=reason),
        Refusal(dimension=1, axes=("x", "y"), reason=reason),
    )
    assert found.alike == (
        AlikeTensor(name="result[0]", reason="the result that replaces this donated argument"),
    )
    assert (found.num_shardings, found.alternatives) == (1, ())


def test_members_of_groups_are_named_with_who_groups_them() -> None:
    program = Program()
    values = [program.argument(64, 64, name=name) for name in "abc"]
    graph = program.graph(*values, groups=((0, 1),))
    wish = AlikeWish(((0, 0), (2, 2)), "group 'state' (asked.yaml:3)")
    solution = plan(graph, MESH, replace(wishes_for(graph), groups=[wish]))
    assert explain_tensor(solution, "in.0").alike == (
        AlikeTensor(name="b", reason="one shard_alike group"),
        AlikeTensor(name="c", reason="group 'state' (asked.yaml:3)"),
    )


def test_a_dimension_that_its_op_needs_whole_is_named() -> None:
    program = Program()
    x = program.argument(64, 64, name="x")
    rule = Rule((64, 64), (((0,), (1,)),), (((0,), (1,)),), need_replication=frozenset({1}))
    (sorted_,) = program.compute("sort", (x,), [(64, 64)], rule, OpClass.SORT)
    graph = program.graph(sorted_)
    assert refusals(graph, "1.0") == (
        Refusal(dimension=1, axes=("x", "y"), reason="sort works along it and needs it whole"),
    )


def test_an_axis_that_a_shard_map_around_has_taken_is_named() -> None:
    program = Program()
    x = program.argument(64, 64, name="x")
    program.open_manual("y")
    inside = program.elementwise(x, name="tanh")
    program.close_manual()
    graph = program.graph(program.elementwise(inside, name="exp"))
    assert refusals(graph, "1.0") == (
        Refusal(dimension=0, axes=("y",), reason="y is manual in the shard_map around it"),
        Refusal(dimension=1, axes=("y",), reason="y is manual in the shard_map around it"),
    )


def test_a_scalar_and_a_constant_have_nothing_to_choose() -> None:
    program = Program()
    x = program.argument(64, 64, name="x")
    zeros = program.zeros(64, 64)
    total = program.sum(program.sum(program.elementwise(x, zeros)))
    solution = plan(program.graph(total), MESH)
    for path, note in (
        ("out<0", "a scalar has no dimension to cut"),
        ("1.0", "every device can make its own piece of it, so that its sharding is free"),
    ):
        found = explain_tensor(solution, path)
        assert (found.num_shardings, found.alternatives, found.refusals) == (0, (), ())
        assert found.notes == (note,)


def test_a_read_that_needs_a_collective_names_it() -> None:
    program = Program()
    x = program.argument(64, 64, name="x")
    graph = program.graph(program.constraint(x, '<@mesh, [{}, {"x"}]>'), program.elementwise(x))
    pinned = wishes_for(
        graph, {0: parse_sharding('[{"x"}, {}]')}, {1: parse_sharding('[{"x"}, {}]')}
    )
    found = explain_tensor(plan(graph, MESH, pinned), "in.0", num_alternatives=0)
    read = next(read for read in found.reads if read.op.startswith("sharding_constraint"))
    assert read.steps == ("all-to-all over x",)
    assert read.seconds > 0
    assert read.wanted == parse_sharding('[{}, {"x"}]')
    assert [other.steps for other in found.reads if other is not read] == [()]


# -- by the user's words ---------------------------------------------------------------------------

F32 = jnp.float32
PARAMS = {"w1": jax.ShapeDtypeStruct((256, 512), F32), "w2": jax.ShapeDtypeStruct((512, 256), F32)}
X = jax.ShapeDtypeStruct((64, 256), F32)


def forward(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    hidden: jax.Array = checkpoint_name(jnp.tanh(x @ params["w1"]), "hidden")
    total: jax.Array = jnp.sum((hidden @ params["w2"]) ** 2)
    return total


LINE = forward.__code__.co_firstlineno + 1


@pytest.fixture(scope="module")
def planned() -> Plan:
    return autoshard.optimize(
        forward,
        PARAMS,
        X,
        mesh="data=2,model=4",
        hardware="cpu-host",
        baselines=False,
        constraints={'params["w2"]': '[{"model"}, {?}]'},
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ('params["w1"]', ("in.0", "params['w1']")),
        (" x ", ("in.2", "x")),
        ("result", ("out<0", "result")),
        (f"test_why.py:{LINE} tanh", (None, f"tanh at test_why.py:{LINE} (forward)")),
        ("name:hidden", (None, f"name at test_why.py:{LINE} (forward)")),
        ("in.1", ("in.1", "params['w2']")),
    ],
)
def test_tensors_go_by_the_words_of_constraints_and_by_path(
    planned: Plan, name: str, found: tuple[str | None, str]
) -> None:
    explanation = planned.why(name, num_alternatives=0)
    path, called = found
    assert path in (None, explanation.path)
    assert explanation.name == called


def test_a_constraint_is_quoted_as_the_user_wrote_it(planned: Plan) -> None:
    found = planned.why('params["w2"]', num_alternatives=0)
    assert found.asked == ('pin `params["w2"]`: [{"model"}, {?}]',)
    assert Refusal(dimension=1, axes=("model",), reason=f"asked for: {found.asked[0]}") in (
        found.refusals
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            'params["w3"]',
            '`params["w3"]` selects nothing in this program\n'
            '  where: the tensor `params["w3"]`\n'
            "  fix: did you mean `params['w2']`, `params['w1']`?",
        ),
        (
            "params**",
            "`params**` selects 2 tensors: `params['w1']`: float32[256, 512] (in.0),"
            " `params['w2']`: float32[512, 256] (in.1)\n"
            "  where: the tensor `params**`\n"
            "  fix: name one of them, by its path if nothing else tells it apart",
        ),
        (
            "other.py:3",
            "`other.py:3` selects nothing in this program\n"
            "  where: the tensor `other.py:3`\n"
            "  fix: source files there are: `test_why.py`",
        ),
        (
            "99.0",
            "the program has no value at `99.0`\n"
            "  where: the name asked for\n"
            "  fix: name an argument, a result, or a line as constraints do",
        ),
    ],
)
def test_a_name_of_nothing_or_of_several_tensors_is_refused(
    planned: Plan, name: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        planned.why(name)
    assert str(caught.value) == message


def test_with_priorities_alternatives_extend_what_earlier_rounds_decided() -> None:
    plan = autoshard.optimize(
        forward,
        PARAMS,
        X,
        mesh="data=2,model=4",
        hardware="cpu-host",
        baselines=False,
        constraints={"x": '[{"data"}p0, {?}]', 'params["w1"]': '[{?}, {"model"}p1]'},
    )
    found = plan.why("x")
    assert found.alternatives
    assert all(other.sharding.dims[0].axes[:1] == X_ROWS for other in found.alternatives)
    assert found.notes == (
        "alternatives are among the plans that extend what earlier rounds decided",
    )


X_ROWS = parse_sharding('[{"data"}]').dims[0].axes


def test_the_border_of_a_shard_map_is_named() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def summed(x: jax.Array) -> jax.Array:
        total = jax.shard_map(
            lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()
        )(x)
        made: jax.Array = jnp.tanh(total)
        return made

    found = autoshard.optimize(summed, X, mesh=mesh, hardware="cpu-host", baselines=False).why(
        "0.0"
    )
    assert {refusal.reason for refusal in found.refusals} == {
        "the specs of the shard_map say how it lies"
    }


def test_the_answer_prints_itself(planned: Plan) -> None:
    text = str(planned.why('params["w1"]', num_alternatives=2))
    assert text.startswith("params['w1']: f32[256, 512]\nsharding  P(")
    for title in ("\nOther shardings  ", "\nThe rest  ", "\nRead by\n"):
        assert title in text


def test_a_module_is_asked_by_name_and_by_line(planned: Plan) -> None:
    module = autoshard.optimize_module(
        planned.stablehlo(), mesh="data=2,model=4", hardware="cpu-host", baselines=False
    )
    argument = module.data.arguments[0].name
    assert module.why(argument, num_alternatives=1).chosen == module.data.arguments[0].sharding
    assert module.why("in.0", num_alternatives=1) == module.why(argument, num_alternatives=1)


# -- without the problem ---------------------------------------------------------------------------


def test_a_plan_read_from_a_file_tells_what_it_knows() -> None:
    found = Plan(gpt_plan()).why('params["embed"]')
    assert (found.chosen, found.local_bytes) == (
        gpt_plan().arguments[9].sharding,
        gpt_plan().arguments[9].local_bytes,
    )
    assert (found.num_shardings, found.alternatives, found.reads) == (0, (), ())
    assert found.notes[0].startswith("this is what the plan knows by itself")
    assert Plan(gpt_plan()).why("3.0").chosen == gpt_plan().values["3.0"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gpt.py:41", "a plan by itself knows no source lines"),
        ("name:hidden", "a plan by itself knows no source lines"),
        ("99.0", "the plan has no sharding for a value at `99.0`"),
        ("in.99", "the plan has no sharding for a value at `in.99`"),
        ('params["head"]', '`params["head"]` selects nothing in this program'),
    ],
)
def test_what_a_plan_does_not_know_by_itself_is_refused(name: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        Plan(gpt_plan()).why(name)
    assert caught.value.what == what


def test_where_no_plan_was_found_there_is_nothing_to_explain() -> None:
    with pytest.raises(PlanError):
        Plan(plan_that_does_not_fit()).why("in.0")
