# SPDX-License-Identifier: PostgreSQL
"""Rows of a distributed table of Citus, packed where they are: only sums, or models of shards, travel.

Long because the work tables, what fills their shards and what sums over them share one layout.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pg_dpml.blocks.blocks import Blocks
from pg_dpml.blocks.encoder import columns_read
from pg_dpml.blocks.packing import (
    PackedRows,
    grouped,
    in_pages,
    pack,
    packing_statement,
    shuffled,
    whiten_call,
)
from pg_dpml.blocks.query import from_clause
from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.dependencies import tables_read
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import GuaranteeError, RunFailedError, SpecError
from pg_dpml.kernels import FloatArray
from pg_dpml.names import shown, visible

__all__ = [
    "Distribution",
    "ModelOfShard",
    "OnShards",
    "PassOfShard",
    "ShardUnits",
    "ShardedBlocks",
    "Shards",
    "Whereabouts",
    "blocks_table",
    "count_shard_units",
    "distribute",
    "distribution_column",
    "gathered",
    "is_distributed",
    "on_shards",
    "packed_blocks",
    "place_of_portions",
    "require_packable",
    "require_planned",
    "require_whole",
    "table_beside",
    "use_one_snapshot",
    "whereabouts",
]

_SCHEMA = "dpml_work"
_NO_VALUE = sql.SQL("NULL::pg_catalog.float8[]")
_ANY_ROW = sql.SQL("true")


class Shards(NamedTuple):
    """The shards of a distributed table, in the order of the parts of the hash's values."""

    table: sql.Identifier
    numbers: tuple[int, ...]
    names: tuple[str, ...]
    """Their names on the workers, quoted and with the schema."""


@dataclass(frozen=True)
class Distribution:
    """How Citus distributes a table by the hash of a column.

    Attributes
    ----------
    key : str
        The column.
    shards : Shards
    """

    key: str
    shards: Shards


@dataclass(frozen=True)
class _Obstacle:
    """Why rows cannot stay on the workers.

    Attributes
    ----------
    reason : str
    fix : str
        What lets them stay.
    """

    reason: str
    fix: str


@dataclass(frozen=True)
class Whereabouts:
    """Where the rows of a run are packed and summed.

    Attributes
    ----------
    distribution : Distribution or None
        Of a table whose rows stay on the workers; None: they are packed on the server that is asked.
    text : str
        What a plan says of it; empty for a table that is not distributed.
    obstacle : _Obstacle or None
        Why rows of a distributed table do not stay on the workers.
    """

    distribution: Distribution | None = None
    text: str = ""
    obstacle: _Obstacle | None = None


class ShardUnits(NamedTuple):
    """How many units of privacy each shard has, which is public."""

    key: str
    """Column whose hash decides in which shard a row lies."""
    units: tuple[int, ...]
    """In the order of the parts of the hash's values."""


_SETTINGS = {
    "max_adaptive_executor_pool_size": "1",
    "multi_shard_modify_mode": "sequential",
    # Else a statement that reads has a snapshot of its own, and a worker commits what it writes.
    "select_opens_transaction_block": "on",
    # No estimate, with the extension hll.
    "count_distinct_error_rate": "0",
}
"""Of Citus, in every transaction of a run."""


def use_one_snapshot(session: Session) -> None:
    """Let Citus open one connection to each worker, so that all statements of a run there share a snapshot.

    Called before the first statement of the transaction that reads a table.
    Source: privacy/README.md, "Distributed tables".
    """
    if session.has_citus():
        for name, value in _SETTINGS.items():
            session.set_local(f"citus.{name}", value)


def whereabouts(
    session: Session, source: Source, *, needs_order: bool, by_shards: bool = False
) -> Whereabouts:
    """Where a run packs the rows of a table, by the catalog alone.

    Parameters
    ----------
    session : Session
    source : Source
    needs_order : bool
        Whether the method takes rows in a random order: all rows in one, unless `by_shards`.
    by_shards : bool
        Whether each shard is trained on by itself: its rows are in an order of their own.
    """
    rows = _distributed_tables(session, source.table)
    if not rows:
        return Whereabouts()
    obstacle = _obstacle(session, source, rows, needs_order and not by_shards)
    if obstacle is not None:
        text = f"the rows travel to the coordinator and are packed there: {obstacle.reason}"
        return Whereabouts(None, text, obstacle)
    shards = _shards_of(session, source.table.identifier)
    where = f"packed and summed on the workers, in {len(shards.numbers)} shards: only sums travel"
    if by_shards:
        where = (
            f"packed and trained on the workers, in {len(shards.numbers)} shards, each by itself: only their "
            "models travel, to be averaged before they get their noise"
        )
    return Whereabouts(Distribution(rows[0][1], shards), where)


def count_shard_units(session: Session, source: Source, n_units: int) -> ShardUnits:
    """Public number of units of privacy, or of rows if no unit is declared, in each shard.

    Parameters
    ----------
    session : Session
    source : Source
    n_units : int
        In all shards, as `count_units` found.

    Raises
    ------
    SpecError
        If the rows cannot be trained on shard by shard, or are others than before.

    Notes
    -----
    Source: privacy/README.md, "Models of shards".
    """
    place = whereabouts(session, source, needs_order=True, by_shards=True)
    if place.distribution is None:
        if place.obstacle is None:
            raise SpecError(
                "by_shards trains on each shard of a distributed table of Citus, and "
                f"{shown(source.table.name)} is none: leave by_shards out"
            )
        raise SpecError(
            f"by_shards needs rows that stay on the workers: {place.obstacle.reason}: leave by_shards out, "
            f"or {place.obstacle.fix}"
        )
    key, shards = place.distribution.key, place.distribution.shards
    _require_no_feature(session, source, key)
    # Of the shard's name, as the server of the shard has it.
    number = sql.SQL(
        "pg_catalog.substring(t.tableoid::pg_catalog.regclass::pg_catalog.text, '([0-9]+)\"?$')"
        "::pg_catalog.int8"
    )
    if source.unit is None:
        query = sql.SQL("SELECT {number}, pg_catalog.count(*) {rows} GROUP BY 1").format(
            number=number, rows=from_clause(source)
        )
    else:
        query = sql.SQL(
            "SELECT g.shard, pg_catalog.sum(g.units)::pg_catalog.int8 FROM (SELECT {number} AS shard, "
            "CASE WHEN {unit} IS NULL THEN pg_catalog.count(*) ELSE 1 END AS units {rows} "
            "GROUP BY {unit}, 1) AS g GROUP BY g.shard"
        ).format(number=number, unit=sql.Identifier("t", source.unit), rows=from_clause(source))
    found = dict(
        session.counts(
            query,
            f"counting the rows of {shown(source.table.name)} by shards failed, and PostgreSQL's message is "
            "not shown because it may quote a row: write the filter so that it can fail on no row",
        )
    )
    units = tuple(found.get(shard, 0) for shard in shards.numbers)
    if sum(units) != n_units or sum(found.values()) != n_units:
        raise SpecError(
            "by_shards found other rows in the shards than when they were counted a moment ago: a shard was "
            "moved or split, or the filter chooses other rows each time; try again"
        )
    return ShardUnits(key, units)


def _require_no_feature(session: Session, source: Source, key: str) -> None:
    """Refuse a feature or label that is the distribution column, or that PostgreSQL generates from it.

    Source: privacy/README.md, "Models of shards".
    """
    used = [*columns_read(source.encoder), source.encoder["label"]["name"]]
    public = (
        f"by_shards makes the values of {shown(key)} public, because they decide in which shard a row lies"
    )
    advice = "leave by_shards out, or distribute the table by another column"
    if key in used:
        raise SpecError(f"{public}, so {shown(key)} can be neither a feature nor the label: {advice}")
    generated = session.fetch(
        sql.SQL(
            "SELECT a.attname FROM pg_catalog.pg_attribute AS a "
            "JOIN pg_catalog.pg_attrdef AS e ON e.adrelid = a.attrelid AND e.adnum = a.attnum "
            "JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass "
            "AND d.objid = e.oid AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass "
            "AND d.refobjid = a.attrelid "
            "JOIN pg_catalog.pg_attribute AS k ON k.attrelid = a.attrelid AND k.attnum = d.refobjsubid "
            "WHERE a.attrelid = %(table)s::pg_catalog.oid AND a.attgenerated <> '' "
            "AND k.attname = %(key)s AND a.attname = ANY (%(used)s) ORDER BY a.attnum LIMIT 1"
        ),
        {"table": source.table.oid, "key": key, "used": used},
    )
    for (name,) in generated:
        raise SpecError(
            f"{public}, so {shown(name)}, which is generated from them, can be neither a feature nor the "
            f"label: {advice}"
        )


def is_distributed(session: Session, table: SourceTable) -> bool:
    """Whether rows of a table, or of one that it shows as a view, are in shards of Citus."""
    return bool(_distributed_tables(session, table))


def place_of_portions(session: Session, source: Source, *, needs_order: bool) -> str:
    """What a plan says of rows that are dealt out at random; empty for a table that is not distributed.

    `needs_order`: whether any candidate takes its rows in a random order.
    """
    if needs_order and is_distributed(session, source.table):
        return (
            "the rows travel to the coordinator, where they are dealt out at random and packed: a candidate "
            "takes its rows in one random order"
        )
    place = whereabouts(session, source, needs_order=False)
    return place.text if place.distribution is None else f"dealt out at random, {place.text}"


def require_whole(session: Session, table: SourceTable) -> None:
    """Refuse what would be charged beside the budget of a distributed table.

    Raises
    ------
    GuaranteeError
        If the table is a shard, or shows one, or this server is a worker.
    """
    if not session.has_citus():
        return
    setting = "citus.override_table_visibility"
    was = session.setting(setting)
    session.set_local(setting, "off")  # else Citus hides shards from the catalog
    read = tables_read(session, table)
    session.set_local(setting, was)
    worker, shard = session.fetch_one(
        sql.SQL(
            "SELECT (SELECT g.groupid <> 0 FROM pg_catalog.pg_dist_local_group AS g), "
            "(SELECT pg_catalog.min(r.number::pg_catalog.regclass::pg_catalog.text) "
            "FROM pg_catalog.unnest(%(read)s::pg_catalog.oid[]) AS r (number) "
            "WHERE pg_catalog.relation_is_a_known_shard(r.number::pg_catalog.regclass))"
        ),
        {"read": read},
    )
    if worker:
        raise GuaranteeError(
            "this server is a worker of Citus, and ledger and budgets are on the coordinator: connect there"
        )
    if shard is not None:
        raise GuaranteeError(
            f"{visible(shard)} is a shard of a distributed table, whose runs are charged to its budget: name "
            "that table"
        )


def _distributed_tables(
    session: Session, table: SourceTable, *, alone: bool = False
) -> list[tuple[str, str]]:
    """Kind of distribution and distribution column of a table, and of those that it shows unless `alone`."""
    if not session.has_citus():
        return []
    return session.fetch(
        sql.SQL(
            "SELECT p.partmethod::pg_catalog.text, "
            "pg_catalog.column_to_column_name(p.logicalrelid, p.partkey) "
            "FROM pg_catalog.pg_dist_partition AS p "
            "WHERE p.logicalrelid = ANY (%(tables)s::pg_catalog.oid[]) "
            "AND NOT (p.partmethod = 'n' AND p.repmodel = 't') "  # reference tables are on every node
            "ORDER BY p.logicalrelid <> %(own)s::pg_catalog.oid"
        ),
        {"tables": [table.oid] if alone else tables_read(session, table), "own": table.oid},
    )


def _obstacle(
    session: Session, source: Source, found: Sequence[tuple[str, str]], needs_order: bool
) -> _Obstacle | None:
    """Why the rows cannot stay on the workers; None if they can."""
    if source.table.kind != "r":
        return _Obstacle(
            "a view or a partitioned table has no shards of its own",
            "name a table that is distributed itself",
        )
    ((method, key),) = found[:1]
    if method != "h":
        return _Obstacle(
            "the table is not distributed by the hash of a column", "distribute it by the hash of a column"
        )
    if needs_order:
        return _Obstacle("the method takes all rows in one random order", "take another method")
    if source.where is not None and re.search("select|table", source.where, re.IGNORECASE):
        return _Obstacle(
            "the filter may read other tables, which a worker cannot",
            "take a filter without the words select and table",
        )
    if source.unit is not None and source.unit != key:
        return _Obstacle(
            f"the rows of a unit may lie in several shards, as the table is distributed by {shown(key)}, "
            f"not by {shown(source.unit)}",
            f"distribute the table by {shown(source.unit)}",
        )
    replicated, domain = session.fetch_one(
        sql.SQL(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_shard AS s "
            "JOIN pg_catalog.pg_dist_placement AS p ON p.shardid = s.shardid "
            "WHERE s.logicalrelid = %(table)s::pg_catalog.oid "
            "GROUP BY s.shardid HAVING pg_catalog.count(*) > 1), "
            "EXISTS (SELECT FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t "
            "ON t.oid = a.atttypid AND t.typtype = 'd' "
            "WHERE a.attrelid = %(table)s::pg_catalog.oid AND a.attname = %(key)s)"
        ),
        {"table": source.table.oid, "key": key},
    )
    if replicated:
        return _Obstacle(
            "each shard is on several workers, of which Citus asks now one and now another",
            "distribute the table again with citus.shard_replication_factor = 1",
        )
    if domain:
        return _Obstacle(
            f"the type of {shown(key)} is a domain, which may not allow the empty column of a work table",
            "distribute the table by a column of another type",
        )
    return None


def _shards_of(session: Session, table: sql.Identifier) -> Shards:
    # Citus leaves the schema public out of a name.
    rows = session.fetch(
        sql.SQL(
            "SELECT s.shardid, CASE WHEN n.nspname = 'public' THEN 'public.' ELSE '' END || "
            "pg_catalog.shard_name(s.logicalrelid, s.shardid) "
            "FROM pg_catalog.pg_dist_shard AS s JOIN pg_catalog.pg_class AS c ON c.oid = s.logicalrelid "
            "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE s.logicalrelid = %(table)s::pg_catalog.regclass ORDER BY s.shardminvalue::pg_catalog.int4"
        ),
        {"table": table.as_string()},
    )
    return Shards(table, tuple(number for number, _ in rows), tuple(name for _, name in rows))


def distribution_column(session: Session, table: SourceTable) -> str | None:
    """The column by whose hash Citus distributes a table; None for any other table."""
    found = _distributed_tables(session, table, alone=True)
    return next((key for method, key in found if method == "h"), None)


def distribute(session: Session, table: sql.Identifier, column: str, beside: sql.Identifier) -> None:
    """Distribute an empty table by a column, each shard on the node of that shard of another table."""
    session.execute(
        sql.SQL(
            "SELECT pg_catalog.create_distributed_table(%(table)s::pg_catalog.regclass, %(column)s, "
            "colocate_with => %(beside)s)"
        ),
        {"table": table.as_string(), "column": column, "beside": beside.as_string()},
    )


def packed_blocks(session: Session, source: Source, *, needs_order: bool, by_shards: bool = False) -> Blocks:
    """Every row encoded and packed, where `whereabouts` says.

    Raises
    ------
    RunFailedError
        If a shard was added, moved or split since the run began.
    """
    distribution = whereabouts(session, source, needs_order=needs_order, by_shards=by_shards).distribution
    if distribution is None:
        here = gathered(session, source)
        blocks = Blocks(session, here, pack(session, here, ordered=needs_order))
        if here is not source:
            blocks.tables.append(here.table.identifier)
        return blocks
    shards = blocks_table(session, source, distribution)
    packing = _packing(session, source, distribution.shards, shards, ordered=needs_order)
    n_blocks = packing.run(session)
    packed = PackedRows(shards.table, n_blocks)
    return ShardedBlocks(session, source, packed, distribution=distribution, ordered=needs_order)


def gathered(session: Session, source: Source, *, always: bool = False) -> Source:
    """The rows in a work table on this server, where those of a unit have to be brought together.

    Returns the source itself where its rows can be packed as they come: those of a table that is not
    distributed, and without units unless `always`.
    """
    if (source.unit is None and not always) or not is_distributed(session, source.table):
        return source
    name = f"rows_{secrets.token_hex(8)}"
    used = dict.fromkeys([*columns_read(source.encoder), source.encoder["label"]["name"], source.unit])
    columns = sql.SQL(", ").join(sql.Identifier("t", name) for name in used if name is not None)
    with session.owners_path():
        session.execute(
            sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT {} ").format(sql.Identifier(_SCHEMA, name), columns)
            + from_clause(source)
        )
    return replace(source, where=None, table=replace(source.table, oid=0, schema=_SCHEMA, name=name))


def require_packable(session: Session, source: Source, *, needs_order: bool, by_shards: bool = False) -> None:
    """Let the workers create an empty table of blocks and plan the packing of their rows, which is undone.

    Nothing is done where the rows are not packed on workers: see `whereabouts`.

    Raises
    ------
    SpecError, DpmlError
        If a worker cannot, as its extension, its rights or the filter do not allow it.
    """
    distribution = whereabouts(session, source, needs_order=needs_order, by_shards=by_shards).distribution
    if distribution is None:
        return
    with session.discarded():
        blocks = blocks_table(session, source, distribution)
        packing = _packing(session, source, distribution.shards, blocks, ordered=needs_order)
        require_planned(session, source, packing)


def require_planned(session: Session, source: Source, packing: OnShards) -> None:
    """Let the workers plan, but not run, a statement that encodes the rows of their shards.

    Raises
    ------
    SpecError, DpmlError
        If a worker cannot.
    """
    session.require_runs(
        packing.query,
        f"the rows of {shown(source.table.name)} cannot be packed on a worker, and PostgreSQL's message "
        "is not shown because it may quote a row: dpml doctor looks at the workers, and a filter must be "
        "written so that it can fail on no row",
        packing.parameters("EXPLAIN "),
    )


def blocks_table(session: Session, source: Source, distribution: Distribution) -> Shards:
    """A new work table, empty, for blocks: with their numbers in a shard or, without order, the shard's."""
    table = sql.Identifier(_SCHEMA, f"blocks_{secrets.token_hex(8)}")
    return table_beside(
        session,
        source,
        distribution,
        table,
        sql.SQL("(key, number, block) WITH (fillfactor = 10, toast_tuple_target = 8160)"),
        sql.SQL("0, ''::pg_catalog.bytea"),
        None if in_pages(source) else "block",
    )


def table_beside(
    session: Session,
    source: Source,
    distribution: Distribution,
    table: sql.Identifier,
    columns: sql.SQL,
    values: sql.SQL,
    external: str | None,
) -> Shards:
    """A new work table, empty, in as many shards as the rows, each on the node of the rows of its number.

    Its first column, that of the distribution, stays NULL: rows are put into its shards by name, and
    `GROUP BY key` lets Citus leave each group where it is.

    Parameters
    ----------
    session : Session
    source : Source
    distribution : Distribution
        Of the rows.
    table : sql.Identifier
        Its name.
    columns : sql.SQL
        Names of its columns, in parentheses, and what follows them.
    values : sql.SQL
        A value of each column but the first, of its type.
    external : str or None
        A column whose values are stored as they are.

    Raises
    ------
    RunFailedError
        If a shard was added or split since the run began.
    """
    session.execute(
        sql.SQL(
            "CREATE UNLOGGED TABLE {table} {columns} AS SELECT t.{key}, {values} "
            "FROM {rows} AS t WITH NO DATA"
        ).format(
            table=table,
            columns=columns,
            key=sql.Identifier(distribution.key),
            values=values,
            rows=source.table.identifier,
        )
    )
    if external is not None:
        session.execute(
            sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET STORAGE EXTERNAL").format(
                table, sql.Identifier(external)
            )
        )
    distribute(session, table, "key", source.table.identifier)
    shards = _shards_of(session, table)
    if len(shards.numbers) != len(distribution.shards.numbers):
        raise RunFailedError("a shard of the table was split while the run began, and no model was stored")
    return shards


class OnShards(NamedTuple):
    """A statement to run in each shard of a table: see `dpml.on_shards`."""

    over: Shards
    statement: str
    tokens: tuple[str, ...]
    """Stand in the statement for a shard of `over`, the shard beside it, and their place."""
    into: Shards
    before: str
    """A statement that comes first."""
    value: sql.Composable
    """An expression whose value is $1 in the statement."""
    where: sql.Composable
    """Condition on the rows t of a shard: without any, the statement does not run there."""

    @property
    def query(self) -> sql.Composed:
        """Returns the number of rows that the statements touched."""
        return sql.SQL(
            "SELECT coalesce(dpml.on_shards(dpml.shard_id(t.tableoid), %(command)s, "
            "%(shards)s::pg_catalog.int8[], %(tokens)s::pg_catalog.text[], %(names)s::pg_catalog.text[], "
            "{value}), 0) FROM {over} AS t WHERE {where}"
        ).format(value=self.value, over=self.over.table, where=self.where)

    def run(self, session: Session) -> int:
        """Run the statement and return the number of rows that it touched."""
        return int(session.fetch_one(self.query, self.parameters())[0])

    def parameters(self, verb: str = "") -> dict[str, Any]:
        """Parameters of the query; with the verb EXPLAIN the statement is only planned."""
        pairs = zip(self.over.names, self.into.names, strict=True)
        return {
            "command": f"{self.before};\n{verb}{self.statement}",
            "shards": list(self.over.numbers),
            "tokens": list(self.tokens),
            "names": [name for place, (over, into) in enumerate(pairs) for name in (over, into, str(place))],
        }


def on_shards(
    session: Session,
    over: Shards,
    into: Shards,
    statement: Callable[[sql.Identifier, sql.Identifier, sql.Identifier], sql.Composed],
    parameters: Mapping[str, Any],
    value: sql.Composable = _NO_VALUE,
    where: sql.Composable = _ANY_ROW,
) -> OnShards:
    """A statement to run once in each shard of a table that has rows.

    Parameters
    ----------
    session : Session
    over, into : Shards
        That table, and one whose shards lie beside its own.
    statement : callable
        Makes it of a shard, the shard beside it, and their place from 0.
    parameters : mapping
        Of the statement.
    value : sql.Composable
        An expression of the coordinator, of type float8[], whose value is $1 in the statement.
    where : sql.Composable
        Condition on rows t of that table: those that must be there for the statement to have an effect. The
        fewer there are, the less it costs to find a shard's first.

    Returns
    -------
    OnShards
    """
    # Names that no other text of the statement can have.
    stand_ins = [sql.Identifier(_SCHEMA, f"shard_{secrets.token_hex(16)}") for _ in range(3)]
    with session.owners_path():
        path = session.setting("search_path")
    return OnShards(
        over=over,
        statement=session.text(statement(*stand_ins), parameters),
        tokens=tuple(stand_in.as_string() for stand_in in stand_ins),
        into=into,
        before=session.text(
            sql.SQL(
                "SELECT pg_catalog.set_config('search_path', %(path)s, true), "
                "pg_catalog.set_config('synchronize_seqscans', 'off', true), "  # blocks arrive in order
                "pg_catalog.set_config('jit', 'off', true)"
            ),
            {"path": path},
        ),
        value=value,
        where=where,
    )


def _packing(
    session: Session, source: Source, over: Shards, into: Shards, *, ordered: bool, again: bool = False
) -> OnShards:
    """What packs the rows of each shard into the shard of blocks beside it, in place of those if `again`.

    `ordered`: in a random order of the shard's own, and numbered.
    """

    def statement(rows: sql.Identifier, blocks: sql.Identifier, place: sql.Identifier) -> sql.Composed:
        number = sql.SQL("p.number") if ordered else place
        return sql.SQL(
            "{}INSERT INTO {} (key, number, block) SELECT NULL, {}, p.block FROM ({}) AS p (number, block)"
        ).format(
            sql.SQL("TRUNCATE {};\n").format(blocks) if again else sql.SQL(""),
            blocks,
            number,
            packing_statement(source, encoded(source, rows).encoded, found.order),
        )

    encoded = shuffled if ordered else grouped
    found = encoded(source)
    return on_shards(session, over, into, statement, found.parameters)


class PassOfShard(NamedTuple):
    """What a pass saw of a shard, which is public."""

    place: int
    rows: int
    blocks: int


class ModelOfShard(NamedTuple):
    """An un-noised model."""

    place: int
    weights: FloatArray
    steps: int


@dataclass
class ShardedBlocks(Blocks):
    """Packed rows in the shards of a distributed work table, each beside the rows that it was made of.

    Attributes
    ----------
    distribution : Distribution
    ordered : bool
        Whether the rows of each shard are in a random order of their own.
    """

    distribution: Distribution = field(kw_only=True)
    ordered: bool = field(kw_only=True)

    # A part is a shard, in the order of the shards: Citus leaves a group by the distribution column to the
    # worker that has it.
    _parts: ClassVar[sql.SQL] = sql.SQL(
        "SELECT {fields} FROM (SELECT b.number, {call} AS sums FROM {blocks} AS b "
        "GROUP BY b.key, b.number) AS g ORDER BY g.number"
    )

    def _whitened_rows(self, matrix: FloatArray, norm: float, scale: float | None) -> PackedRows:
        sent = self.send_matrix(matrix)
        call, options = whiten_call(sql.SQL("$1"), norm, scale)
        into = blocks_table(self.session, self.source, self.distribution)

        def statement(old: sql.Identifier, new: sql.Identifier, place: sql.Identifier) -> sql.Composed:
            return sql.SQL("INSERT INTO {} (key, number, block) SELECT NULL, {}, {} FROM {} AS b").format(
                new, place, call, old
            )

        white = on_shards(
            self.session,
            _shards_of(self.session, self.packed.blocks),
            into,
            statement,
            options,
            sql.SQL("(SELECT w.matrix FROM {} AS w)").format(sent),
        )
        return PackedRows(into.table, white.run(self.session))

    def repack(self) -> None:
        """Put the rows of each shard in a fresh random order of their own, if they have one."""
        if not self.ordered:
            raise ValueError("rows that are packed on the workers to be summed have no order")
        over, into = self.distribution.shards, _shards_of(self.session, self.packed.blocks)
        packing = _packing(self.session, self.source, over, into, ordered=True, again=True)
        n_blocks = packing.run(self.session)
        self.packed = replace(self.packed, n_blocks=n_blocks)

    def states(self) -> Shards:
        """A new work table, empty, for the states of passes over the blocks of each shard."""
        table = sql.Identifier(_SCHEMA, f"state_{secrets.token_hex(8)}")
        columns = sql.SQL("(key, shard, pass, state, blocks)")
        values = sql.SQL("0, 0, NULL::dpml.epoch, 0::pg_catalog.int8")
        shards = table_beside(self.session, self.source, self.distribution, table, columns, values, None)
        self.tables.append(table)
        return shards

    def sgd_pass(
        self, states: Shards, number: int, options: Mapping[str, Any], own: Sequence[Mapping[str, Any]]
    ) -> list[PassOfShard]:
        """One pass of `dpml.sgd_epoch` over each shard that has rows, from where pass `number` - 1 ended.

        Workers take it at the same time, and each its shards one after the other.

        Parameters
        ----------
        states : Shards
            As of `states`.
        number : int
            From 1.
        options : mapping
            Of the aggregate, for all shards.
        own : sequence of mapping
            More of them for each shard.
        """

        def statement(blocks: sql.Identifier, state: sql.Identifier, place: sql.Identifier) -> sql.Composed:
            return sql.SQL(
                "INSERT INTO {state} (key, shard, pass, state, blocks) SELECT NULL, {place}, %(pass)s, "
                "dpml.sgd_epoch(b.number, b.block, "
                "(SELECT s.state FROM {state} AS s WHERE s.pass = %(before)s), "
                "pg_catalog.jsonb_concat(%(options)s, pg_catalog.jsonb_array_element(%(own)s, {place}))), "
                "pg_catalog.count(*) FROM {blocks} AS b"
            ).format(state=state, place=place, blocks=blocks)

        parameters = {
            "pass": number,
            "before": number - 1,
            "options": json_parameter(options),
            "own": json_parameter(own),
        }
        over = _shards_of(self.session, self.packed.blocks)
        taken = on_shards(self.session, over, states, statement, parameters)
        taken.run(self.session)
        found = self.session.fetch(
            sql.SQL("SELECT s.shard, (s.state).rows, s.blocks FROM {} AS s WHERE s.pass = %(pass)s").format(
                states.table
            ),
            {"pass": number},
        )
        return [PassOfShard(*one) for one in sorted(found)]

    def models(self, states: Shards, number: int) -> list[ModelOfShard]:
        """The un-noised model of each shard that has rows after a pass: its average, if there is one."""
        found = self.session.fetch(
            sql.SQL(
                "SELECT s.shard, coalesce((s.state).average, (s.state).weights), (s.state).steps "
                "FROM {} AS s WHERE s.pass = %(pass)s"
            ).format(states.table),
            {"pass": number},
            binary=True,
        )
        models = [
            ModelOfShard(place, np.asarray(model, dtype=np.float64), steps) for place, model, steps in found
        ]
        return sorted(models, key=lambda model: model.place)
