# SPDX-License-Identifier: PostgreSQL
"""Packing encoded rows into blocks: in random order, or as they come where a method needs no order."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pg_dpml.blocks.encoder import is_sparse
from pg_dpml.blocks.query import from_clause, record_of
from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.session import Session, sql
from pg_dpml.kernels import BLOCK_HEADER_BYTES, BLOCK_MAX_BYTES, BLOCK_PAGE_BYTES

__all__ = [
    "EncodedRows",
    "PackedRows",
    "WorkMemory",
    "fill",
    "grouped",
    "in_pages",
    "pack",
    "packing_statement",
    "repack",
    "row_bytes",
    "shuffled",
    "store_blocks",
    "unit_fits_block",
    "whiten",
    "whiten_call",
    "work_memory",
]


LARGEST_BLOCK_BYTES = 2**30 - 2**16
"""Largest value that PostgreSQL stores, less room for its header."""

MOST_WORKERS = 1024
"""Of a pass over blocks that are stored out of line; the server's own limits come before."""


@dataclass(frozen=True)
class PackedRows:
    """The run's private copy of the encoded rows.

    Attributes
    ----------
    blocks : sql.Identifier
        Table of the blocks.
    n_blocks : int
    whole : bool
        False for a portion of the table's rows.
    """

    blocks: sql.Identifier
    n_blocks: int
    whole: bool = True


_ANY_ORDER = sql.SQL("dpml.random_key()")


class EncodedRows(NamedTuple):
    """Encoded rows and an order to read them in. Source: privacy/README.md, "Randomness"."""

    encoded: sql.Composable
    """SELECT of the column `row`, and of the columns of e that `order` and `starts` use."""
    order: sql.Composable | None
    """ORDER BY list; None where any order will do."""
    starts: sql.Composable
    """Condition that the row is the first of its unit of privacy in that order."""
    parameters: Mapping[str, Any]


def store_blocks(
    session: Session, source: Source, query: sql.Composable, parameters: Mapping[str, Any]
) -> PackedRows:
    """Store the blocks that a query returns in a new table, which only the current role can read."""
    blocks = sql.Identifier("dpml_work", f"blocks_{secrets.token_hex(8)}")
    if in_pages(source):
        # One block a page, stored as it is, or a small one could go into the rest of an earlier page, out of
        # order. A table made of its query may be filled by parallel workers, which INSERT may not.
        statement = sql.SQL(
            "CREATE UNLOGGED TABLE {} (block_no, block) WITH (fillfactor = 10, toast_tuple_target = 8160) AS "
        )
    else:
        # The table itself holds pointers and is tiny: it is spread over pages, which workers of a pass share.
        session.execute(
            sql.SQL(
                "CREATE UNLOGGED TABLE {} (block_no integer NOT NULL, block bytea NOT NULL) "
                "WITH (fillfactor = 10, parallel_workers = {})"
            ).format(blocks, sql.Literal(MOST_WORKERS))
        )
        session.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN block SET STORAGE EXTERNAL").format(blocks))
        statement = sql.SQL("INSERT INTO {} (block_no, block) ")
    return PackedRows(blocks, session.execute(statement.format(blocks) + query, parameters))


def in_pages(source: Source) -> bool:
    """Whether every block fits into a page of a table."""
    return _block_bytes(source) == BLOCK_PAGE_BYTES


def row_bytes(source: Source) -> int:
    """Largest size in bytes of an encoded row in a block, over all values that it could have."""
    sparse = source.encoder["format"] == "csr"
    return 8 + 8 * source.n_values if sparse else 4 + 4 * source.n_features


def unit_fits_block(max_rows_per_unit: int, n_features: int) -> bool:
    """Whether all rows of a unit fit into one block; dense rows are the longest."""
    return _bytes_of_unit(max_rows_per_unit, 4 + 4 * n_features) <= LARGEST_BLOCK_BYTES


def fill(
    session: Session,
    source: Source,
    encoded: sql.Composable,
    order: sql.Composable | None,
    parameters: Mapping[str, Any],
) -> PackedRows:
    """Sort encoded rows and pack them into numbered blocks, in physical order."""
    return store_blocks(session, source, packing_statement(source, encoded, order), parameters)


def packing_statement(source: Source, encoded: sql.Composable, order: sql.Composable | None) -> sql.Composed:
    """The query that packs encoded rows, in the given order or as they come, into numbered blocks."""
    by = sql.SQL("") if order is None else sql.SQL("ORDER BY {}").format(order)
    return sql.SQL(
        "SELECT (pg_catalog.row_number() OVER () - 1)::integer, p.block "
        "FROM (SELECT dpml.pack(e.row, 2147483647, {block_bytes}) OVER ordered AS block "
        # OFFSET 0: encode first, so that narrow rows are sorted
        "FROM ({encoded} OFFSET 0) AS e WINDOW ordered AS ({by})) AS p "
        "WHERE p.block IS NOT NULL"
    ).format(block_bytes=sql.Literal(_block_bytes(source)), encoded=encoded, by=by)


def shuffled(source: Source, table: sql.Identifier | None = None) -> EncodedRows:
    """Every row encoded, in a fresh random order.

    `table`, such as a shard, is read instead of the source's table.

    Notes
    -----
    The order is that of a new random key per row, independent of the values. The rows of a unit stay
    together, under the key of one of them.
    Source: privacy/README.md, "Randomness" and "Unit of privacy".
    """
    if source.unit is None:
        return _rows(source, _ANY_ORDER, table)
    return _units(
        source,
        source.unit,
        table,
        keys=sql.SQL(", dpml.random_key() AS key"),
        unit_keys=sql.SQL(", pg_catalog.first_value(k.key) OVER own AS unit_key"),
        key=sql.SQL(", CASE WHEN u.unit IS NULL THEN u.key ELSE u.unit_key END AS key"),
        order=sql.SQL("e.key, e.unit, e.place"),
    )


def grouped(source: Source, table: sql.Identifier | None = None) -> EncodedRows:
    """Every row encoded, in any order in which the rows of a unit lie together.

    `table`, such as a shard, is read instead of the source's table.

    Notes
    -----
    The order may follow from the values, or from where rows lie in the table. Which rows of a unit are used,
    where it has too many, is decided by new random keys.
    Source: privacy/README.md, "Randomness" and "Unit of privacy".
    """
    if source.unit is None:
        return _rows(source, None, table)
    return _units(source, source.unit, table, order=sql.SQL("e.unit, e.place"))


def _rows(source: Source, order: sql.Composable | None, table: sql.Identifier | None = None) -> EncodedRows:
    """Rows that are units of privacy themselves."""
    record = record_of(source.encoder, source.table, with_label=True)
    encoded = sql.SQL("SELECT dpml.encode(%(encoder)s, {record}) AS row ").format(record=record)
    return EncodedRows(encoded + from_clause(source, table), order, sql.SQL("true"), _parameters(source))


_NOTHING = sql.SQL("")


def _units(
    source: Source,
    unit: str,
    table: sql.Identifier | None = None,
    *,
    keys: sql.SQL = _NOTHING,
    unit_keys: sql.SQL = _NOTHING,
    key: sql.SQL = _NOTHING,
    order: sql.SQL,
) -> EncodedRows:
    """The rows of every unit, at most so many, chosen at random; more columns are for the order of units."""
    record = record_of(source.encoder, source.table, with_label=True)
    keyed = sql.SQL("SELECT {record} AS record, {unit} AS unit, dpml.random_key() AS tie{keys} ").format(
        record=record, unit=sql.Identifier("t", unit), keys=keys
    )
    encoded = sql.SQL(
        "SELECT dpml.encode(%(encoder)s, u.record, u.unit IS NULL OR u.place = 1) AS row, u.unit, u.place"
        "{key} FROM (SELECT k.*, pg_catalog.row_number() OVER own AS place{unit_keys} "
        "FROM ({keyed} OFFSET 0) AS k WINDOW own AS (PARTITION BY k.unit ORDER BY k.tie)) AS u "
        "WHERE u.unit IS NULL OR u.place <= {most}"
    ).format(
        key=key,
        unit_keys=unit_keys,
        keyed=keyed + from_clause(source, table),
        most=sql.Literal(source.max_rows_per_unit),
    )
    starts = sql.SQL("(e.unit IS NULL OR e.place = 1)")
    return EncodedRows(encoded, order, starts, _parameters(source))


def _parameters(source: Source) -> Mapping[str, Any]:
    return {"encoder": json_parameter(source.encoder)}


def pack(session: Session, source: Source, *, ordered: bool = True) -> PackedRows:
    """Encode every row and pack the rows.

    Parameters
    ----------
    session : Session
    source : Source
    ordered : bool
        Put them in a fresh random order first, see `Plan.needs_order`; otherwise they come in any order in
        which the rows of a unit lie together, without a sort where there is no unit.

    Returns
    -------
    PackedRows
    """
    rows = shuffled(source) if ordered else grouped(source)
    with session.owners_path():
        return fill(session, source, rows.encoded, rows.order, rows.parameters)


def repack(session: Session, source: Source, packed: PackedRows) -> PackedRows:
    """Pack the rows again in a fresh random order, and drop the old blocks.

    Without units the packed rows are shuffled. With units the table is read again, in the run's own snapshot,
    because blocks do not record which rows belong together; so a portion of the units keeps its order.
    """
    if source.unit is not None and not packed.whole:
        raise ValueError("a portion of units cannot be packed again")
    if source.unit is None:
        encoded = sql.SQL("SELECT r.row FROM {} AS b, dpml.rows(b.block) AS r(row)").format(packed.blocks)
        again = replace(fill(session, source, encoded, _ANY_ORDER, {}), whole=packed.whole)
    else:
        again = pack(session, source)
    session.execute(sql.SQL("DROP TABLE {}").format(packed.blocks))
    return again


class WorkMemory(NamedTuple):
    """What an aggregate may hold in memory."""

    limit: str
    """`dpml.work_mem`, as it is set."""
    fits: bool


def work_memory(session: Session, size: int) -> WorkMemory:
    """Whether an aggregate may hold so many bytes, which is public where the size is."""
    # The server knows the setting once it has loaded the module.
    session.execute(sql.SQL("SELECT dpml.module_version()"))
    return WorkMemory(
        *session.fetch_one(
            sql.SQL(
                "SELECT s.most, %(size)s <= pg_catalog.pg_size_bytes(s.most) "
                "FROM (SELECT pg_catalog.current_setting('dpml.work_mem') AS most) AS s"
            ),
            {"size": size},
        )
    )


def whiten(
    session: Session,
    source: Source,
    packed: PackedRows,
    matrix: sql.Identifier,
    norm: float,
    scale: float | None,
) -> PackedRows:
    """A second table of blocks, in any order, with x norm / ||P x|| for every row x.

    `matrix` is a table of one row and one column, `float8[]`, row by row: P, or V of P = scale I - V'V.
    Source: privacy/README.md, "Whitened gradients".
    """
    call, options = whiten_call(sql.SQL("(TABLE {})").format(matrix), norm, scale)
    query = sql.SQL("SELECT b.block_no, {call} FROM {old} AS b").format(call=call, old=packed.blocks)
    return store_blocks(session, source, query, options)


def whiten_call(
    matrix: sql.Composable, norm: float, scale: float | None
) -> tuple[sql.Composed, dict[str, float]]:
    """The whitened block of a row `b`, as SQL with named parameters, and those; see `whiten`."""
    more = "" if scale is None else ", %(scale)s"
    call = sql.SQL("dpml.whiten(b.block, {}, %(norm)s" + more + ")").format(matrix)
    return call, {"norm": norm} if scale is None else {"norm": norm, "scale": scale}


def _block_bytes(source: Source) -> int:
    """Largest size of a block in bytes: a page, or more (stored out of line) if a unit takes half a page.

    A whole unit always fits into a block, so that its gradients can be summed and clipped there. A single
    row does whatever the size: the rows of a sparse column, of which few are long, go into pages.
    """
    if is_sparse(source.encoder) and source.max_rows_per_unit == 1:
        return BLOCK_PAGE_BYTES
    unit_bytes = _bytes_of_unit(source.max_rows_per_unit, row_bytes(source))
    if unit_bytes <= BLOCK_PAGE_BYTES // 2:
        return BLOCK_PAGE_BYTES
    return max(BLOCK_MAX_BYTES, min(unit_bytes, LARGEST_BLOCK_BYTES))


def _bytes_of_unit(n_rows: int, row_bytes: int) -> int:
    """Size in bytes of a block of one unit; it has a bit a row for the starts of units, in words of 32."""
    return BLOCK_HEADER_BYTES + 4 * math.ceil(n_rows / 32) + n_rows * row_bytes
