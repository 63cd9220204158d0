# SPDX-License-Identifier: PostgreSQL
"""A plan of any method from public numbers, its price, and what other methods would do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pg_dpml.blocks.distributed import count_shard_units, whereabouts
from pg_dpml.blocks.encoder import is_sparse
from pg_dpml.blocks.source import Source
from pg_dpml.database.session import Session
from pg_dpml.errors import GuaranteeError, ResolutionError, SpecError
from pg_dpml.ledger import charging, terms
from pg_dpml.privacy.resolution import with_least_epsilon
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import private_methods
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.spec import TrainSpec

__all__ = [
    "Alternative",
    "alternative",
    "alternatives",
    "charged_problem",
    "plan_of_run",
    "plan_problem",
    "priced_at",
    "problem_of",
]


def charged_problem(
    session: Session, source: Source, n_units: int, data: DataSpec, privacy: PrivacySpec | None
) -> Problem:
    """As `problem_of`, of a run that is charged: with how its budget adds up, if there is one."""
    problem = problem_of(source, n_units, data)
    if privacy is None:
        return problem
    return replace(problem, budget=charging.accounting_of(session, source.table, data.dataset))


def problem_of(source: Source, n_units: int, data: DataSpec) -> Problem:
    """The public numbers of a resolved table of n_units units."""
    outputs = len(data.label.classes) if data.label.classes is not None else 1
    return Problem(
        n_units,
        source.n_features,
        outputs,
        data.label.task,
        source.unit,
        data.max_rows_per_unit,
        most_pieces=tuple(most for most in source.most_pieces if most),
        intercept=source.encoder["intercept"],
        sparse=is_sparse(source.encoder),
    )


def plan_problem(problem: Problem, privacy: PrivacySpec | None, training: TrainSpec) -> Plan:
    """Decide a run from public numbers alone; see `plan`."""
    if privacy is None:
        return training.decide(problem, None)
    asked = privacy
    return with_least_epsilon(
        lambda epsilon: training.decide(problem, replace(asked, epsilon=epsilon)), asked.epsilon
    )


@dataclass(frozen=True)
class Alternative:
    """What a method would do with its default options.

    Attributes
    ----------
    method : str
    plan : Plan or None
        None where the method refuses.
    refusal : str or None
        Why it does, in a few words.
    """

    method: str
    plan: Plan | None
    refusal: str | None = None


def alternative(
    problem: Problem,
    privacy: PrivacySpec | None,
    method: str,
    require_room: Callable[[Plan], None] = lambda plan: None,
) -> Alternative:
    """A method's plan, or its refusal, from public numbers alone; `require_room` refuses what cannot run."""
    try:
        decided = TrainSpec(method).decide(problem, privacy)
        require_room(decided)
        return Alternative(method, decided)
    except (SpecError, GuaranteeError) as error:
        reason = re.split(r"[:;] ", str(error))[0]
        return Alternative(method, None, re.sub(rf"^method = {method} ", "it ", reason))


def alternatives(
    problem: Problem, privacy: PrivacySpec, require_room: Callable[[Plan], None] = lambda plan: None
) -> tuple[Alternative, ...]:
    """Every private method but `auto`, which chooses one of them; see `alternative`."""
    return tuple(
        alternative(problem, privacy, method, require_room)
        for method in private_methods()
        if method != "auto"
    )


def priced_at(problem: Problem, privacy: PrivacySpec, training: TrainSpec, epsilon: float) -> terms.Priced:
    """What a run would cost at another epsilon; see `charging.charge`.

    Raises
    ------
    SpecError, GuaranteeError
        If there is no such run.
    """
    decided = training.decide(problem, replace(privacy, epsilon=epsilon))
    assert decided.guarantee is not None
    assert decided.noise is not None
    return decided.guarantee, decided.noise.releases()


def plan_of_run(
    session: Session,
    source: Source,
    n_units: int,
    data: DataSpec,
    privacy: PrivacySpec | None,
    training: TrainSpec,
    terms: terms.Terms | None = None,
) -> Plan:
    """The plan of a run that is charged; of two refusals of a small epsilon, that which names the larger."""
    problem = charged_problem(session, source, n_units, data, privacy)
    if training.get("by_shards"):
        problem = replace(problem, shards=count_shard_units(session, source, n_units))
    try:
        decided = plan_problem(problem, privacy, training)
    except ResolutionError as error:
        assert privacy is not None
        at_epsilon = partial(priced_at, problem, privacy, training)
        refusal = charging.refusal_of(session, source.table, data.dataset, error, at_epsilon, terms)
    else:
        decided.require_room(session, source)
        place = whereabouts(session, source, needs_order=decided.needs_order, by_shards=decided.by_shards)
        return replace(decided, place=place.text)
    raise refusal
