# SPDX-License-Identifier: PostgreSQL
"""Packed rows that one can sum over: gradients, Hessians and second moments, all un-noised."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pg_dpml.blocks.packing import PackedRows, repack, whiten
from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.session import Session, sql
from pg_dpml.kernels import FloatArray

__all__ = ["Blocks", "GradientSums", "GramSums"]


class GradientSums(NamedTuple):
    """Un-noised sums over packed rows; None for those not asked for."""

    gradient: FloatArray | None
    """Shape (n_weights,), of the first model."""
    losses: FloatArray | None
    """Shape (n_models,)."""
    rows: int


class GramSums(NamedTuple):
    """Un-noised second moments of packed rows."""

    xx: FloatArray
    """Sum of x x', shape (n_features, n_features)."""
    xy: FloatArray
    """Sum of y x, shape (n_features,)."""
    rows: int


@dataclass
class Blocks:
    """Packed rows and the transaction that contains them.

    Attributes
    ----------
    session : Session
        At REPEATABLE READ; its rollback removes everything un-noised.
    source : Source
        The table that the rows are from.
    packed : PackedRows
        Replaced when the rows are packed again.
    tables : list of sql.Identifier
        Work tables besides that of the packed rows.
    """

    session: Session
    source: Source
    packed: PackedRows
    tables: list[sql.Identifier] = field(default_factory=list, init=False)
    _weights: sql.Identifier | None = field(default=None, init=False)

    # All rows are one part.
    _parts: ClassVar[sql.SQL] = sql.SQL(
        "SELECT {fields} FROM (SELECT {call} AS sums FROM {blocks} AS b OFFSET 0) AS g"
    )

    def work_table(self, kind: str, columns: sql.SQL) -> sql.Identifier:
        """Create an unlogged table with a random name, which only the current role can read."""
        table = sql.Identifier("dpml_work", f"{kind}_{secrets.token_hex(8)}")
        self.session.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(table, columns))
        self.tables.append(table)
        return table

    def gradient(self, weights: FloatArray, options: Mapping[str, Any]) -> GradientSums:
        """Sums over all packed rows at fixed weights, un-noised.

        Parameters
        ----------
        weights : ndarray of shape (n_models * n_outputs * n_features,)
            Sent by COPY.
        options : mapping
            Options of the aggregate `dpml.gradient`.

        Returns
        -------
        GradientSums
        """
        parts = self._sums(
            sql.SQL("dpml.gradient(b.block, (SELECT w.weights FROM {} AS w), %(options)s)").format(
                self._send(weights)
            ),
            ("gradient", "losses", "rows"),
            {"options": json_parameter(options)},
        )
        return GradientSums(_added(parts, 0), _added(parts, 1), _rows(parts, 2))

    def hessian(self, weights: FloatArray, options: Mapping[str, Any]) -> FloatArray:
        """Sum of the Hessians of the rows' losses, un-noised.

        Parameters
        ----------
        weights : ndarray of shape (n_features,)
            Sent by COPY.
        options : mapping
            Options of the aggregate `dpml.gram`.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            Symmetric.
        """
        parts = self._sums(
            sql.SQL("dpml.gram(b.block, (SELECT w.weights FROM {} AS w), %(options)s)").format(
                self._send(weights)
            ),
            ("xx",),
            {"options": json_parameter(options)},
        )
        return _symmetric(_added(parts, 0), len(weights))

    def gram(self) -> GramSums:
        """Second moments of all packed rows, un-noised."""
        parts = self._sums(sql.SQL("dpml.gram(b.block)"), ("xx", "xy", "rows"), {})
        d = self.source.n_features
        xy = _added(parts, 1)
        return GramSums(_symmetric(_added(parts, 0), d), np.zeros(d) if xy is None else xy, _rows(parts, 2))

    def _sums(
        self, call: sql.SQL | sql.Composed, fields: Sequence[str], parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Fields of an aggregate's result over each part of the packed rows."""
        listed = sql.SQL(", ").join(sql.SQL("(g.sums).{}").format(sql.Identifier(name)) for name in fields)
        query = self._parts.format(fields=listed, call=call, blocks=self.packed.blocks)
        return self.session.fetch(query, parameters, binary=True)

    def whiten(self, matrix: FloatArray, norm: float, scale: float | None = None) -> None:
        """Replace every row x by x norm / ||P x||.

        Parameters
        ----------
        matrix : ndarray of shape (n_features, n_features) or (k, n_features)
            P, or with a scale V of P = scale I - V'V; it is sent by COPY.
        norm : float
            In (0, inf).
        scale : float, optional
            In (0, inf).
        """
        old = self.packed.blocks
        self.packed = self._whitened_rows(matrix, norm, scale)
        self.session.execute(sql.SQL("DROP TABLE {}").format(old))

    def whitened(self, whitening: FloatArray) -> Blocks:
        """A second set of blocks with every row x divided by ||P x||; this set is unchanged.

        Parameters
        ----------
        whitening : ndarray of shape (n_features, n_features)
            The matrix P.
        """
        white = replace(self, packed=self._whitened_rows(whitening, 1.0, None))
        self.tables.append(white.packed.blocks)
        white.tables = self.tables
        return white

    def _whitened_rows(self, matrix: FloatArray, norm: float, scale: float | None) -> PackedRows:
        return whiten(self.session, self.source, self.packed, self.send_matrix(matrix), norm, scale)

    def send_matrix(self, matrix: FloatArray) -> sql.Identifier:
        """A new work table of one row and one column, `matrix`, row by row."""
        table = self.work_table("whitening", sql.SQL("matrix pg_catalog.float8[] NOT NULL"))
        # Compression would be tried in vain on megabytes of noisy numbers.
        self.session.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN matrix SET STORAGE EXTERNAL").format(table))
        self.session.copy_row(table, ["float8[]"], [matrix.reshape(-1)])
        return table

    def repack(self) -> None:
        """Put the rows in a fresh random order."""
        self.packed = repack(self.session, self.source, self.packed)

    def _send(self, weights: FloatArray) -> sql.Identifier:
        """Put weights into a work table of one row: one table for all passes, as each one holds locks."""
        if self._weights is None:
            self._weights = self.work_table("weights", sql.SQL("weights pg_catalog.float8[] NOT NULL"))
        else:
            # TRUNCATE would search all shared buffers.
            self.session.execute(sql.SQL("DELETE FROM {}").format(self._weights))
        self.session.copy_row(self._weights, ["float8[]"], [weights])
        return self._weights

    def drop(self) -> None:
        """Drop the work tables; the transaction may be committed, so no rollback removes them."""
        for table in (*self.tables, self.packed.blocks):
            self.session.execute(sql.SQL("DROP TABLE {}").format(table))


def _added(parts: Sequence[Sequence[Any]], index: int) -> FloatArray | None:
    """Sum of the arrays at a place of the parts, in their order; None if no part has one.

    However many parts there are, it is rounded about once: what each addition loses is exact in `low`.
    Source: privacy/README.md, "Distributed tables".
    """
    arrays = [np.asarray(part[index], dtype=np.float64) for part in parts if part[index] is not None]
    if not arrays:
        return None
    high, low = arrays[0], np.zeros_like(arrays[0])
    with np.errstate(over="ignore", invalid="ignore"):  # sums that are not finite stay so
        for array in arrays[1:]:
            total = high + array
            of_array = total - high
            low += (high - (total - of_array)) + (array - of_array)
            high = total
        return high + low


def _rows(parts: Sequence[Sequence[Any]], index: int) -> int:
    return sum(part[index] or 0 for part in parts)


def _symmetric(triangle: FloatArray | None, size: int) -> FloatArray:
    """The symmetric matrix with this upper triangle, row by row; zeros for None, the sum over no rows."""
    full = np.zeros((size, size))
    if triangle is not None:
        full[np.triu_indices(size)] = triangle
    return full + np.triu(full, 1).T
