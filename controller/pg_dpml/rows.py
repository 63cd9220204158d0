# SPDX-License-Identifier: PostgreSQL
"""From a data spec to encoded rows: the encoder spec, the public count, shuffling and packing."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pg_dpml.database import ColumnType, Session, SourceTable, json_parameter, sql, verbatim
from pg_dpml.errors import DpmlError, GuaranteeError, SpecError
from pg_dpml.kernels import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAX_BYTES,
    BLOCK_PAGE_BYTES,
    MAX_FEATURES,
    MAX_PROJECTION,
)
from pg_dpml.moments import MOMENTS, moment_number
from pg_dpml.names import shown, toml_key, visible
from pg_dpml.spec import LONGEST_LEVEL, MAX_WEIGHTS, Column, DataSpec, Label
from pg_dpml.tables.levels import as_compared

__all__ = [
    "PackedRows",
    "Shuffled",
    "Source",
    "count_units",
    "fill",
    "from_clause",
    "pack",
    "record_of",
    "repack",
    "require_plannable",
    "require_runnable",
    "resolve",
    "row_bytes",
    "shuffled",
    "unit_fits_block",
    "whiten",
]


LARGEST_BLOCK_BYTES = 2**30 - 2**16
"""Of a value that PostgreSQL stores, with room for its header."""


@dataclass(frozen=True)
class Source:
    """A table whose rows can be encoded: what `resolve` found in the catalog, no row read.

    Attributes
    ----------
    table : SourceTable
    where : str or None
        The public filter.
    unit : str or None
        Column whose equal values are one unit of privacy; None: every row is one.
    max_rows_per_unit : int
        Rows used of a unit.
    encoder : mapping
        The spec that `dpml.encode` parses and that is stored with the model.
    n_features : int
        Length of an encoded row, the intercept included.
    n_values : int
        Most values one encoded row can store.
    feature_names : tuple of str
        One name a feature, in order.
    class_names : tuple of str or None
        See `Label.class_names`, in the form that values are compared with.
    """

    table: SourceTable
    where: str | None
    unit: str | None
    max_rows_per_unit: int
    encoder: Mapping[str, Any]
    n_features: int
    n_values: int
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...] | None


@dataclass(frozen=True)
class PackedRows:
    """The run's private copy of the encoded rows, in one random order.

    Attributes
    ----------
    blocks : sql.Identifier
        Their table.
    n_blocks : int
    whole : bool
        False for a portion of the table's rows.
    """

    blocks: sql.Identifier
    n_blocks: int
    whole: bool = True


def resolve(session: Session, data: DataSpec) -> Source:
    """Check a spec against the catalog and write its encoder.

    Raises
    ------
    SpecError
        For a missing table or column, a type without an encoding, or missing bounds or levels.
    GuaranteeError
        If rows may be chosen by something that is not declared public.
    """
    table = session.relation(data.table)
    data = _as_in_catalog(data, table)
    _require_public_rows(table, data)
    columns = [_encode_column(column, table.columns[column.name]) for column in data.columns]
    label_type = table.columns[data.label.column]
    label = _compared_label(data.label, label_type)
    if data.unit is not None:
        _require_unit_type(table.columns[data.unit], data.unit)
    names = [name for column in columns for name in _feature_names(column)]
    if len(names) >= MAX_FEATURES:
        raise SpecError(f"columns: {len(names)} features, more than the {MAX_FEATURES - 1} a model may have")
    n_values = sum(_stored_values(column) for column in columns) + data.intercept
    if data.projection is not None:
        if data.projection * len(names) > MAX_PROJECTION:
            raise SpecError(
                f"projection must be at most {MAX_PROJECTION // len(names)} "
                f"with {len(names)} features before it"
            )
        names = [f"projection {i + 1}" for i in range(data.projection)]
        n_values = len(names) + 1
    if data.intercept:
        names.append("intercept")
    n_classes = 1 if data.label.classes is None else len(data.label.classes)
    if len(names) * n_classes > MAX_WEIGHTS:
        raise SpecError(
            f"label {shown(data.label.column)}: classes: a model of {n_classes:,} classes may have at most "
            f"{MAX_WEIGHTS // n_classes:,} features, not {len(names):,}: list fewer classes, or give "
            "[features] projection"
        )
    encoder = {
        "columns": columns,
        "intercept": data.intercept,
        "norm": data.norm,
        # A sparse row costs eight bytes a value against four a feature.
        "format": "csr" if 2 * n_values < len(names) else "dense",
        "label": _encode_label(label, label_type.kind),
    }
    if data.projection is not None:
        encoder["projection"] = {"features": data.projection, "seed": data.projection_seed}
    if encoder["format"] == "dense":
        n_values = len(names)
    _require_written(session, {f"column {c['name']}: levels": c.get("levels", ()) for c in columns})
    _require_written(session, {f"label {label.column}": label.class_names or ()})
    return Source(
        table=table,
        where=data.where,
        unit=data.unit,
        max_rows_per_unit=data.max_rows_per_unit,
        encoder=encoder,
        n_features=len(names),
        n_values=n_values,
        feature_names=tuple(names),
        class_names=label.class_names,
    )


def _require_written(session: Session, texts: Mapping[str, Sequence[str]]) -> None:
    """Refuse texts that have characters which the encoding of the database has not."""

    def writes(some: Sequence[str]) -> bool:
        query = sql.SQL("SELECT %(texts)s::pg_catalog.text[] IS NULL")
        try:
            return not isinstance(session.attempt(lambda: session.fetch(query, {"texts": some})), DpmlError)
        except UnicodeEncodeError:  # where the client's encoding has not got it
            return False

    for where, listed in texts.items():
        special = [text for text in listed if not text.isascii()]
        if special and not writes(special):
            amiss = next(text for text in special if not writes([text]))
            (encoding,) = session.fetch_one(sql.SQL("SELECT pg_catalog.current_setting('server_encoding')"))
            raise SpecError(
                f"{where}: {amiss!r} cannot be written in this database, whose encoding is {encoding}, so no "
                "row has it: leave it out, or use a database of encoding UTF8"
            )


def _require_public_rows(table: SourceTable, data: DataSpec) -> None:
    if table.kind in "vmf" and not data.definition_is_public:
        raise GuaranteeError(
            f"{visible(data.table)} is a view or a foreign table, and which rows it shows could itself be "
            "private: "
            "if the owner agrees that its definition is public, add definition_is_public = true to the spec"
        )
    if table.row_security:
        raise GuaranteeError(
            f"{visible(data.table)} has row-level security, so its rows depend on who asks: copy them into a "
            f"table without (CREATE TABLE ... AS TABLE {visible(data.table)}), as a role that sees them all, "
            "and name that"
        )
    used = [data.label.column, *(column.name for column in data.columns), *filter(None, [data.unit])]
    computed = [name for name in used if name in table.columns and table.columns[name].virtual]
    if computed and not data.definition_is_public:
        raise GuaranteeError(
            f"column {shown(computed[0])} is computed whenever it is read, and whether that fails could "
            "itself be private: if the owner agrees that its expression is public and never fails, add "
            "definition_is_public = true to the spec"
        )


def _as_in_catalog(data: DataSpec, table: SourceTable) -> DataSpec:
    """The spec with the exact names of its columns."""
    return replace(
        data,
        columns=tuple(replace(column, name=table.column(column.name)) for column in data.columns),
        label=replace(data.label, column=table.column(data.label.column)),
        unit=None if data.unit is None else table.column(data.unit),
    )


def _encode_column(column: Column, column_type: ColumnType) -> dict[str, Any]:
    """One entry of the encoder's columns."""
    where = f"column {shown(column.name)}"
    kind = column_type.kind
    levels = column.levels if column.levels is not None else column_type.enum_labels
    if levels is not None:
        _require_levels(column_type, where)
        return {
            "name": column.name,
            "kind": "category",
            "levels": list(as_compared(levels, column_type, f"{where}: levels")),
            "centered": column.centered,
        }
    if kind == "boolean":
        if column.scale == "standard" or column.log1p:
            raise SpecError(f"{where} is boolean: its scale is center or zero_based, without log1p")
        return {"name": column.name, "kind": "boolean", "scale": column.scale}
    if kind == "text":
        raise SpecError(
            f"{where} ({visible(column_type.name)}) needs its public list of categories: give levels = [...] "
            f"under [columns.{toml_key(column.name)}], from the documentation of the data and never from the "
            "rows; or declare the column as an enum, whose labels are taken from the catalog"
        )
    if kind == "other":
        raise SpecError(
            f"{where}: type {visible(column_type.name)} has no encoding; leave the column out, or use a view "
            "that casts it to a type that has one"
        )
    entry = {"name": column.name} | _encode_scale(column, column_type)
    if kind == "array":
        return entry | _encode_array(column, column_type)
    if column.length is not None:
        raise SpecError(f"{where}: length belongs to an array column, not to {visible(column_type.name)}")
    return entry | {"kind": "numeric"}


def _encode_scale(column: Column, column_type: ColumnType) -> dict[str, Any]:
    """Bounds and scale of a number, a date or the elements of an array."""
    where = f"column {shown(column.name)}"
    if column.scale != "standard" and column.lower is None:
        raise SpecError(
            f"{where} ({visible(column_type.name)}) needs public bounds: give lower and upper under "
            f"[columns.{toml_key(column.name)}], from the meaning of the column and never from the rows; "
            "or levels = [...] if its numbers are categories; or scale = 'standard' with public mean and sd"
        )
    kind = column_type.element or column_type.kind
    entry: dict[str, Any] = {"scale": column.scale, "log1p": column.log1p, "lower": None, "upper": None}
    for key in ("lower", "upper", "mean"):
        value = getattr(column, key)
        if value is not None:
            entry[key] = moment_number(value, kind, f"{where}: {key}")
    if column.scale == "standard":
        entry["sd"] = column.sd
    return entry


def _encode_array(column: Column, column_type: ColumnType) -> dict[str, Any]:
    where = f"column {shown(column.name)} ({visible(column_type.name)})"
    length = column.length if column.length is not None else column_type.length
    if length is None:
        raise SpecError(f"{where} needs length = NUMBER OF ELEMENTS")
    if column_type.length not in (None, length):
        raise SpecError(f"{where} has {column_type.length} elements by its type, not length = {length}")
    entry: dict[str, Any] = {"kind": "array", "length": length}
    if column.rows is not None:
        image = {"rows": column.rows, "columns": length // column.rows}
        entry["image"] = image | {"blur": column.blur, "stride": column.stride}
    return entry


def _require_unit_type(column_type: ColumnType, unit: str) -> None:
    if column_type.kind in ("array", "other") and column_type.name not in ("uuid", "bytea", "oid", "inet"):
        raise SpecError(
            f"unit {shown(unit)}: a unit is told by a number, a text, a date or a uuid, not by "
            f"{visible(column_type.name)}; "
            "use a view that casts it to one. What the type holds equal must stay so, or a person is several "
            f"units: of citext a plain cast would tell ann from ANN, so take lower({shown(unit)}::text)"
        )


def _require_levels(column_type: ColumnType, where: str) -> None:
    if column_type.kind not in ("text", "enum", "number", "boolean", "date"):
        raise SpecError(
            f"{where}: values of type {visible(column_type.name)} cannot be listed; use a view that casts it "
            "to text, a number, a boolean, a date or an enum"
        )


def _compared_label(label: Label, column_type: ColumnType) -> Label:
    """The label with its classes as values are compared with them."""
    where = f"label {shown(label.column)}"
    if label.task != "regression":
        _require_levels(column_type, where)
        if label.classes is not None:
            return replace(label, classes=as_compared(label.classes, column_type, f"{where}: classes"))
        named = [label.positive, label.negative]
        found = as_compared([v for v in named if v is not None], column_type, f"{where}: positive, negative")
        return replace(label, positive=found[0], negative=found[1] if len(found) == 2 else None)
    if column_type.kind not in ("number", "boolean", *MOMENTS):
        raise SpecError(
            f"{where}: lower and upper belong to a number or a date, not to {visible(column_type.name)}"
        )
    return label


def _encode_label(label: Label, kind: str) -> dict[str, Any]:
    if label.task == "binary":
        return {
            "name": label.column,
            "kind": "binary",
            "positive": label.positive,
            "negative": label.negative,
        }
    if label.task == "multiclass":
        return {"name": label.column, "kind": "classes", "classes": list(label.classes or ())}
    assert label.lower is not None  # Label sees to both
    assert label.upper is not None
    return {
        "name": label.column,
        "kind": "number",
        "lower": moment_number(label.lower, kind, f"label {shown(label.column)}: lower"),
        "upper": moment_number(label.upper, kind, f"label {shown(label.column)}: upper"),
    }


def _feature_names(column: Mapping[str, Any]) -> list[str]:
    if column["kind"] == "category":
        return [f"{column['name']}={level}" for level in column["levels"]]
    if "image" in column:
        image = column["image"]
        pixels = (
            (row, place)
            for row in range(0, image["rows"], image["stride"])
            for place in range(0, image["columns"], image["stride"])
        )
        return [f"{column['name']}[{row + 1},{place + 1}]" for row, place in pixels]
    if column["kind"] == "array":
        return [f"{column['name']}[{i + 1}]" for i in range(column["length"])]
    return [column["name"]]


def _stored_values(column: Mapping[str, Any]) -> int:
    """Most non-zero features one value of a column encodes to."""
    if column["kind"] == "category":
        return len(column["levels"]) if column["centered"] else 1
    return int(column.get("length", 1))


def from_clause(source: Source) -> sql.Composed:
    """FROM clause with the alias t; the filter is the owner's own SQL, declared public."""
    clause = sql.SQL("FROM {} AS t").format(source.table.identifier)
    if source.where is not None:
        # A line of its own: the filter may end in a comment.
        clause += sql.SQL(" WHERE (") + verbatim(source.where) + sql.SQL("\n)")
    return clause


def record_of(encoder: Mapping[str, Any], table: SourceTable, *, with_label: bool) -> sql.Composed:
    """`ROW(t.a, t.b, ...)` in the encoder's order: it needs no privilege on other columns.

    Text too long to be a level and arrays of another length become NULL,
    which encodes as they do; in a label whose other values are a class, another
    value. A record of several huge values could not be made, and that would
    tell of a row.
    """
    fields = [_bounded_field(column["name"], column.get("length"), table) for column in encoder["columns"]]
    if with_label:
        label = encoder["label"]
        # Without a type, so that it takes the column's.
        other = sql.Literal("" if str(label.get("positive", "")).strip(" ") else "other")
        others = label["kind"] == "binary" and label.get("negative") is None
        fields.append(_bounded_field(label["name"], None, table, other if others else sql.NULL))
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(fields))


def _bounded_field(
    name: str, length: int | None, table: SourceTable, instead: sql.Composable = sql.NULL
) -> sql.Composed:
    field = sql.Identifier("t", name)
    column_type = table.columns[name]
    if column_type.kind == "text":
        unfit = sql.SQL("pg_catalog.octet_length({}::pg_catalog.text) > {}").format(
            field, sql.Literal(LONGEST_LEVEL)
        )
    elif column_type.kind == "array" and not column_type.vector and length is not None:
        unfit = sql.SQL("pg_catalog.cardinality({}) <> {}").format(field, sql.Literal(length))
    else:
        return sql.Composed([field])
    return sql.SQL("CASE WHEN {} THEN {} ELSE {} END").format(unfit, instead, field)


def count_units(session: Session, source: Source) -> int:
    """Number of units of privacy, which the neighbouring relation makes public: rows, if no unit is declared.

    Rows whose unit is NULL are units of their own.
    """
    counted: sql.SQL | sql.Composed = sql.SQL("pg_catalog.count(*)")
    if source.unit is not None:
        counted = sql.SQL(
            "pg_catalog.count(DISTINCT {unit}) + pg_catalog.count(*) FILTER (WHERE {unit} IS NULL)"
        ).format(unit=sql.Identifier("t", source.unit))
    return session.count(
        sql.SQL("SELECT {} ").format(counted) + from_clause(source),
        f"counting the rows of {shown(source.table.name)} failed, and PostgreSQL's message is not shown "
        "because it may quote a row: write the filter, or the view, so that it can fail on no row",
    )


def require_plannable(session: Session, source: Source) -> None:
    """Let the server parse the encoder and prepare the reading of the rows, and read none.

    A role that may not encode may plan all the same, without this.

    Raises
    ------
    SpecError
        For what the server refuses in the spec, names, types and rights among it.
    """
    (may_encode,) = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.has_function_privilege('dpml.encode(pg_catalog.jsonb, record)', 'EXECUTE')"
        )
    )
    if may_encode:
        _prepare(session, source)


def _prepare(session: Session, source: Source) -> None:
    record = record_of(source.encoder, source.table, with_label=True)
    rows = shuffled(source)
    table = source.table.identifier
    parse = sql.SQL("SELECT dpml.encode(%(encoder)s, {}) FROM (SELECT (NULL::{}).*) AS t").format(
        record, table
    )
    parsed = session.attempt(lambda: session.fetch(parse, {"encoder": json_parameter(source.encoder)}))
    if type(parsed) is DpmlError and parsed.cause is None:
        raise SpecError(f"the server cannot read the levels or classes of the spec: {parsed}")
    if isinstance(parsed, DpmlError):
        raise parsed
    session.require_readable(
        _packing(source, rows.encoded, rows.order),
        f"the rows of {shown(source.table.name)} cannot be read, and PostgreSQL's message is not shown "
        "because it may quote a row: write the filter, or the view, so that it can fail on no row",
        rows.parameters,
    )


def require_runnable(session: Session, source: Source) -> None:
    """As `require_plannable`, and let the server make an empty table of blocks, which is undone.

    Raises
    ------
    SpecError, DpmlError
        As of `require_plannable`; if the role may make no work tables, or there is no tablespace for them.
    UnavailableError
        If the server is read-only.
    """
    _prepare(session, source)
    with session.discarded():
        nothing = sql.SQL("SELECT 0, NULL::pg_catalog.bytea WHERE false")
        _store_blocks(session, source, nothing, {})


_ANY_ORDER = sql.SQL("pg_catalog.random()")


class Shuffled(NamedTuple):
    """Encoded rows and the random order they are to be read in; Source: privacy/README.md, "Randomness"."""

    encoded: sql.Composable
    """SELECT of the column `row`, and of what the rest speaks of as columns of e."""
    order: sql.Composable
    """ORDER BY list."""
    starts: sql.Composable
    """Condition: in that order, the row is the first of its unit of privacy."""
    parameters: Mapping[str, Any]


def _store_blocks(
    session: Session, source: Source, query: sql.Composable, parameters: Mapping[str, Any]
) -> PackedRows:
    """Blocks of a query in its order, in a new table of a random name that only the current role can read."""
    blocks = sql.Identifier("dpml_work", f"blocks_{secrets.token_hex(8)}")
    if _block_bytes(source) == BLOCK_PAGE_BYTES:
        # One block a page, stored as it is, or a small one could go into the rest of an earlier page, out of
        # order. A table made of its query may be filled by parallel workers, which INSERT may not.
        statement = sql.SQL(
            "CREATE UNLOGGED TABLE {} (block_no, block) WITH (fillfactor = 10, toast_tuple_target = 8160) AS "
        )
    else:
        session.execute(
            sql.SQL("CREATE UNLOGGED TABLE {} (block_no integer NOT NULL, block bytea NOT NULL)").format(
                blocks
            )
        )
        session.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN block SET STORAGE EXTERNAL").format(blocks))
        statement = sql.SQL("INSERT INTO {} (block_no, block) ")
    return PackedRows(blocks, session.execute(statement.format(blocks) + query, parameters))


def _block_bytes(source: Source) -> int:
    """Largest block for the rows: a page, or out of line where a unit takes half a page.

    A whole unit always fits, so that no unit is cut: its gradients can then be summed and clipped in a block.
    """
    unit_bytes = _unit_bytes(source.max_rows_per_unit, row_bytes(source))
    if unit_bytes <= BLOCK_PAGE_BYTES // 2:
        return BLOCK_PAGE_BYTES
    return max(BLOCK_MAX_BYTES, min(unit_bytes, LARGEST_BLOCK_BYTES))


def row_bytes(source: Source) -> int:
    """Most bytes of an encoded row in a block, whatever its values: all that it could store, stored."""
    sparse = source.encoder["format"] == "csr"
    return 8 + 8 * source.n_values if sparse else 4 + 4 * source.n_features


def unit_fits_block(max_rows_per_unit: int, n_features: int) -> bool:
    """Whether all rows of a unit lie in one block, sparse rows being shorter than dense ones."""
    return _unit_bytes(max_rows_per_unit, 4 + 4 * n_features) <= LARGEST_BLOCK_BYTES


def _unit_bytes(n_rows: int, row_bytes: int) -> int:
    """A block of one unit: a bit a row says where units begin, in whole words of 32."""
    return BLOCK_HEADER_BYTES + 4 * math.ceil(n_rows / 32) + n_rows * row_bytes


def fill(
    session: Session,
    source: Source,
    encoded: sql.Composable,
    order: sql.Composable,
    parameters: Mapping[str, Any],
) -> PackedRows:
    """Sort encoded rows into a random order and pack them into numbered blocks, in physical order."""
    return _store_blocks(session, source, _packing(source, encoded, order), parameters)


def _packing(source: Source, encoded: sql.Composable, order: sql.Composable) -> sql.Composed:
    return sql.SQL(
        "SELECT (pg_catalog.row_number() OVER () - 1)::integer, p.block "
        "FROM (SELECT dpml.pack(e.row, 2147483647, {block_bytes}) OVER shuffled AS block "
        # OFFSET 0: encode first, so that narrow rows are sorted
        "FROM ({encoded} OFFSET 0) AS e WINDOW shuffled AS (ORDER BY {order})) AS p "
        "WHERE p.block IS NOT NULL"
    ).format(block_bytes=sql.Literal(_block_bytes(source)), encoded=encoded, order=order)


def shuffled(source: Source) -> Shuffled:
    """Every row encoded, in a fresh random order.

    Notes
    -----
    The order is a new random key per row, independent of the values; the rows
    of a unit stay together, under the key of one of them.
    Source: privacy/README.md, "Randomness" and "Unit of privacy".
    """
    record = record_of(source.encoder, source.table, with_label=True)
    parameters = {"encoder": json_parameter(source.encoder)}
    if source.unit is None:
        encoded = sql.SQL("SELECT dpml.encode(%(encoder)s, {record}) AS row ").format(record=record)
        return Shuffled(encoded + from_clause(source), _ANY_ORDER, sql.SQL("true"), parameters)
    keyed = sql.SQL(
        "SELECT {record} AS record, {unit} AS unit, pg_catalog.random() AS key, pg_catalog.random() AS tie "
    ).format(record=record, unit=sql.Identifier("t", source.unit))
    encoded = sql.SQL(
        "SELECT dpml.encode(%(encoder)s, u.record, u.unit IS NULL OR u.place = 1) AS row, u.unit, u.place, "
        "CASE WHEN u.unit IS NULL THEN u.key ELSE u.unit_key END AS key FROM ("
        "SELECT k.*, pg_catalog.row_number() OVER own AS place, "
        "pg_catalog.first_value(k.key) OVER own AS unit_key "
        "FROM ({keyed} OFFSET 0) AS k WINDOW own AS (PARTITION BY k.unit ORDER BY k.tie)) AS u "
        "WHERE u.unit IS NULL OR u.place <= {most}"
    ).format(keyed=keyed + from_clause(source), most=sql.Literal(source.max_rows_per_unit))
    return Shuffled(
        encoded,
        sql.SQL("e.key, e.unit, e.place"),
        sql.SQL("(e.unit IS NULL OR e.place = 1)"),
        parameters,
    )


def pack(session: Session, source: Source) -> PackedRows:
    """Encode every row, put the rows in a fresh random order, and pack them."""
    rows = shuffled(source)
    with session.owners_path():
        return fill(session, source, rows.encoded, rows.order, rows.parameters)


def repack(session: Session, source: Source, packed: PackedRows) -> PackedRows:
    """The rows in a fresh order; the old blocks are dropped.

    Without units the packed rows are shuffled again. With units they are read
    again from the table, in the run's own snapshot, because blocks do not
    keep which rows belong together; so a portion of the units has one order.
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


def whiten(
    session: Session, source: Source, packed: PackedRows, matrix: sql.Identifier, norm: float
) -> PackedRows:
    """Every row x as x norm / ||P x||, the blocks in any order; the old blocks are dropped.

    `matrix` is a table of one row and one column, P as `float8[]`, row by row.
    Source: privacy/README.md, "Whitened gradients".
    """
    query = sql.SQL(
        "SELECT b.block_no, dpml.whiten(b.block, (TABLE {matrix}), %(norm)s) FROM {old} AS b"
    ).format(matrix=matrix, old=packed.blocks)
    whitened = _store_blocks(session, source, query, {"norm": norm})
    session.execute(sql.SQL("DROP TABLE {}").format(packed.blocks))
    return whitened
