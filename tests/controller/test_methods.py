# SPDX-License-Identifier: PostgreSQL
"""What every method is, whatever it does: its options, its card, its examples."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import neighbours
from helpers.documents import ROOT
from helpers.kernel_job import KernelJob
from helpers.plans import decide
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import LOSS_KINDS, has_probability
from pg_dpml.privacy import gaussian
from pg_dpml.reports.plan_report import plan_text
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.losses import LOSSES, losses_of
from pg_dpml.training.method import method_options, methods, nearest_method, private_methods
from pg_dpml.training.options import Choice, Domain, Flag, Whole, shown_name
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

METHODS = tuple(methods())
PROBLEMS = {
    "binary": Problem(30_000, 20, 1, "binary"),
    "multiclass": Problem(30_000, 20, 4, "multiclass"),
    "regression": Problem(30_000, 20, 1, "regression"),
}


def other_than_default(domain: Domain, default: object) -> Any:
    """A value of a domain that is not the default."""
    if isinstance(domain, Choice):
        return domain.choices[-1]
    if isinstance(domain, Flag):
        return not default
    return 3 if isinstance(domain, Whole) else 0.125


def test_the_methods_are_these() -> None:
    assert METHODS[0] == "auto"
    assert set(METHODS) == {
        *("auto", "bolt-on", "bst14", "dp-gd", "dp-sgd", "scs13", "sufficient-statistics", "whitened-dp-gd"),
        *("dp-scd", "primal-dp-scd", "seq-dp-scd"),
        *("amp", "amp-hf", "objpert", "dp-agd"),
        *("frank-wolfe", "output-perturbation", "priv-gene"),
        *("lbfgs", "majority", "noiseless", "scd"),
    }
    assert set(METHODS) - set(private_methods()) == {"lbfgs", "majority", "noiseless", "scd"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", method_options())
def test_an_option_that_a_method_does_not_use_is_refused(method: str, name: str) -> None:
    declared = next(iter(method_options()[name].values()))
    value = other_than_default(declared.domain, declared.default)
    if method in method_options()[name]:
        spec = TrainSpec(method, **{name: value})
        assert spec.given() == {name: value}
        assert spec.get(name) == value
        return
    public = shown_name(name)
    with pytest.raises(SpecError, match=f"^{public} belongs to method .*not to {method}: leave"):
        TrainSpec(method, **{name: value})


@pytest.mark.parametrize(
    ("method", "name", "ways_out"),
    [
        ("dp-scd", "clip", "leave clip out, or give update_clip, or take method = bolt-on"),
        ("frank-wolfe", "lambda_", "leave lambda out, or take method = bolt-on"),
        ("scd", "clip", "leave clip out, or take method = lbfgs"),
        ("dp-gd", "accountant", "leave accountant out, or take method = bst14"),
    ],
)
def test_a_refusal_suggests_what_is_nearest(method: str, name: str, ways_out: str) -> None:
    given: dict[str, Any] = {name: "advanced" if name == "accountant" else 1.0}
    with pytest.raises(SpecError, match=f": {ways_out}$"):
        TrainSpec(method, **given)


def test_no_refusal_suggests_a_method_for_comparison_where_others_will_do() -> None:
    for name, used_by in method_options().items():
        able = {one for one in used_by if not methods()[one].comparison}
        for method in set(METHODS) - set(used_by):
            assert nearest_method(methods()[method], used_by) in (able or used_by), name


def test_the_documents_say_which_methods_are_for_comparison() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (.*)$", (ROOT / "docs/training.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    said = {name for name, rest in rows if "for comparison" in rest}
    assert said == {name for name, method in methods().items() if method.comparison}


@pytest.mark.parametrize("name", method_options())
def test_an_option_has_one_domain_and_one_default_in_all_methods(name: str) -> None:
    declared = list(method_options()[name].values())
    assert len({one.domain for one in declared}) == 1
    assert len({one.default for one in declared}) == 1
    for one in declared:
        assert one.help.endswith(".")
        assert one.otherwise or one.default is not None


@pytest.mark.parametrize("name", method_options())
def test_a_value_outside_of_its_domain_is_refused_by_name(name: str) -> None:
    method, declared = next(iter(method_options()[name].items()))
    bad: list[Any] = ["no such word", [], {}, b"x"]
    if not isinstance(declared.domain, Choice | Flag):
        bad += [math.nan, math.inf, -1, True]
    for value in bad:
        with pytest.raises(SpecError, match=f"^{shown_name(name)} must be "):
            TrainSpec(method, **{name: value})


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"there is no option pases.*passes"):
        TrainSpec("bolt-on", pases=3)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_it_is(method: str) -> None:
    chosen = methods()[method]
    assert chosen.summary
    assert (len(chosen.cards) > 0) == (chosen.private and method != "auto")
    for card in chosen.cards:
        assert card.theorem
        assert card.sensitivity
        assert card.checked
        assert card.charged
        assert card.corrected


@pytest.mark.parametrize("method", METHODS)
def test_examples_are_plans(method: str) -> None:
    chosen = methods()[method]
    assert chosen.examples
    for example in chosen.examples:
        spec = TrainSpec(method, **example.options)
        privacy = PrivacySpec(1.0, 1e-6) if chosen.private else None
        plan = decide(PROBLEMS[example.task], privacy, spec)
        assert plan.private is chosen.private
        assert (plan.noise is not None) is chosen.private
        assert plan.method == method or method == "auto"
    wrong = None if chosen.private else PrivacySpec(1.0)
    with pytest.raises(SpecError, match="needs epsilon" if chosen.private else "is not private"):
        decide(PROBLEMS[example.task], wrong, spec)


@pytest.mark.parametrize("method", METHODS)
def test_rows_need_an_order_just_where_passes_are_not_sums(method: str) -> None:
    """What asks the packed rows for sums alone needs no order; other passes are statements of the session."""
    x, y = np.random.default_rng(3).uniform(-0.1, 0.1, (60, 4)), np.tile([0.0, 1.0], 30)
    chosen = methods()[method]
    for example in chosen.examples:
        problem = Problem(60, 4, 2 if example.task == "multiclass" else 1, example.task)
        privacy = PrivacySpec(1.0, 1e-6) if chosen.private else None
        plan = decide(problem, privacy, TrainSpec(method, **example.options))
        labels = 2.0 * y - 1.0 if example.task == "binary" else y
        job: Any = KernelJob(plan, neighbours.pack("dense", x, labels, None, [30, 60]))
        job.blocks.source = SimpleNamespace(encoder={"intercept": True})
        if plan.needs_order:
            with pytest.raises(AttributeError, match="'KernelBlocks' object has no attribute"):
                plan.run(job)
        else:
            assert plan.run(job).weights.shape == (problem.n_weights,)


@pytest.mark.parametrize("method", METHODS)
def test_a_spec_changes_as_a_whole(method: str) -> None:
    spec = TrainSpec(method)
    assert spec.replace() == spec == TrainSpec(method, **spec.given())
    assert hash(spec) == hash(TrainSpec(method))
    if "passes" in method_options() and method in method_options()["passes"]:
        assert spec.replace(passes=7).get("passes") == 7
    assert spec.with_fixed_passes().method == method


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_without_a_gradient_is_for_methods_that_need_none(method: str) -> None:
    """The others name those that take it, of the same kind: a private method is no way out of a baseline."""
    chosen = methods()[method]
    spec = TrainSpec(method, loss="hinge")
    privacy = PrivacySpec(1.0, 1e-6) if chosen.private else None
    if "hinge" in chosen.losses["binary"]:
        assert decide(PROBLEMS["binary"], privacy, spec).work.loss.kind == "hinge"
        return
    able = ("dp-scd",) if chosen.private else ("scd",)
    with pytest.raises(SpecError, match=f"method = {method} does not take loss = hinge") as caught:
        decide(PROBLEMS["binary"], privacy, spec)
    assert str(caught.value).endswith(f"or method = {' or '.join(able)}")
    for task in ("multiclass", "regression"):
        with pytest.raises(SpecError):
            decide(PROBLEMS[task], privacy, spec)


def test_every_loss_of_the_kernels_has_a_task() -> None:
    assert set(LOSSES) == set(LOSS_KINDS)
    assert {kind for kind in LOSS_KINDS if has_probability(kind)} == {"logistic", "softmax"}
    assert not has_probability("perceptron")
    assert losses_of("binary", "multiclass", "regression") == {
        "binary": ("logistic", "huber_svm"),
        "multiclass": ("softmax", "logistic", "huber_svm"),
        "regression": ("squared",),
    }
    assert losses_of("binary", smooth=False) == {"binary": ("logistic", "huber_svm", "hinge")}


@pytest.mark.parametrize(
    ("problem", "epsilon", "warned"),
    [
        (Problem(1000, 47_237, 1, "binary"), 3.0, True),
        (Problem(1000, 47_237, 1, "binary"), 1.0, True),
        (Problem(39_073, 105, 1, "binary"), 0.1, False),
        (Problem(0, 105, 1, "binary"), 0.1, False),
    ],
)
def test_frank_wolfe_says_where_chance_chooses(problem: Problem, epsilon: float, warned: bool) -> None:
    warnings = decide(problem, PrivacySpec(epsilon, 1e-9), TrainSpec("frank-wolfe")).warnings
    assert any("chance chooses most coefficients" in warning for warning in warnings) is warned


@pytest.mark.parametrize("method", private_methods()[1:])
def test_a_letter_means_one_thing(method: str) -> None:
    """L is a gradient's bound and R a radius; D is of a unit, its m rows counted. Plans use no letters."""
    chosen = methods()[method]
    text = " ".join(f"{card.theorem} {card.sensitivity} {card.corrected}" for card in chosen.cards)
    assert not re.search(r"\bm D\b", text)
    if method in ("dp-scd", "seq-dp-scd", "primal-dp-scd", "frank-wolfe"):
        assert not re.search(r"\b[LR]\b", text)
    example = chosen.examples[0]
    plan = decide(PROBLEMS[example.task], PrivacySpec(1.0, 1e-6), TrainSpec(method, **example.options))
    for _, line in plan.work.lines():
        assert not re.search(r"\b[LRDbnq]\b", line.replace("<b, w>, b drawn", "")), line


def test_numbers_of_plans_read_well() -> None:
    wide = decide(Problem(1000, 47_237, 1, "binary"), PrivacySpec(1.0, 1e-6), TrainSpec("frank-wolfe"))
    assert "1,000 rows, 47,237 features" in plan_text(wide)
    for passes, averaged in ((1, False), (8, True)):
        spec = TrainSpec("dp-scd", passes=passes)
        plan = decide(PROBLEMS["binary"], PrivacySpec(1.0, 1e-6), spec)
        assert (f"over the ends of passes 7 to {passes}" in plan_text(plan)) is averaged
        assert "to 1," not in plan_text(plan)
    one_batch = decide(PROBLEMS["binary"], PrivacySpec(1.0, 1e-6), TrainSpec("output-perturbation"))
    assert "batches of 30,000," in plan_text(one_batch)
    one_pass = plan_text(decide(PROBLEMS["binary"], PrivacySpec(1.0, 1e-6), TrainSpec("seq-dp-scd")))
    assert "a unit is in one batch of the one pass" in " ".join(one_pass.split())
    for method in ("scd", "noiseless"):
        assert decide(PROBLEMS["binary"], None, TrainSpec(method)).work.lines()[0][1].startswith("at most ")
    with pytest.raises(GuaranteeError, match=r"allows for 1 noisy number: take"):
        gaussian.delta_left(1e-40, 1)
