# SPDX-License-Identifier: PostgreSQL
"""Predictions of a stored model for a table, and its figures in one of three modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pg_dpml.blocks.distributed import distribute, distribution_column
from pg_dpml.blocks.query import record_of
from pg_dpml.database.catalog import SourceTable, look_up_table
from pg_dpml.database.database import Database
from pg_dpml.database.new_tables import new_table
from pg_dpml.database.session import sql
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.evaluation.metrics import Figures, exact_figures, require_columns
from pg_dpml.evaluation.noisy_error import NoisyError, release_error
from pg_dpml.ledger import models
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.tables.stamp import owner_stamp

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["Evaluation", "evaluate", "predict"]

WAYS = (
    "figures of private rows are themselves a release, so say exactly one of: --public (the rows of this "
    "table are public); --owner (they are private, and the exact figures are for their owner's eyes only); "
    "--epsilon E (they are private, and one noisy error is released and charged)"
)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Figures):
    """A model's figures on a table.

    In mode "private" the number of rows is that of all rows used, `accuracy` or
    `mean_squared_error` is the noisy one, and there are no other figures.

    Attributes
    ----------
    model, table : str
    private : bool
        Whether the model is private.
    mode : str
        "public" (rows are public), "owner" (exact figures of private rows: **not
        private**) or "private" (one noisy error of private rows, charged).
    error : NoisyError or None
        None but in mode "private".
    """

    model: str
    table: str
    private: bool
    mode: str
    error: NoisyError | None = None


def evaluate(
    database: str | sa.Engine,
    model: str,
    table: str,
    *,
    public: bool = False,
    owner: bool = False,
    privacy: PrivacySpec | None = None,
    clip: float | None = None,
    definition_is_public: bool = False,
    insecure: bool = False,
    dataset: str | None = None,
) -> Evaluation:
    """Figures of a stored model on a table, in exactly one of three modes.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    model : str
        Name in dpml.models.
    table : str
        Table with the columns and the label of the training table.
    public : bool
        The owner states that the rows of `table` are public.
    owner : bool
        Exact figures of private rows, for their owner alone: they are **not private**.
    privacy : PrivacySpec or None
        Release one noisy error of private rows and charge it. A `delta` of None is 0, since
        one number needs the least noise without it; but 1 / n^2 for n rows where a budget adds up by the
        rules gdp and zcdp, which charge much more for noise without delta. Units of privacy are the model's.
    clip : float or None
        Regression with `privacy`: public bound on one row's squared error, in (0, inf); None
        for the largest possible one, which clips nothing.
    definition_is_public : bool
        With `privacy`, if `table` is a view: the owner states that the choice of its rows is public.
    insecure : bool
        Allow TCP without TLS to another machine.
    dataset : str or None
        With `privacy`: name of the budget to charge. None: the budget that lists `table`, or, for the model's
        training table, the budget that the model was charged to, if there is one.

    Returns
    -------
    Evaluation

    Raises
    ------
    GuaranteeError
        If not exactly one mode is given: figures on private rows are releases.
    SpecError
        If the model, the table or a column does not exist, or no row has a declared label.
    BudgetError
        If the budget of the data set, or its owner's terms, do not allow it; nothing is charged.
    RunFailedError
        If a private evaluation fails after its charge; the charge stays.
    RunInterrupted
        On Ctrl-C after the charge; the charge stays.

    Notes
    -----
    Source: privacy/README.md, "Scores and errors".
    """
    if [public, owner, privacy is not None].count(True) != 1:
        raise GuaranteeError(WAYS)
    opened = Database(database, insecure=insecure)
    if privacy is not None:
        scored, found, error = release_error(
            opened,
            model,
            table,
            privacy,
            clip=clip,
            definition_is_public=definition_is_public,
            dataset=dataset,
        )
        return Evaluation(
            model=scored.name,
            table=found.name,
            private=scored.private,
            mode="private",
            n_rows=error.n_rows,
            accuracy=1.0 - error.value if error.clip is None else None,
            mean_squared_error=None if error.clip is None else error.value,
            error=error,
        )
    if clip is not None or definition_is_public or dataset is not None:
        raise SpecError("clip, definition_is_public and dataset go with epsilon: exact figures need none")
    with opened.session("REPEATABLE READ") as session:
        stored = models.load_model(session, model)
        found = look_up_table(session, table)
        require_columns(stored, found, [stored.encoder["label"]["name"]])
        with owner_stamp(owner):
            figures = exact_figures(session, stored, found)
        return Evaluation(
            model=stored.name,
            table=found.name,
            private=stored.private,
            mode="public" if public else "owner",
            **vars(figures),
        )


def _id_column(table: SourceTable, name: str) -> str:
    """The column of a table by this name; a refusal says how to number the rows of a table without one."""
    try:
        return table.column(name, "id")
    except SpecError as error:
        raise SpecError(
            f"{error}; ALTER TABLE ... ADD id bigint GENERATED ALWAYS AS IDENTITY numbers the rows of a table"
        ) from None


def predict(
    database: str | sa.Engine, model: str, table: str, *, id_column: str, into: str, insecure: bool = False
) -> int:
    """Write a model's predictions for every row of a table into a new table.

    The new table has the id column, `prediction` (text) and `value` (float8,
    see `dpml.predict_value`). Where Citus distributes `table` by the id column, it distributes the new table
    so too, and no row leaves its worker.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    model : str
        Name in dpml.models.
    table : str
        Table with the feature columns of the training table.
    id_column : str
        Column that identifies a row: where two rows have the same value, nothing tells their predictions
        apart.
    into : str
        Name of the new table, schema-qualified or not.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    SpecError
        If the model, the table or a column does not exist, or the new table exists already.
    """
    with Database(database, insecure=insecure).session() as session:
        stored = models.load_model(session, model)
        found = look_up_table(session, table)
        require_columns(stored, found, [])
        id_column = _id_column(found, id_column)
        if id_column in ("prediction", "value"):
            raise SpecError("id: the new table already has columns called prediction and value")
        target = new_table(session, into)
        predictions = sql.SQL(
            "SELECT t.{id}, dpml.predict({model}, {record}) AS prediction, "
            "dpml.predict_value({model}, {record}) AS value FROM {table} AS t"
        ).format(
            id=sql.Identifier(id_column),
            # CREATE TABLE AS takes no parameters.
            model=sql.Literal(stored.name),
            record=record_of(stored.encoder, found, with_label=False),
            table=found.identifier,
        )
        create = sql.SQL("CREATE TABLE {} AS ").format(target) + predictions
        with session.owners_path():
            if distribution_column(session, found) != id_column:
                return session.execute(create)
            session.execute(create + sql.SQL(" WITH NO DATA"))
            distribute(session, target, id_column, found.identifier)
            return session.execute(sql.SQL("INSERT INTO {} ").format(target) + predictions)
