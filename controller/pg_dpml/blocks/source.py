# SPDX-License-Identifier: PostgreSQL
"""Resolving a data spec against the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pg_dpml.blocks.encoder import (
    as_in_catalog,
    compared_label,
    curved,
    encode_column,
    encode_label,
    is_sparse,
    most_pieces,
    require_crossed,
)
from pg_dpml.blocks.features import FeatureNames, stored_values
from pg_dpml.database.catalog import SourceTable, look_up_table
from pg_dpml.database.columns import ColumnType
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError, GuaranteeError, SpecError
from pg_dpml.kernels import MAX_FEATURES, MAX_PROJECTION
from pg_dpml.names import shown, visible
from pg_dpml.spec.data import MAX_WEIGHTS, PROJECTED_SPARSE, DataSpec
from pg_dpml.spec.dates import DATE_KINDS

__all__ = [
    "EncoderChange",
    "Source",
    "resolve",
]

MAX_UNIT_VALUES = 2**26
"""Most numbers that the rows of a unit may store where columns are sparse: 512 MB, which fit into a block."""


@dataclass(frozen=True)
class EncoderChange:
    """What a plan changes in the encoder of a spec.

    Attributes
    ----------
    norm : str or None
        How rows are bounded; None: as the spec says.
    pieces : int
        Pieces of the curves that numeric columns without knots get; below 2: they get none.
    """

    norm: str | None = None
    pieces: int = 0


@dataclass(frozen=True)
class Source:
    """A table whose rows can be encoded, as `resolve` found it in the catalog without reading a row.

    Attributes
    ----------
    table : SourceTable
    where : str or None
        The public filter.
    unit : str or None
        Column whose equal values are one unit of privacy; None: every row is one.
    max_rows_per_unit : int
        Most rows of a unit that are used.
    encoder : mapping
        Argument of `dpml.encode`, which is stored with the model.
    n_features : int
        Length of an encoded row, the intercept included.
    n_values : int
        Largest number of values that one encoded row can store.
    feature_names : FeatureNames
        One name a feature, in order.
    class_names : tuple of str or None
        As `Label.class_names`, written as values are compared with them.
    most_pieces : tuple of int
        For each column of the encoder, the most pieces of a curve that a plan may give it; 0: none.
    """

    table: SourceTable
    where: str | None
    unit: str | None
    max_rows_per_unit: int
    encoder: Mapping[str, Any]
    n_features: int
    n_values: int
    feature_names: FeatureNames
    class_names: tuple[str, ...] | None
    most_pieces: tuple[int, ...] = ()

    @property
    def date_columns(self) -> dict[str, str]:
        """Kinds of the feature columns whose numbers are dates or timestamps, by name."""
        names = (column["name"] for column in self.encoder["columns"] if column["kind"] == "numeric")
        kinds = {name: self.table.columns[name].kind for name in names}
        return {name: kind for name, kind in kinds.items() if kind in DATE_KINDS}

    def changed(self, change: EncoderChange) -> Source:
        """The same table, with the encoder of a plan."""
        encoder = dict(self.encoder)
        if change.norm is not None:
            encoder["norm"] = change.norm
        if change.pieces:
            columns = zip(encoder["columns"], self.most_pieces, strict=True)
            encoder["columns"] = [curved(column, min(change.pieces, most)) for column, most in columns]
        return self._with_encoder(encoder)

    def _with_encoder(self, encoder: Mapping[str, Any]) -> Source:
        names, n_values = FeatureNames(encoder), _longest_row(encoder)
        # A sparse row costs eight bytes a value against four a feature.
        dense = not is_sparse(encoder) and 2 * n_values >= len(names)
        return replace(
            self,
            encoder={**encoder, "format": "dense" if dense else "csr"},
            n_features=len(names),
            n_values=len(names) if dense else n_values,
            feature_names=names,
        )


def resolve(session: Session, data: DataSpec) -> Source:
    """Check a spec against the catalog and write its encoder.

    Raises
    ------
    SpecError
        For a missing table or column, a type without an encoding, or missing bounds or levels.
    GuaranteeError
        If the choice of rows may depend on something that is not declared public.
    """
    table = look_up_table(session, data.table)
    data = as_in_catalog(data, table)
    _require_public_rows(table, data)
    columns = [encode_column(column, table.columns) for column in data.columns]
    label_type = table.columns[data.label.column]
    label = compared_label(data.label, label_type)
    if data.unit is not None:
        _require_unit_type(table.columns[data.unit], data.unit)
    encoder: dict[str, Any] = {"columns": columns, "intercept": data.intercept, "norm": data.norm}
    if data.crosses:
        require_crossed(data.crosses, columns)
        encoder["crosses"] = [list(pair) for pair in data.crosses]
    n_raw = len(FeatureNames(encoder)) - data.intercept
    if n_raw >= MAX_FEATURES:
        raise SpecError(
            f"columns and crosses: {n_raw} features, more than the {MAX_FEATURES - 1} a model may have"
        )
    sparse = is_sparse(encoder)
    if data.projection is not None:
        if sparse:
            raise SpecError(PROJECTED_SPARSE)
        if data.projection * n_raw > MAX_PROJECTION:
            raise SpecError(
                f"projection must be at most {MAX_PROJECTION // n_raw} with {n_raw} features before it"
            )
        encoder["projection"] = {"features": data.projection, "seed": data.projection_seed}
    n_values = _longest_row(encoder)
    if sparse and n_values * data.max_rows_per_unit > MAX_UNIT_VALUES:
        raise SpecError(
            f"max_rows_per_unit must be at most {MAX_UNIT_VALUES // n_values} with {n_values:,} features of "
            "sparse columns: the rows of a unit must fit into one block, however many features they have"
        )
    names = FeatureNames(encoder)
    n_classes = 1 if data.label.classes is None else len(data.label.classes)
    if len(names) * n_classes > MAX_WEIGHTS:
        raise SpecError(
            f"label {shown(data.label.column)}: classes: a model of {n_classes:,} classes may have at most "
            f"{MAX_WEIGHTS // n_classes:,} features, not {len(names):,}: list fewer classes, or give "
            "[features] projection"
        )
    encoder["label"] = encode_label(label, label_type.kind)
    _require_written(session, {f"column {c['name']}: levels": c.get("levels", ()) for c in columns})
    _require_written(session, {f"label {label.column}": label.class_names or ()})
    source = Source(
        table=table,
        where=data.where,
        unit=data.unit,
        max_rows_per_unit=data.max_rows_per_unit,
        encoder=encoder,
        n_features=len(names),
        n_values=n_values,
        feature_names=names,
        class_names=label.class_names,
        most_pieces=_most_pieces(encoder, data, table),
    )
    return source.changed(EncoderChange())


def _most_pieces(encoder: Mapping[str, Any], data: DataSpec, table: SourceTable) -> tuple[int, ...]:
    """For each column, the most pieces of a curve that a plan may give it."""
    if is_sparse(encoder) or "projection" in encoder:
        return (0,) * len(data.columns)
    entries = zip(data.columns, encoder["columns"], strict=True)
    return tuple(most_pieces(column, entry, table.columns[column.name]) for column, entry in entries)


def _longest_row(encoder: Mapping[str, Any]) -> int:
    """Largest number of non-zero features of a row."""
    projection = encoder.get("projection")
    return int(encoder["intercept"]) + (
        stored_values(encoder) if projection is None else projection["features"]
    )


def _require_written(session: Session, texts: Mapping[str, Sequence[str]]) -> None:
    """Reject texts with characters that the encoding of the database lacks."""

    def writes(some: Sequence[str]) -> bool:
        query = sql.SQL("SELECT %(texts)s::pg_catalog.text[] IS NULL")
        try:
            return not isinstance(session.attempt(lambda: session.fetch(query, {"texts": some})), DpmlError)
        except UnicodeEncodeError:  # the client's encoding lacks it
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
    features = [name for column in data.columns for name in column.names]
    used = [data.label.column, *features, *filter(None, [data.unit])]
    computed = [name for name in used if name in table.columns and table.columns[name].virtual]
    if computed and not data.definition_is_public:
        raise GuaranteeError(
            f"column {shown(computed[0])} is computed whenever it is read, and whether that fails could "
            "itself be private: if the owner agrees that its expression is public and never fails, add "
            "definition_is_public = true to the spec"
        )


def _require_unit_type(column_type: ColumnType, unit: str) -> None:
    if column_type.kind in ("array", "sparse", "other") and column_type.name not in (
        "uuid",
        "bytea",
        "oid",
        "inet",
    ):
        raise SpecError(
            f"unit {shown(unit)}: a unit is told by a number, a text, a date or a uuid, not by "
            f"{visible(column_type.name)}; "
            "use a view that casts it to one. What the type holds equal must stay so, or a person is several "
            f"units: of citext a plain cast would tell ann from ANN, so take lower({shown(unit)}::text)"
        )
