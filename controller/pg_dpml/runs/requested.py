# SPDX-License-Identifier: PostgreSQL
"""Privacy and training of a request, from somebody who is not trusted."""

from __future__ import annotations

import json
from dataclasses import fields
from decimal import Decimal

from pg_dpml.errors import SpecError
from pg_dpml.ledger.terms import Terms, short
from pg_dpml.runs.grid import train_options
from pg_dpml.spec.checks import as_choice, as_table, require_known
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import methods, private_methods
from pg_dpml.training.spec import TrainSpec

__all__ = [
    "read_options",
]


def read_options(text: str, terms: Terms) -> tuple[PrivacySpec, TrainSpec]:
    """Privacy and training of a request: a JSON object of somebody who is not trusted.

    Parameters
    ----------
    text : str
        {"privacy": {"epsilon": ..., ...}, "training": {"method": ..., ...}}, named as in a grid file.
    terms : Terms
        Those of the data set. Their max_epsilon is also the largest epsilon that may be asked for.

    Returns
    -------
    PrivacySpec, TrainSpec

    Raises
    ------
    SpecError
        If it is anything else, or the method is not private.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # also for numbers of thousands of digits
        raise SpecError("options must be a JSON object of ordinary numbers and words") from None
    require_known(as_table(given, "options"), ("privacy", "training"), "options")
    privacy = as_table(given.get("privacy", {}), "privacy")
    require_known(privacy, [f.name for f in fields(PrivacySpec)], "privacy")
    if "epsilon" not in privacy:
        raise SpecError('options must have an epsilon, such as {"privacy": {"epsilon": 0.1}}')
    options = train_options(as_table(given.get("training", {}), "training"), "training")
    _require_private(options.get("method", "auto"))
    training = TrainSpec(**options)
    if type(privacy["epsilon"]) in (int, float):
        epsilon = Decimal(repr(privacy["epsilon"]))
        most = terms.max_epsilon
        if most < epsilon < Decimal("1e300"):  # else it is refused below, as no number for a computer
            raise SpecError(
                f"epsilon must be at most {short(most)}, as {terms.source} has it, and this request asks "
                f"for {epsilon:.12g}: nothing was charged"
            )
    return PrivacySpec(**privacy), training


def _require_private(method: object) -> None:
    """Reject anything but the name of a private method; the errors offer no other."""
    if isinstance(method, str) and method in methods() and not methods()[method].private:
        raise SpecError(f"method {method} is not private, and no model of it can be requested")
    as_choice(method, "method", private_methods())
