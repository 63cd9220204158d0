# SPDX-License-Identifier: PostgreSQL
"""Types of parameters and results: how values are converted between Python and the server."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import postgres, pq, sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import Jsonb

from pg_dpml.database.failures import LONGEST_SHOWN

__all__ = [
    "Cursor",
    "Float8Array",
    "TextCursor",
    "array_parameter",
    "encodable_text",
    "json_parameter",
    "verbatim",
]


@dataclass(frozen=True)
class Float8Array:
    """A parameter of type float8[], of any length."""

    values: npt.NDArray[np.float64]


class _Float8ArrayDumper(Dumper):
    """Send a float8[] of one dimension in binary; psycopg sends a list as text."""

    format = pq.Format.BINARY
    oid = psycopg.postgres.types["float8"].array_oid

    def dump(self, obj: Float8Array | Sequence[float] | npt.NDArray[np.float64]) -> bytes:
        # COPY of a float8[] passes any sequence: `copy_row` names types, not classes.
        values = obj.values if isinstance(obj, Float8Array) else np.asarray(obj, dtype=np.float64)
        items = np.empty(values.size, [("length", ">i4"), ("value", ">f8")])
        items["length"], items["value"] = 8, values
        # Dimensions, whether there are NULLs, element type; then length and lower bound.
        head = struct.pack("!5i", 1, 0, psycopg.postgres.types["float8"].oid, items.size, 1)
        return head + items.tobytes()


class _JsonLoader(Loader):
    """Read json and jsonb, which are UTF-8 as the session's encoding is."""

    def load(self, data: Buffer) -> Any:
        return json.loads(bytes(data))


class _UtcLoader(TimestamptzLoader):
    """Read timestamptz in UTC: Python does not know every time zone of PostgreSQL."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid)  # without a connection, UTC

    def load(self, data: Buffer) -> datetime:
        return super().load(data)


def _adapters() -> AdaptersMap:
    """The adapters of psycopg and of this module, without those that the calling program has registered."""
    adapters = AdaptersMap()
    postgres.register_default_types(adapters.types)
    postgres.register_default_adapters(adapters)
    register_all_arrays(adapters)
    adapters.register_dumper(Float8Array, _Float8ArrayDumper)
    adapters.register_loader("json", _JsonLoader)
    adapters.register_loader("jsonb", _JsonLoader)
    adapters.register_loader("timestamptz", _UtcLoader)
    return adapters


_ADAPTERS = _adapters()


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A plain cursor of psycopg, whatever cursors, rows and adapters the connection has been given."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """The adapters of this module."""
        return _ADAPTERS


class TextCursor(psycopg.ClientCursor[tuple[Any, ...]]):
    """As `Cursor`, of which `mogrify` gives the text of a statement with its parameters in it."""

    @property
    def adapters(self) -> AdaptersMap:
        """The adapters of this module."""
        return _ADAPTERS


@contextmanager
def encodable_text() -> Iterator[None]:
    """Raise psycopg's error for text that is not UTF-8, as psycopg itself does for NUL."""
    try:
        yield
    except UnicodeEncodeError as error:
        shown = error.object.encode("utf-8", "backslashreplace").decode()
        raise psycopg.DataError(f"text that is not UTF-8 was given: {shown[:LONGEST_SHOWN]}") from None


def verbatim(text: str) -> sql.Composed:
    """SQL text, unchanged: `sql.SQL` accepts only literals, and takes a percent sign for a placeholder."""
    return sql.Composed([sql.SQL(text.replace("%", "%%"))])  # type: ignore[arg-type, unused-ignore]


def json_parameter(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Jsonb:
    """A mapping, or an array of them, as a jsonb parameter.

    It has no escapes, which a database of encoding SQL_ASCII rejects.
    """
    return Jsonb(value, dumps=_json)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def array_parameter(values: npt.NDArray[np.float64]) -> object:
    """An array of shape (n,), n at least 1, as a float8[] parameter; never for un-noised numbers."""
    return Float8Array(values)
