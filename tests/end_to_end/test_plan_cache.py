"""Plans are kept by content: the same request reads its plan, any other one makes its own."""

from __future__ import annotations

import dataclasses
import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard import make_plan, program_search
from autoshard.build_plan import plan_data
from autoshard.plan_cache.entries import PlanCache
from autoshard.plan_cache.folder import VARIABLE, cache_folder, default_folder
from autoshard.plan_cache.lookup import Lookup

SHAPES = {"w1": jax.ShapeDtypeStruct((64, 128), jnp.float32)}
X = jax.ShapeDtypeStruct((32, 64), jnp.float32)


def step(params: Any, x: Any) -> Any:
    grads = jax.grad(lambda p: jnp.mean(jnp.tanh(x @ p["w1"]) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def planned(cache: Any, fn: Any = step, x: Any = X, **options: Any) -> autoshard.Plan:
    asked: dict[str, Any] = {"mesh": "data=2,model=4", "hardware": "cpu-host", "baselines": False}
    return autoshard.optimize(fn, SHAPES, x, cache=cache, **{**asked, **options})


@pytest.fixture
def no_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("planned, where a plan was kept")

    monkeypatch.setattr(program_search, "plan_graph", refuse)


def decided(plan: autoshard.Plan) -> Any:
    return dataclasses.replace(plan.data, notes=(), stage_seconds={})


def test_the_same_request_reads_its_plan_and_solves_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = planned(tmp_path)
    request.getfixturevalue("no_planning")
    second = planned(tmp_path)
    assert decided(second) == decided(first)
    assert second.data.notes[-1].startswith("kept plan, made in ")
    assert set(second.data.stage_seconds) == {"trace and lower", "plan cache"}
    params = {"w1": jnp.ones((64, 128))}
    x = np.ones((32, 64), np.float32)
    np.testing.assert_allclose(second.jit()(params, x)["w1"], step(params, x)["w1"], rtol=1e-5)


def test_a_program_is_traced_once_whether_its_plan_is_made_or_read(tmp_path: Path) -> None:
    traces: list[None] = []

    def counted(params: Any, x: Any) -> Any:
        traces.append(None)
        return step(params, x)

    planned(tmp_path, counted)
    assert len(traces) == 1
    assert planned(tmp_path, counted).data.notes[-1].startswith("kept plan")
    assert len(traces) == 2


def test_a_plan_that_was_interrupted_after_its_search_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = iter([KeyboardInterrupt])

    def interrupted(*args: Any) -> Any:
        for error in interrupts:
            raise error
        return plan_data(*args)

    monkeypatch.setattr(make_plan, "plan_data", interrupted)
    assert planned(tmp_path).data.is_feasible
    again = planned(tmp_path)
    assert not any(note.startswith("kept plan") for note in again.data.notes)
    assert planned(tmp_path).data.notes[-1].startswith("kept plan")


def another_step(params: Any, x: Any) -> Any:
    return step(params, 2 * x)


OTHER_REQUESTS: dict[str, dict[str, Any]] = {
    "shape": {"x": jax.ShapeDtypeStruct((64, 64), jnp.float32)},
    "program": {"fn": another_step},
    "mesh": {"mesh": "data=4,model=2"},
    "hardware": {"hardware": "tpu-v5e"},
    "budget": {"memory_budget": "1GiB"},
    "pin": {"constraints": {"params['w1']": jax.P("model")}},
    "in_shardings": {"in_shardings": (None, jax.P("data"))},
    "donated": {"donate_argnums": 0},
    "gap": {"relative_gap": 0.5},
    "baselines": {"baselines": True},
    "schedules": {"schedules": "none"},
}


@pytest.mark.parametrize("change", OTHER_REQUESTS)
@pytest.mark.usefixtures("no_planning")
def test_a_request_that_differs_in_anything_is_another_one(change: str, kept: Path) -> None:
    planned(kept)
    with pytest.raises(AssertionError, match="planned"):
        planned(kept, **OTHER_REQUESTS[change])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    planned(folder)
    return folder


def test_a_line_moved_in_the_source_is_another_request(kept: Path) -> None:
    names: dict[str, Any] = {"jax": jax, "jnp": jnp}
    text = "def step(params, x):\n    return {'w1': params['w1'] + jnp.mean(jnp.tanh(x))}\n"
    for moved, count in ((text, 1), (text, 1), ("\n" + text, 2)):
        exec(compile(moved, "model.py", "exec"), names)
        planned(kept / "moved", names["step"])
        assert len(PlanCache(kept / "moved").entries()) == count


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda packed: packed[: len(packed) // 2],
    "empty": lambda _: b"",
    "another byte": lambda packed: packed[:200] + bytes([packed[200] ^ 1]) + packed[201:],
    "no plan": lambda _: gzip.compress(b"{}"),
    "a rule broken": lambda packed: gzip.compress(
        gzip.decompress(packed).replace(b'"status": "optimal"', b'"status": "perfect"')
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_plan_is_made_anew_with_a_note(damage: str, tmp_path: Path) -> None:
    first = planned(tmp_path)
    (entry,) = PlanCache(tmp_path).entries()
    entry.path.write_bytes(DAMAGE[damage](entry.path.read_bytes()))
    second = planned(tmp_path)
    assert decided(second) == decided(first)
    assert f"the kept plan {entry.path.name} is damaged: " in second.data.notes[-1]
    assert planned(tmp_path).data.notes[-1].startswith("kept plan")


def test_a_kept_plan_answers_all_that_a_new_one_does(tmp_path: Path) -> None:
    first = planned(tmp_path)
    second = planned(tmp_path)
    assert str(second.why("params['w1']")) == str(first.why("params['w1']"))
    assert second.solution is not None
    assert second.solution.is_feasible


def test_a_searched_mesh_is_kept_with_what_was_tried(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = planned(tmp_path, mesh=None, devices=4)
    request.getfixturevalue("no_planning")
    second = planned(tmp_path, mesh=None, devices=4)
    assert second.data.mesh_search == first.data.mesh_search


def test_a_plan_that_fits_no_budget_is_kept_too(tmp_path: Path) -> None:
    asked = {"memory_budget": 1000, "mesh": "data=8"}
    first = planned(tmp_path, **asked)
    assert not first.data.is_feasible
    assert decided(planned(tmp_path, **asked)) == decided(first)


def test_a_module_is_kept_like_a_function(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = jax.jit(step).lower(SHAPES, X).as_text()
    asked: dict[str, Any] = {"mesh": "data=2,model=4", "hardware": "cpu-host", "cache": tmp_path}
    first = autoshard.optimize_module(text, **asked)
    request.getfixturevalue("no_planning")
    second = autoshard.optimize_module(text, **asked)
    assert decided(second) == decided(first)
    assert second.stablehlo() == first.stablehlo()


def test_a_folder_that_cannot_be_written_is_refused_before_planning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(autoshard.InputError, match="plans cannot be kept"):
        planned(tmp_path / "file" / "plans")


def test_no_folder_is_used_unless_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    usual = default_folder()
    for variable, said, folder in (
        (None, None, None),
        (None, True, usual),
        (None, "plans", Path("plans")),
        ("1", None, usual),
        ("1", False, None),
        ("off", None, None),
        ("off", True, usual),
        ("/shared/plans", None, Path("/shared/plans")),
        ("/shared/plans", True, Path("/shared/plans")),
        ("/shared/plans", "mine", Path("mine")),
    ):
        if variable is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, variable)
        assert cache_folder(said) == folder
    with pytest.raises(autoshard.InputError, match="expected a folder"):
        cache_folder(3)  # type: ignore[arg-type]


def test_a_process_that_waits_reads_the_plan_once_it_is_there(tmp_path: Path) -> None:
    data = planned(None).data
    lookup = Lookup.of(PlanCache(tmp_path / "late"), "step", "0" * 64)
    writer = Lookup.of(PlanCache(tmp_path / "late"), "step", "0" * 64)
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            writer.cache.require_writable()
            writer.path.write_bytes(b"half of it")
        if len(looks) == 5:
            assert writer.keep(data) == ""

    assert lookup.waited_for(60, sleep=sleep) == data
    assert len(looks) == 5


def test_a_process_does_not_wait_for_ever(tmp_path: Path) -> None:
    lookup = Lookup.of(PlanCache(tmp_path), "step", "0" * 64)
    with pytest.raises(autoshard.PlanError) as caught:
        lookup.waited_for(0.0)
    assert caught.value.what == "process 0 kept no plan within 0 s"


def test_processes_that_keep_one_plan_at_once_leave_it_whole(tmp_path: Path) -> None:
    data = planned(None).data
    lookups = [Lookup.of(PlanCache(tmp_path), "step", "0" * 64) for _ in range(8)]
    threads = [threading.Thread(target=lookup.keep, args=(data,)) for lookup in lookups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == [lookups[0].path.name]
    assert lookups[0].found() == data


def test_names_of_functions_become_names_of_files(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    path = cache.path("<lambda> of ../x", "0" * 64)
    assert path.parent == tmp_path
    assert path.name == f"_lambda__of_.._x-{'0' * 64}.plan.json.gz"
