"""Leaving rules of the model out, one at a time."""

from __future__ import annotations

import dataclasses

from autoshard.backends import get_backend
from autoshard.costing.op_terms import OP_TERMS
from experiments.ablation import Change, page_rows, rules_of


def test_every_rule_leaves_out_one_thing() -> None:
    backend = get_backend("tpu-v5e")
    rules = list(rules_of(backend))
    assert len({rule.name for rule in rules}) == len(rules) > len(OP_TERMS)
    for rule in rules:
        changed = [
            (section, field.name)
            for section in ("fusion", "layout", "collectives", "memory", "schedule")
            for field in dataclasses.fields(getattr(backend, section))
            if getattr(getattr(backend, section), field.name)
            != getattr(getattr(rule.backend, section), field.name)
        ]
        assert len(changed) + len(OP_TERMS) - len(rule.terms) == 1


def test_a_rule_is_idle_where_neither_plan_nor_prediction_changes_by_a_hundredth() -> None:
    idle = Change("a", "t5 v5e", 0.009, -0.009, 0.0)
    assert idle.is_idle
    assert not dataclasses.replace(idle, peak=0.01).is_idle
    assert dataclasses.replace(idle, loss=None).is_idle


def test_rules_that_change_least_come_first() -> None:
    changes = [
        Change("needed", "t5 v5e", 0.3, 0.0, 0.0),
        Change("idle", "t5 v5e", 0.0, 0.001, 0.0),
        Change("idle", "mixer v5e", None, 0.0, 0.0),
    ]
    first, second = page_rows(changes)
    assert (first["left out"], first["changes"]) == ("`idle`", "nothing")
    assert (second["plan loses"], second["changes"]) == ("+30.0%", "t5 v5e")
