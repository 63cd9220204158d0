# SPDX-License-Identifier: PostgreSQL
"""Exact figures of a model on rows that the caller may see, computed in SQL, which returns only sums.

The figures have no noise: those of private rows are for the owner alone (privacy/README.md, "Scores and
errors").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pg_dpml.blocks.encoder import columns_read
from pg_dpml.blocks.query import record_of
from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import SpecError
from pg_dpml.kernels import has_probability
from pg_dpml.ledger.models import Model
from pg_dpml.names import did_you_mean, shown
from pg_dpml.tables.labels import LeftOut, count_undeclared, label_field

__all__ = ["CalibrationBin", "Figures", "exact_figures", "left_out_words", "require_columns"]

CALIBRATION_BINS = 10
ROC_POINTS = 100


@dataclass(frozen=True)
class CalibrationBin:
    """Rows whose predicted probability lies in one tenth of [0, 1].

    Attributes
    ----------
    lower, upper : float
        Ends of the tenth.
    n_rows : int
    predicted : float
        Mean probability of the positive class; with several classes, of the predicted class.
    observed : float
        Share of rows of that class.
    """

    lower: float
    upper: float
    n_rows: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Figures:
    """Figures of a model on the rows of a table that have a declared label.

    Attributes
    ----------
    n_rows : int
        Rows with a declared label.
    accuracy, majority : float or None
        Shares of rows that the model, or a constant prediction of the table's most frequent class, classifies
        correctly; None for regression.
    mean_squared_error, r_squared : float or None
        In units of the label; None for classification.
    confusion : tuple of (str, str, int)
        Actual class, predicted class, rows.
    auc : float or None
        Probability that, of a random positive and a random negative row, the positive one has the higher
        score, where a tie counts half; None unless there are two classes, each with rows.
    roc : tuple of (float, float)
        At most about a hundred points of the ROC curve: false and true positive rate.
    calibration : tuple of CalibrationBin
        Tenths that have rows; empty for losses without probabilities.
    left_out : LeftOut or None
        Rows of the table that are in no figure, and why. None for a noisy error, where rows without a
        declared label count as errors.
    """

    n_rows: int
    accuracy: float | None = None
    majority: float | None = None
    mean_squared_error: float | None = None
    r_squared: float | None = None
    confusion: tuple[tuple[str, str, int], ...] = ()
    auc: float | None = None
    roc: tuple[tuple[float, float], ...] = ()
    calibration: tuple[CalibrationBin, ...] = ()
    left_out: LeftOut | None = None


def exact_figures(session: Session, model: Model, table: SourceTable) -> Figures:
    """All figures for the model's task.

    Raises
    ------
    SpecError
        If no row has a declared label.
    """
    query = _Query(session, model, table)
    figures, n_left_out = (_regression if model.task == "regression" else _classification)(query)
    left_out = query.left_out() if n_left_out else LeftOut()
    if figures is None:
        because = " ".join(left_out_words(left_out)) or "it has no rows"
        raise SpecError(
            f"no row of {shown(table.name)} has a label that model {shown(model.name)} knows: {because}"
        )
    seen = {actual for actual, _, _ in figures.confusion}
    empty = tuple(name for name in model.classes or () if name not in seen)
    return replace(figures, left_out=replace(left_out, empty_classes=empty))


def left_out_words(left_out: LeftOut | None, *, values: bool = True) -> list[str]:
    """Sentences about rows that are in no figure, and about classes without rows; empty if there are none.

    `values`: whether to name the most frequent undeclared labels, which a file to hand on must not show.
    """
    words = []
    if left_out is not None and left_out.n_rows:
        reasons = [f"{left_out.nulls:,} whose label is NULL"] if left_out.nulls else []
        if left_out.undeclared:
            shown_rows = sum(value.rows for value in left_out.undeclared_values)
            commonest = [f"{value.value!r} {value.rows:,}" for value in left_out.undeclared_values]
            commonest += ["..."] if shown_rows < left_out.undeclared else []
            examples = f" ({', '.join(commonest)})" if values else ""
            reasons.append(f"{left_out.undeclared:,} whose label is not declared{examples}")
        rows = "1 row is" if left_out.n_rows == 1 else f"{left_out.n_rows:,} rows are"
        words.append(f"{rows} in no figure: {' and '.join(reasons)}.")
    if left_out is not None and left_out.empty_classes:
        names = ", ".join(map(repr, left_out.empty_classes[:10]))
        more = ", ..." if len(left_out.empty_classes) > 10 else ""
        words.append(f"No row is of class {names}{more}: the figures say nothing about it.")
    return words


def require_columns(model: Model, table: SourceTable, extra: list[str]) -> None:
    """Raise an error that names the first column of the model, or of `extra`, that a table lacks."""
    for name in columns_read(model.encoder) + extra:
        if name not in table.columns:  # the exact name, by which the model's encoder looks it up
            offer = did_you_mean(name, table.columns) or ";"
            raise SpecError(
                f"column {shown(name)} does not exist in {shown(table.name)}{offer} "
                f"model {shown(model.name)} needs it by this name"
            )


class _Query:
    """Queries of one table's rows t, in which `{label}`, `{predict}` and so on are functions of the row."""

    def __init__(self, session: Session, model: Model, table: SourceTable) -> None:
        self.session = session
        self.model = model
        self.table = table
        self.record = record_of(model.encoder, table, with_label=True)

    def rows(self, text: str, **parts: Any) -> list[tuple[Any, ...]]:
        functions = {
            name: sql.SQL("dpml.{}(%(model)s, {})").format(sql.Identifier(name), self.record)
            for name in ("label", "predict", "predict_value", "predict_proba")
        }
        query = sql.SQL(text).format(  # type: ignore[arg-type, unused-ignore]
            table=self.table.identifier, **functions
        )
        with self.session.owners_path():
            return self.session.fetch(query, {"model": self.model.name} | parts)

    def left_out(self) -> LeftOut:
        """Count the rows whose label the model does not know."""
        condition = sql.SQL("dpml.label(%(model)s, {}) IS NULL").format(self.record)
        field = label_field(self.model.encoder, self.table.columns)
        with self.session.owners_path():
            return count_undeclared(self.session, self.table, field, condition, {"model": self.model.name})


def _classification(query: _Query) -> tuple[Figures | None, int]:
    """Figures, and the number of rows that are in none."""
    rows = query.rows(
        "SELECT {label} AS actual, {predict} AS predicted, pg_catalog.count(*) "
        "FROM {table} AS t GROUP BY 1, 2"
    )
    confusion = tuple(sorted((a, p, n) for a, p, n in rows if a is not None))
    total = sum(n for _, _, n in confusion)
    without = sum(n for a, _, n in rows if a is None)
    if total == 0:
        return None, without
    sizes: dict[str, int] = {}
    for actual, _, n in confusion:
        sizes[actual] = sizes.get(actual, 0) + n
    auc, roc = _roc(query) if query.model.task == "binary" else (None, ())
    figures = Figures(
        n_rows=total,
        accuracy=sum(n for a, p, n in confusion if a == p) / total,
        majority=max(sizes.values()) / total,
        confusion=confusion,
        auc=auc,
        roc=roc,
        calibration=_calibration(query) if has_probability(query.model.loss) else (),
    )
    return figures, without


def _roc(query: _Query) -> tuple[float | None, tuple[tuple[float, float], ...]]:
    """Area under the curve by ranks, exact with ties, and points of the curve."""
    assert query.model.classes is not None
    rows = query.rows(
        "WITH scored AS (SELECT {label} = %(positive)s AS hit, {predict_value} AS score "
        " FROM {table} AS t OFFSET 0), "
        "tied AS (SELECT score, (pg_catalog.count(*) FILTER (WHERE hit))::numeric AS p, "
        " (pg_catalog.count(*) FILTER (WHERE NOT hit))::numeric AS n "
        " FROM scored WHERE hit IS NOT NULL GROUP BY score), "
        "ranked AS (SELECT p, n, pg_catalog.sum(p) OVER falling AS tp, pg_catalog.sum(n) OVER falling AS fp, "
        " pg_catalog.sum(p) OVER () AS all_p, pg_catalog.sum(n) OVER () AS all_n "
        " FROM tied WINDOW falling AS (ORDER BY score DESC)) "
        # A positive row counts the negative rows of lower score, and half of those of equal score.
        "SELECT pg_catalog.max(fp)::pg_catalog.int8, pg_catalog.max(tp)::pg_catalog.int8, "
        "pg_catalog.sum(p * (all_n - fp + n / 2.0))::pg_catalog.float8 FROM ranked "
        "GROUP BY pg_catalog.ceil(%(points)s::numeric * (tp + fp) / (all_p + all_n)) ORDER BY 1, 2",
        positive=query.model.classes[1],
        points=ROC_POINTS,
    )
    negatives, positives = rows[-1][:2]
    if negatives == 0 or positives == 0:
        return None, ()
    area = sum(row[2] for row in rows) / (float(negatives) * float(positives))
    return area, ((0.0, 0.0), *((fp / negatives, tp / positives) for fp, tp, _ in rows))


def _calibration(query: _Query) -> tuple[CalibrationBin, ...]:
    if query.model.task == "binary":
        probability, hit = "({predict_proba})[2]", "{label} = %(positive)s"
    else:
        probability = "(SELECT pg_catalog.max(v) FROM pg_catalog.unnest({predict_proba}) AS u(v))"
        hit = "{label} = {predict}"
    assert query.model.classes is not None
    rows = query.rows(
        "SELECT least(pg_catalog.width_bucket(e.p, 0, 1, %(bins)s), %(bins)s) AS bin, pg_catalog.count(*), "
        "pg_catalog.avg(e.p), pg_catalog.avg(e.hit::pg_catalog.int4)::pg_catalog.float8 "
        f"FROM (SELECT {probability} AS p, {hit} AS hit FROM {{table}} AS t OFFSET 0) AS e "
        "WHERE e.hit IS NOT NULL GROUP BY 1 ORDER BY 1",
        positive=query.model.classes[1],
        bins=CALIBRATION_BINS,
    )
    return tuple(
        CalibrationBin((i - 1) / CALIBRATION_BINS, i / CALIBRATION_BINS, n, predicted, observed)
        for i, n, predicted, observed in rows
    )


def _regression(query: _Query) -> tuple[Figures | None, int]:
    """Figures, and the number of rows that are in none."""
    ((n_rows, without, squared_error, variance),) = query.rows(
        "SELECT pg_catalog.count(e.actual), pg_catalog.count(*) - pg_catalog.count(e.actual), "
        "pg_catalog.avg((e.actual - e.predicted) ^ 2::float8), pg_catalog.var_pop(e.actual) "
        "FROM (SELECT {label}::pg_catalog.float8 AS actual, {predict_value} AS predicted "
        "FROM {table} AS t OFFSET 0) AS e"
    )
    if n_rows == 0:
        return None, without
    figures = Figures(
        n_rows=n_rows,
        mean_squared_error=squared_error,
        r_squared=1.0 - squared_error / variance if variance > 0.0 else None,
    )
    return figures, without
