# SPDX-License-Identifier: PostgreSQL
"""Portions of public sizes: units of privacy dealt out at random, and packed like tables of their own."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import replace

from pg_dpml.blocks.distributed import gathered
from pg_dpml.blocks.packing import PackedRows, fill, shuffled
from pg_dpml.blocks.source import Source
from pg_dpml.database.session import Session, sql

__all__ = ["equal_sizes", "pack_portions"]


def equal_sizes(n_units: int, n_portions: int) -> tuple[int, ...]:
    """Sizes of portions that differ by at most one, the larger ones first."""
    smaller, larger = divmod(n_units, n_portions)
    return tuple(smaller + (i < larger) for i in range(n_portions))


def pack_portions(session: Session, source: Source, sizes: Sequence[int]) -> list[PackedRows]:
    """Encode every row once and deal the units out at random.

    Parameters
    ----------
    session : Session
    source : Source
    sizes : sequence of int
        Units of each portion, public; their sum must be the number of units, see `count_units`.

    Returns
    -------
    list of PackedRows
        In the order of `sizes`, each in a random order with the rows of a unit together.

    Notes
    -----
    Units are numbered in the random order of `shuffled` and assigned to portions by number: the portion of a
    unit depends on no value of any row.
    Source: privacy/README.md, "Private tuning".
    """
    here = gathered(session, source)
    work = sql.Identifier("dpml_work", f"encoded_{secrets.token_hex(8)}")
    session.execute(
        sql.SQL(
            "CREATE UNLOGGED TABLE {} (portion integer NOT NULL, place bigint NOT NULL, row bytea NOT NULL)"
        ).format(work)
    )
    # Features do not compress.
    session.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN row SET STORAGE EXTERNAL").format(work))
    rows = shuffled(here)
    firsts = [1 + before for before in itertools.accumulate(sizes, initial=0)][:-1]
    dealt = sql.SQL(
        "INSERT INTO {work} (portion, place, row) "
        "SELECT pg_catalog.width_bucket(n.unit_number, {firsts}::pg_catalog.int8[]) - 1, n.place, n.row "
        "FROM (SELECT e.row, pg_catalog.row_number() OVER dealt AS place, "
        "pg_catalog.sum(CASE WHEN {starts} THEN 1 ELSE 0 END) OVER dealt AS unit_number "
        "FROM ({encoded} OFFSET 0) AS e WINDOW dealt AS (ORDER BY {order} ROWS UNBOUNDED PRECEDING)) AS n"
    ).format(
        work=work,
        firsts=sql.Literal(firsts),
        starts=rows.starts,
        encoded=rows.encoded,
        order=rows.order,
    )
    with session.owners_path():
        session.execute(dealt, rows.parameters)
    session.execute(sql.SQL("CREATE INDEX ON {} (portion)").format(work))
    portions = [
        replace(
            fill(
                session,
                source,
                sql.SQL("SELECT w.row, w.place FROM {} AS w WHERE w.portion = {}").format(
                    work, sql.Literal(i)
                ),
                sql.SQL("e.place"),
                {},
            ),
            whole=False,
        )
        for i in range(len(sizes))
    ]
    for table in (work,) if here is source else (work, here.table.identifier):
        session.execute(sql.SQL("DROP TABLE {}").format(table))
    return portions
