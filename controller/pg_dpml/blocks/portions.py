# SPDX-License-Identifier: PostgreSQL
"""Portions of public sizes: units of privacy dealt out at random, and packed like tables of their own."""

from __future__ import annotations

import bisect
import itertools
import math
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pg_dpml.blocks.blocks import Blocks
from pg_dpml.blocks.distributed import (
    Distribution,
    OnShards,
    ShardedBlocks,
    Shards,
    blocks_table,
    gathered,
    on_shards,
    require_packable,
    require_planned,
    table_beside,
    whereabouts,
)
from pg_dpml.blocks.packing import PackedRows, fill, packing_statement, shuffled
from pg_dpml.blocks.source import Source
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import RunFailedError

__all__ = ["equal_sizes", "pack_portions", "require_portions", "source_of_portions"]

MOST_DIGITS = 4
"""Hexadecimal digits of a random key by which keys are counted, at most."""


def equal_sizes(n_units: int, n_portions: int) -> tuple[int, ...]:
    """Sizes of portions that differ by at most one, the larger ones first."""
    smaller, larger = divmod(n_units, n_portions)
    return tuple(smaller + (i < larger) for i in range(n_portions))


def pack_portions(
    session: Session, source: Source, sizes: Sequence[int], *, needs_order: bool
) -> list[Blocks]:
    """Encode every row once and deal the units out at random.

    Parameters
    ----------
    session : Session
    source : Source
    sizes : sequence of int
        Units of each portion, public and at least 1; their sum must be the number of units, see
        `count_units`.
    needs_order : bool
        Whether a method takes the rows of a portion in a random order. Else the rows of a distributed table
        stay on the workers where they can: see `whereabouts`.

    Returns
    -------
    list of Blocks
        In the order of `sizes`, the rows of a unit together; where `needs_order`, in a random order.

    Raises
    ------
    RunFailedError
        If there are other rows on the workers than were counted.

    Notes
    -----
    Units have random keys and are assigned to portions by their rank in the order of the keys: the portion of
    a unit depends on no value of any row, nor on the shard that it lies in.
    Source: privacy/README.md, "Private tuning" and "Distributed tables".
    """
    distribution = whereabouts(session, source, needs_order=needs_order).distribution
    if distribution is None:
        return _dealt_here(session, source, sizes)
    return _dealt_on_workers(session, source, distribution, sizes)


def require_portions(session: Session, source: Source, *, needs_order: bool) -> None:
    """Let the workers plan what `pack_portions` does there; as `require_packable`."""
    require_packable(session, source, needs_order=needs_order)
    distribution = whereabouts(session, source, needs_order=needs_order).distribution
    if distribution is None:
        return
    with session.discarded():
        dealing = _dealing(session, source, distribution, _encoded_table(session, source, distribution))
        require_planned(session, source, dealing)


def source_of_portions(session: Session, source: Source, *, needs_order: bool) -> Source:
    """The rows that are dealt out several times: brought to this server once, unless they stay on workers."""
    if whereabouts(session, source, needs_order=needs_order).distribution is not None:
        return source
    return gathered(session, source, always=True)


def _dealt_here(session: Session, source: Source, sizes: Sequence[int]) -> list[Blocks]:
    """Portions that are packed on the server that is asked."""
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
    portions = []
    for number in range(len(sizes)):
        encoded = sql.SQL("SELECT w.row, w.place FROM {} AS w WHERE w.portion = {}").format(
            work, sql.Literal(number)
        )
        packed = fill(session, source, encoded, sql.SQL("e.place"), {})
        portions.append(Blocks(session, source, replace(packed, whole=False)))
    for table in (work,) if here is source else (work, here.table.identifier):
        session.execute(sql.SQL("DROP TABLE {}").format(table))
    return portions


def _dealt_on_workers(
    session: Session, source: Source, distribution: Distribution, sizes: Sequence[int]
) -> list[Blocks]:
    """Portions in the shards of a distributed table, whose rows stay on their workers."""
    work = _encoded_table(session, source, distribution)
    _dealing(session, source, distribution, work).run(session)
    cuts = _cuts(session, work, sizes)
    portions: list[Blocks] = []
    for number in range(len(sizes)):
        into = blocks_table(session, source, distribution)
        n_blocks = _packing_of_portion(session, source, work, into, cuts, number).run(session)
        packed = PackedRows(into.table, n_blocks, whole=False)
        portions.append(ShardedBlocks(session, source, packed, distribution=distribution, ordered=False))
    session.execute(sql.SQL("DROP TABLE {}").format(work.table))
    return portions


def _encoded_table(session: Session, source: Source, distribution: Distribution) -> Shards:
    """A new work table, empty, for encoded rows with the random keys of their units."""
    return table_beside(
        session,
        source,
        distribution,
        sql.Identifier("dpml_work", f"encoded_{secrets.token_hex(8)}"),
        sql.SQL("(key, at, starts, place, row)"),
        sql.SQL("NULL::pg_catalog.uuid, true, 0::pg_catalog.int8, ''::pg_catalog.bytea"),
        "row",
    )


def _dealing(session: Session, source: Source, distribution: Distribution, work: Shards) -> OnShards:
    """What encodes the rows of each shard, and draws a key for each unit."""
    at, place = ("dpml.random_key()", "0") if source.unit is None else ("e.key", "e.place")

    def statement(rows: sql.Identifier, encoded: sql.Identifier, number: sql.Identifier) -> sql.Composed:
        found = shuffled(source, rows)
        return sql.SQL(
            "INSERT INTO {} (key, at, starts, place, row) SELECT NULL, {}, {}, {}, e.row "
            "FROM ({} OFFSET 0) AS e"
        ).format(encoded, sql.SQL(at), found.starts, sql.SQL(place), found.encoded)

    return on_shards(session, distribution.shards, work, statement, shuffled(source).parameters)


def _packing_of_portion(
    session: Session, source: Source, work: Shards, into: Shards, cuts: Sequence[str], number: int
) -> OnShards:
    """What packs the encoded rows of each shard that are in a portion."""

    def chosen(at: sql.Identifier) -> sql.Composed:
        return sql.SQL("pg_catalog.width_bucket({}, {}::pg_catalog.uuid[]) = {}").format(
            at, sql.Literal(list(cuts)), sql.Literal(number)
        )

    def statement(encoded: sql.Identifier, blocks: sql.Identifier, place: sql.Identifier) -> sql.Composed:
        rows = sql.SQL("SELECT w.row, w.at, w.place FROM {} AS w WHERE {}").format(
            encoded, chosen(sql.Identifier("w", "at"))
        )
        # Rows of a unit have one key.
        order = None if source.unit is None else sql.SQL("e.at, e.place")
        return sql.SQL(
            "INSERT INTO {} (key, number, block) SELECT NULL, {}, p.block FROM ({}) AS p (number, block)"
        ).format(blocks, place, packing_statement(source, rows, order))

    return on_shards(session, work, into, statement, {}, where=chosen(sql.Identifier("t", "at")))


def _cuts(session: Session, work: Shards, sizes: Sequence[int]) -> list[str]:
    """The key of the first unit of every portion but the first, by the rank of keys in all shards.

    What travels are numbers of keys with the same first digits, and the keys with those of a cut: of n keys
    about sqrt(n) of either.
    """
    digits = {"digits": min(len(f"{math.isqrt(sum(sizes)):x}"), MOST_DIGITS)}
    first = sql.SQL("pg_catalog.left(w.at::pg_catalog.text, %(digits)s)")
    counts = dict(
        session.fetch(
            sql.SQL("SELECT {first}, pg_catalog.count(*) FROM {work} AS w WHERE w.starts GROUP BY 1").format(
                first=first, work=work.table
            ),
            digits,
        )
    )
    if sum(counts.values()) != sum(sizes):
        raise RunFailedError(
            "other rows were dealt out on the workers than were counted: a shard was moved or split, or the "
            "filter chooses other rows each time; no model was stored"
        )
    heads = sorted(counts)
    below = list(itertools.accumulate((counts[head] for head in heads[:-1]), initial=0))
    ranks = list(itertools.accumulate(sizes))[:-1]
    cut = [bisect.bisect_right(below, rank) - 1 for rank in ranks]
    keys = defaultdict(list)
    for head, key in session.fetch(
        sql.SQL(
            "SELECT {first}, w.at::pg_catalog.text FROM {work} AS w "
            "WHERE w.starts AND {first} = ANY (%(heads)s::pg_catalog.text[])"
        ).format(first=first, work=work.table),
        digits | {"heads": [heads[place] for place in cut]},
    ):
        keys[head].append(key)
    return [sorted(keys[heads[place]])[rank - below[place]] for place, rank in zip(cut, ranks, strict=True)]
