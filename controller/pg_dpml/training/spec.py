# SPDX-License-Identifier: PostgreSQL
"""How to train: a method and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.names import did_you_mean
from pg_dpml.spec.checks import as_choice
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import Method, declared_option, method_options, methods, nearest_method
from pg_dpml.training.options import Options, shown_name
from pg_dpml.training.plan import Plan, Problem

__all__ = ["TrainSpec"]


@dataclass(frozen=True, init=False)
class TrainSpec:
    """How to train.

    Parameters
    ----------
    method : str
        "auto", which chooses a method by public numbers, or the name of a method.
    **options
        Options of the method, see docs/options.md; `lambda` is written `lambda_`. The default of an
        option counts as not given.

    Attributes
    ----------
    method : str
    options : Options
        All options of the method, those that were not given at their defaults.

    Raises
    ------
    SpecError
        If there is no such method, the method has no such option, or a value is outside of its domain.
    """

    method: str
    options: Options

    def __init__(self, method: str = "auto", **options: Any) -> None:
        as_choice(method, "method", tuple(methods()))
        chosen = methods()[method]
        own = {name: value for name, value in options.items() if _is_given(chosen, name, value)}
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "options", chosen.options(**own))

    @property
    def chosen(self) -> Method[Any]:
        """The method."""
        return methods()[self.method]

    def decide(self, problem: Problem, privacy: PrivacySpec | None) -> Plan:
        """The method's plan for these options; errors as of `Method.decide`."""
        return self.chosen.decide(problem, privacy, self.options)

    def get(self, name: str) -> Any:
        """Value of an option; None if the method has none of this name."""
        return getattr(self.options, name, None)

    def given(self) -> Mapping[str, Any]:
        """The options that differ from their defaults."""
        return self.options.given()

    def replace(self, **changes: Any) -> TrainSpec:
        """Another spec, with some options, or the method, changed."""
        return TrainSpec(**({"method": self.method} | dict(self.given()) | changes))

    def with_fixed_passes(self) -> TrainSpec:
        """Another spec, whose number of passes is fixed beforehand where a default would leave it open."""
        return TrainSpec(self.method, **self.options.with_fixed_passes().given())


def _is_given(method: Method[Any], name: str, value: object) -> bool:
    """Whether a value says anything; that of an option of other methods only is refused.

    Raises
    ------
    SpecError
    """
    used_by = method_options().get(name)
    if used_by is None:
        known = [shown_name(one) for one in method_options()]
        raise SpecError(f"there is no option {shown_name(name)}{did_you_mean(shown_name(name), known)}")
    declared = declared_option(name)
    if value is declared.default or (type(value) is type(declared.default) and value == declared.default):
        return False
    if method.name not in used_by:
        # Whoever gives a bad value of another method's option learns of the value first, as of its own.
        declared.domain.check(value, shown_name(name))
        shown = shown_name(name)
        ways_out = [f"leave {shown} out"]
        ways_out += [f"give {own}" for own in map(shown_name, method.options.declared()) if shown in own]
        auto = method.name == "auto"
        ways_out.append("name the method" if auto else f"take method = {nearest_method(method, used_by)}")
        raise SpecError(
            f"{shown} belongs to method {' or '.join(used_by)}, not to {method.name}: "
            f"{', or '.join(ways_out)}"
        )
    return True
