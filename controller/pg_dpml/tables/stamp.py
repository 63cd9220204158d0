# SPDX-License-Identifier: PostgreSQL
"""The stamp of results that come from private rows without noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pg_dpml.errors import SpecError

__all__ = ["OWNER_ONLY", "owner_stamp"]

OWNER_ONLY = "NOT PRIVATE: exact figures of private rows, for their owner's eyes only; do not publish them."


@contextmanager
def owner_stamp(owner: bool) -> Iterator[None]:
    """Stamp a `SpecError` that was found by looking at private rows.

    Parameters
    ----------
    owner : bool
        Whether the rows are private; errors about public rows stay as they are.
    """
    try:
        yield
    except SpecError as error:
        if not owner:
            raise
        raise SpecError(f"{str(error).rstrip('.')}. {OWNER_ONLY}") from None
