# SPDX-License-Identifier: PostgreSQL
"""A model's report or a comparison as one HTML file that loads nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pg_dpml.evaluation.evaluate import Evaluation
from pg_dpml.evaluation.metrics import left_out_words
from pg_dpml.ledger.models import Charge, Model
from pg_dpml.names import shown
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.meaning import (
    chance_text,
    odds_factor,
    posterior,
    protected,
    share_text,
    suspicion,
    unprotected,
)
from pg_dpml.reports import page, plots
from pg_dpml.reports.comparison_report import (
    COMPARISON_HEAD,
    comparison_headings,
    comparison_rows,
    comparison_stamp,
    comparison_warnings,
)
from pg_dpml.reports.effects import MOST_LEVELS, drawn_effects, has_curves, output_names
from pg_dpml.reports.model_report import (
    CHANCE,
    SPENDING_HEAD,
    Coefficient,
    coefficients,
    damping_words,
    noise_bound,
    spending_rows,
    spending_text,
)
from pg_dpml.reports.page import escape, is_long
from pg_dpml.reports.words import (
    NOT_PRIVATE,
    changes_text,
    guarantee_of,
    passes_text,
    public_text,
    settings_text,
    shards_lines,
    size_text,
)
from pg_dpml.runs.compare import Comparison

__all__ = ["comparison_html", "model_html"]

SHOWN = 40
"""Most coefficients in the picture and the table; the largest are shown."""

PRIORS = (0.01, 0.1, 0.5)
MOST_CLASSES = 12
"""Most classes of a confusion matrix that is drawn."""


def model_html(
    model: Model,
    *,
    charges: Sequence[Charge] | None,
    evaluation: Evaluation | None,
    versions: Mapping[str, str],
) -> str:
    """The report of a stored model.

    Parameters
    ----------
    model : Model
    charges : sequence of Charge or None
        Charges to the training table. The report shows only their sum, since it is made to be handed on.
        None if the ledger may not be read.
    evaluation : Evaluation or None
        Measured on public rows.
    versions : mapping of str to str
        Versions of the programs that made the report, by name.
    """
    title = f"Model {model.name}"
    sections = [
        _stamp(model),
        _guarantee_card(model, charges),
        _accuracy(model, evaluation),
        _curves(model),
        _coefficients(model),
        _choices(model),
        _provenance(model, versions),
    ]
    return page.document(title, sections)


def comparison_html(comparison: Comparison) -> str:
    """The report of a comparison: a stamp if the rows are private, a picture, and a table of the figures."""
    title = f"Methods on {comparison.table}"
    stamp = comparison_stamp(comparison)
    what, columns = comparison_headings(comparison)
    heads = [head if head == "SD" else head.capitalize() for head in COMPARISON_HEAD]
    rows = [
        row if entry.refusal is None else (*row[:2], row[-1])
        for entry, row in zip(comparison.entries, comparison_rows(comparison), strict=True)
    ]
    picture = page.picture(
        plots.comparison_plot(comparison, stamp),
        "Mean of the splits against epsilon; bars are one standard deviation of a split",
    )
    sections = [
        "" if stamp is None else page.paragraph(stamp, "stamp"),
        page.paragraph(what),
        *map(page.paragraph, comparison_warnings(comparison, values=False)),
        picture,
        page.table(rows, heads, range(2, len(heads))),
        page.paragraph(columns, "note"),
    ]
    return page.document(title, sections)


def _stamp(model: Model) -> str:
    if model.private:
        return ""
    text = f"{NOT_PRIVATE} It was made without noise, and may reveal rows of its training table."
    return page.paragraph(text, "stamp")


def _guarantee_card(model: Model, charges: Sequence[Charge] | None) -> str:
    guarantee = guarantee_of(model)
    if guarantee is None:
        return ""
    odds = odds_factor(guarantee.epsilon)
    rows = [
        (
            share_text(prior),
            share_text(posterior(prior, guarantee.epsilon)),
            share_text(posterior(prior, -guarantee.epsilon)),
        )
        for prior in PRIORS
    ]
    head = ("Belief before", "At most, after", "At least, after")
    return f"""<h2>What an attacker learns at most</h2>
<div class="card">
<p>Suppose that an attacker knows all the rest of the training table and {escape(suspicion(guarantee))}.
Seeing this model multiplies the odds of the guess, against any other, by at most
e<sup>{guarantee.epsilon:g}</sup> = {odds}, and divides them by no more. A belief of 50&nbsp;% becomes at most
<b class=whole>{share_text(posterior(0.5, guarantee.epsilon))}</b>.</p>
{page.table(rows, head)}
<p>This fails with probability at most delta = {guarantee.delta:.3g}, or {chance_text(guarantee.delta)}.
Whatever is computed from the model reveals no more.</p>
{page.facts(_terms(guarantee, _spending(model, charges)))}
</div>"""


def _terms(guarantee: Guarantee, spending: str) -> list[tuple[str, str]]:
    unit = f"one row of the table{unprotected(guarantee)}; one person must have one row"
    if guarantee.unit is not None:
        unit = f"{protected(guarantee)}, of which at most {guarantee.max_rows_per_unit} are used"
    return [
        ("Guarantee", f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy"),
        ("Protected unit", unit),
        ("Neighbours", f"{guarantee.relation.value}: {changes_text(guarantee)}"),
        ("Public", f"{public_text(guarantee)}, the classes, and everything on this page"),
        (
            "Assumed",
            "bounds and levels come from the meaning of the columns and not from the rows; nobody else reads "
            "the server's memory or the run's private tables; running times are not observed",
        ),
        ("Not covered", f"other releases from the same rows, which add to this one: {spending}"),
    ]


def _curves(model: Model) -> str:
    """The curves, levels and crosses of a model that is not a linear one."""
    found = drawn_effects(model) if has_curves(model) else []
    if not found:
        return ""
    kinds, dates = model.training.get("dates"), ""
    if kinds is None or kinds:  # None: stored before a model said which columns are dates
        dates = "Dates" if kinds is None else "In names of coefficients, dates"
        dates += " are days, and timestamps seconds, since 2000-01-01. "
    words = (
        "What a column adds to the score: the curve of a number, the bars of levels, the map of two columns "
        "together. The score of a row is the sum of these and the intercept, divided by a length that "
        f"depends on the row. {dates}Arrays, and columns of more than {MOST_LEVELS} levels, are not "
        f"drawn, and no more than {plots.MOST_EFFECTS} parts."
    )
    caption = "What each column adds to the score"
    if found[0].noise is not None:
        caption += f"; shaded: {noise_bound(model)}one standard deviation of the noise on both sides"
    picture = page.picture(plots.effects_plot(found, output_names(model)), caption)
    return "\n".join(["<h2>Curves</h2>", page.paragraph(words), picture])


def _coefficients(model: Model) -> str:
    found = coefficients(model)
    if not found:
        return "<h2>Coefficients</h2>\n" + page.paragraph("All coefficients are 0.")
    groups = _by_column(model, found[:SHOWN])
    shown_ones = [one for _, members in groups for one in members]
    names = [one.name for one in shown_ones]
    if len(model.matrix) == 1:
        sizes = [one.weights[0] for one in shown_ones]
        unit, heads = "coefficient", ["Coefficient"]
    else:
        sizes = [math.hypot(*one.weights) for one in shown_ones]
        unit, heads = "norm of a feature's coefficients over the classes", list(model.classes or ())
    bands = [one.noise * math.sqrt(len(model.matrix)) for one in shown_ones if one.noise is not None]
    what = "All" if len(shown_ones) == len(found) else f"The {len(shown_ones)} largest of {len(found)}"
    picture = page.picture(
        plots.coefficient_plot(names, sizes, bands, unit),
        f"{what} coefficients, those of one column together",
    )
    by_feature = bool(bands) and model.whitening is not None
    if by_feature:
        heads.append("Noise")
    words = [_direction_words(model), _noise_words(model, found[0], by_feature=by_feature)]
    if len(found) < model.n_features:
        words.append(f"The coefficients of {model.n_features - len(found):,} features are 0.")
    if model.whitening is not None:
        changes = "the predicted numbers. It does not change"
        if model.task != "regression":
            changes = "probabilities. It changes neither the predicted class nor"
        words.append(
            "The model divides each score by a length that depends on the row. "
            f"This changes {changes} how coefficients compare."
        )
    table = _coefficient_table(groups, heads, by_feature=by_feature)
    return "\n".join(["<h2>Coefficients</h2>", *map(page.paragraph, words), picture, table])


def _by_column(model: Model, found: Sequence[Coefficient]) -> list[tuple[str, list[Coefficient]]]:
    """Group coefficients by their column or cross. The one of the largest coefficient comes first."""
    columns = sorted((str(column["name"]) for column in model.encoder["columns"]), key=len, reverse=True)
    crosses = [(str(first), str(second)) for first, second in model.encoder.get("crosses") or ()]
    groups: dict[str, list[Coefficient]] = {}
    for one in found:
        cross = next((" * ".join(pair) for pair in crosses if _is_of_cross(one.name, *pair)), None)
        own = next(
            (name for name in columns if one.name.startswith(tuple(f"{name}{c}" for c in "=[@"))), one.name
        )
        groups.setdefault(cross or own, []).append(one)
    return list(groups.items())


def _is_of_cross(name: str, first: str, second: str) -> bool:
    """Whether a feature is a product of a level or hat function of each of two columns."""
    return name.startswith((f"{first}=", f"{first}@")) and any(f" * {second}{c}" in name for c in "=@")


def _coefficient_table(
    groups: Sequence[tuple[str, Sequence[Coefficient]]], heads: Sequence[str], *, by_feature: bool
) -> str:
    """A table with a row for each coefficient. A row with a column's name precedes its levels."""
    lines = ["<tr><th>Feature</th>" + "".join(f"<th class=n>{escape(head)}</th>" for head in heads) + "</tr>"]
    for column, members in groups:
        together = len(members) > 1
        if together:
            lines.append(f'<tr class=group><td colspan="{len(heads) + 1}">{escape(column)}</td></tr>')
        for one in members:
            inner = together and one.name.startswith(column)
            name = (one.name[len(column) :].lstrip("=") or "linear") if inner else one.name
            numbers = [f"{weight:+.4f}" for weight in one.weights]
            numbers += [f"{one.noise:.3g}"] if by_feature else []
            cells = "".join(f"<td class=n>{escape(number)}</td>" for number in numbers)
            of_class = " class=long" if is_long(name) else " class=level" if together else ""
            lines.append(f"<tr><td{of_class}>{escape(name)}</td>{cells}</tr>")
    return f"<div class=wide><table>{''.join(lines)}</table></div>"


def _direction_words(model: Model) -> str:
    """State what the sign of a coefficient means."""
    label = shown(str(model.encoder["label"]["name"]))
    if model.task == "regression":
        return f"A positive coefficient raises the predicted {label}, a negative one lowers it."
    if model.classes is not None and len(model.matrix) == 1:
        negative, positive = model.classes
        return (
            f"A positive coefficient speaks for {label} = {shown(positive)}, "
            f"a negative one for {shown(negative)}."
        )
    return f"A positive coefficient speaks for its class of {label}, a negative one against it."


def _noise_words(model: Model, one: Coefficient, *, by_feature: bool) -> str:
    if one.noise is None and model.private:
        return f"What the guarantee costs: {CHANCE}. The coefficients themselves carry no noise."
    if one.noise is None:
        return "The coefficients carry no noise."
    size = f"{noise_bound(model)}the standard deviation in the last column"
    if not by_feature:
        size = f"standard deviation {noise_bound(model)}{one.noise:.3g}"
    return (
        f"What the guarantee costs: noise of {size}{damping_words(model)}. It moves every coefficient at "
        "random. A coefficient smaller than twice that may be noise alone."
    )


def _accuracy(model: Model, evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return ""
    rows = [("Table", evaluation.table), ("Public rows with a label", f"{evaluation.n_rows:,}")]
    if evaluation.accuracy is not None and evaluation.majority is not None:
        rows += [
            ("Accuracy", f"{evaluation.accuracy:.2%}"),
            ("Always the most frequent class", f"{evaluation.majority:.2%}"),
        ]
    if evaluation.auc is not None:
        rows.append(("Area under the ROC curve", f"{evaluation.auc:.4f}"))
    if evaluation.mean_squared_error is not None:
        rows.append(("Root mean squared error", f"{math.sqrt(evaluation.mean_squared_error):.6g}"))
    if evaluation.r_squared is not None:
        rows.append(("R squared", f"{evaluation.r_squared:.4f}"))
    pictures = []
    if evaluation.confusion and model.classes is not None and len(model.classes) <= MOST_CLASSES:
        png = plots.confusion_plot(model.classes, evaluation.confusion)
        pictures.append(page.picture(png, "Confusion: rows by actual and predicted class"))
    if evaluation.roc:
        pictures.append(page.picture(plots.roc_plot(evaluation.roc), "ROC curve"))
    if evaluation.calibration:
        png = plots.calibration_plot(evaluation.calibration)
        pictures.append(page.picture(png, "Calibration: probability predicted, share observed"))
    warnings = [
        page.paragraph(f"Warning: {words}") for words in left_out_words(evaluation.left_out, values=False)
    ]
    return "\n".join(["<h2>Accuracy on public rows</h2>", page.facts(rows), *warnings, *pictures])


def _spending(model: Model, charges: Sequence[Charge] | None) -> str:
    """The sum of all charges to the training table, which names no other model."""
    if charges is None:
        return "whoever made this report may not read dpml.ledger, which lists them"
    if all(entry.id == model.charge for entry in charges):
        return "there were none when this report was made"
    many = f"with this one there were {len(charges)} when this report was made"
    keys = ("unit", "placed_by")
    if len({(entry.relation, *map(entry.mechanism.get, keys)) for entry in charges}) > 1:
        return f"{many}, about different neighbours, so that they do not simply add up"
    epsilon, delta = (sum(getattr(entry, key) for entry in charges) for key in ("epsilon", "delta"))
    return f"{many}, together at most ({epsilon:f}, {float(delta):.3g})-differential privacy, by adding up"


def _choices(model: Model) -> str:
    """What a run chose and paid, choice by choice."""
    rows = spending_rows(model)
    if not rows:
        return ""
    words = f"What the run spent {spending_text(model)}."
    return "\n".join(
        [
            "<h2>Spending</h2>",
            page.paragraph(words),
            page.table(rows, SPENDING_HEAD, range(len(SPENDING_HEAD))),
        ]
    )


def _provenance(model: Model, versions: Mapping[str, str]) -> str:
    training: Mapping[str, Any] = model.training
    privacy = model.privacy
    size = size_text(training.get("n_units", 0), privacy.get("unit"), privacy.get("max_rows_per_unit"))
    norm = model.encoder["norm"]
    bounds = "each clipped to [-1, 1]" if norm == "clip_values" else f"rows brought to norm 1 ({norm})"
    rows = [
        ("Trained on", f"{training.get('table_name')}, {size}"),
        *((("Filter", str(training["where"])),) if training.get("where") else ()),
        ("Method", f"{model.method}, loss {model.loss}, {passes_text(training.get('passes'))}"),
        *((("Settings", settings),) if (settings := settings_text(training)) else ()),
        *shards_lines(training),
        ("Features", f"{model.n_features:,}, {bounds}"),
        ("Stored", f"{model.created_at:%Y-%m-%d %H:%M %Z} by {model.owner}" if model.created_at else ""),
        ("Charge", "none" if model.charge is None else f"entry {model.charge} of dpml.ledger"),
        *((f"{name}, when trained", str(value)) for name, value in training.get("versions", {}).items()),
        *((f"{name}, of this report", value) for name, value in versions.items()),
    ]
    return "<h2>Provenance</h2>\n" + page.facts(rows)
