# SPDX-License-Identifier: PostgreSQL
"""The neighbouring relation of a guarantee."""

from __future__ import annotations

import enum

from pg_dpml.names import shown

__all__ = ["Relation"]


class Relation(enum.Enum):
    """Which two tables count as neighbours. In both, the number of rows is fixed and public.

    Source: privacy/README.md, "Neighbouring relation".
    """

    REPLACE_ONE = "replace_one"
    """One row's values change to any other values."""

    ADD_REMOVE = "add_remove"
    """One row becomes a zero row (the zero-out form of adding or removing it)."""

    def meaning(self, unit: str | None = None) -> str:
        """The relation in words, for reports.

        Parameters
        ----------
        unit : str or None
            Column of the unit of privacy; None for a row.
        """
        if unit is None:
            whose, zero, fixed = "one row", "a zero row", "the number of rows is public"
        else:
            whose, zero = f"all rows with one value of {shown(unit)}", "zero rows"
            fixed = "which rows these are is public"
        if self is Relation.REPLACE_ONE:
            changed = "one row's values" if unit is None else f"the values of {whose}"
            return f"{changed} may be replaced by any others; {fixed}"
        return f"{whose} may be blanked out to {zero}; {fixed}"

    def gradient_change(self, lipschitz: float) -> float:
        """How far one row can move a sum of gradients.

        Parameters
        ----------
        lipschitz : float
            Bound on one row's gradient norm, in [0, inf).

        Returns
        -------
        float
            D = 2 L under `REPLACE_ONE`, L under `ADD_REMOVE`.

        Notes
        -----
        Source: privacy/README.md, "Losses".
        """
        return 2.0 * lipschitz if self is Relation.REPLACE_ONE else lipschitz
