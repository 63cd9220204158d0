# SPDX-License-Identifier: PostgreSQL
"""Making a table of a svmlight file: id, label, indices and values, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pg_dpml.database.database import Database
from pg_dpml.database.new_tables import new_table
from pg_dpml.database.session import sql
from pg_dpml.errors import SpecError
from pg_dpml.names import visible
from pg_dpml.tables.stamp import OWNER_ONLY
from pg_dpml.tables.svmlight import SparseRow, read_rows

if TYPE_CHECKING:
    import sqlalchemy as sa

    from pg_dpml.tables.checks import Progress

__all__ = ["Loaded", "load_svmlight", "loaded_record", "loaded_text"]

_MB = 2**20


@dataclass
class Loaded:
    """What was loaded. Not private.

    Attributes
    ----------
    table : str
        As it was written.
    first_index : int
        Index of the first feature.
    rows : int
    largest_index : int or None
        None if no row has a number.
    most_values : int
        Numbers of the longest row.
    queries_left_out : int
        Lines whose qid was left out.
    """

    table: str
    first_index: int
    rows: int = 0
    largest_index: int | None = None
    most_values: int = 0
    queries_left_out: int = 0

    def count(self, row: SparseRow) -> None:
        """Take a row into the figures."""
        self.rows += 1
        self.most_values = max(self.most_values, len(row.values))
        self.queries_left_out += row.has_query
        if row.indices:
            self.largest_index = max(self.largest_index or 0, row.indices[-1])


def load_svmlight(
    database: str | sa.Engine,
    file: str,
    table: str,
    *,
    first_index: int = 1,
    progress: Progress | None = None,
    insecure: bool = False,
) -> Loaded:
    """Create a table of a svmlight file, or nothing at all.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    file : str
        A path, or "-" for standard input; plain or compressed by gzip.
    table : str
        Name of a new table, as in SQL.
    first_index : int
        Index of the file's first feature: 0 or 1, as the format says.
    progress : callable or None
        Called with "load", and the megabytes that were read and all of them.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    Loaded

    Raises
    ------
    SpecError
        For a file that is none, a bad line, with its number, or a table that exists.
    UnavailableError
        If the server cannot be reached.
    """
    if type(first_index) is not int or first_index not in (0, 1):
        raise SpecError(f"--first-index must be 0 or 1, not {first_index!r}")
    report = progress or (lambda phase, done, total: None)
    loaded = Loaded(table.strip(), first_index)

    def read(done: int, size: int) -> None:
        # Without a size a sign of life, which has no count.
        report("load", done // _MB, max(size // _MB, 1))

    with Database(database, insecure=insecure).session() as session:
        target = new_table(session, table, "TABLE")
        session.execute(
            sql.SQL(
                "CREATE TABLE {} (id pg_catalog.int8 GENERATED ALWAYS AS IDENTITY, "
                "label pg_catalog.float8 NOT NULL, indices pg_catalog.int4[] NOT NULL, "
                "values pg_catalog.float8[] NOT NULL)"
            ).format(target)
        )
        session.copy_lines(
            target, ("label", "indices", "values"), _lines(read_rows(file, first_index, read), loaded)
        )
        report("load", 1, 1)
    return loaded


def _lines(rows: Iterable[SparseRow], loaded: Loaded) -> Iterator[str]:
    """Rows as COPY reads them."""
    for row in rows:
        loaded.count(row)
        indices = ",".join(map(str, row.indices))
        values = ",".join(map(repr, row.values))
        yield f"{row.label!r}\t{{{indices}}}\t{{{values}}}\n"


def loaded_record(loaded: Loaded) -> dict[str, Any]:
    """What was loaded, as a JSON-ready mapping."""
    return {"stamp": OWNER_ONLY, "private": False, **asdict(loaded)}


def loaded_text(loaded: Loaded) -> str:
    """What was loaded, and the next command to type."""
    name = visible(loaded.table)
    largest = (
        "no row has a number" if loaded.largest_index is None else f"largest index {loaded.largest_index:,}"
    )
    length = (loaded.largest_index or loaded.first_index) - loaded.first_index + 1
    lines = [
        OWNER_ONLY,
        f"{name}: {loaded.rows:,} rows of id, label, indices and values; {largest}, at most "
        f"{loaded.most_values:,} numbers a row",
    ]
    if loaded.queries_left_out:
        lines.append(f"{loaded.queries_left_out:,} lines have a qid, which was left out")
    return "\n".join(
        [
            *lines,
            "",
            f"Next: dpml inspect {_argument(loaded.table)} --label label > spec.toml",
            f"Fill in first_index = {loaded.first_index}, and as length the number of features that the",
            f"documentation of the data gives, which is public: {length:,} or more, as a row with a larger "
            "index has no features",
        ]
    )


def _argument(table: str) -> str:
    """The name of a table as a shell takes it."""
    plain = all(character.isalnum() or character in "._" for character in table)
    return table if plain else "'" + table.replace("'", "'\\''") + "'"
