# SPDX-License-Identifier: PostgreSQL
"""The neighbouring relation of a guarantee."""

from __future__ import annotations

import enum

__all__ = ["Relation"]


class Relation(enum.Enum):
    """Which two tables count as neighbours. In both, the number of rows is fixed and public.

    Source: privacy/README.md, "Neighbouring relation".
    """

    REPLACE_ONE = "replace_one"
    """One row's values change to any other values."""

    ADD_REMOVE = "add_remove"
    """One row becomes a zero row (the zero-out form of adding or removing it)."""

    @property
    def meaning(self) -> str:
        """The relation in words, for reports."""
        if self is Relation.REPLACE_ONE:
            return "one row's values may be replaced by any others; the number of rows is public"
        return "one row may be blanked out to a zero row; the number of rows is public"

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
