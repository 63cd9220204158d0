# SPDX-License-Identifier: PostgreSQL
"""A model's report or a comparison as one HTML file: it loads nothing, and every name is escaped."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pg_dpml.evaluation.evaluate import Evaluation
from pg_dpml.evaluation.metrics import left_out_words
from pg_dpml.ledger.models import Charge, Model
from pg_dpml.names import shown, visible_lines
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.meaning import chance_text, odds_factor, posterior, protected, share_text, suspicion
from pg_dpml.reports import plots
from pg_dpml.reports.comparison_report import (
    COMPARISON_HEAD,
    comparison_headings,
    comparison_rows,
    comparison_stamp,
    comparison_warnings,
)
from pg_dpml.reports.model_report import Coefficient, coefficients, noise_bound
from pg_dpml.reports.words import NOT_PRIVATE, guarantee_of, passes_text, size_text
from pg_dpml.runs.compare import Comparison

__all__ = ["comparison_html", "model_html"]

SHOWN = 40
"""Coefficients in the picture and the table."""

PRIORS = (0.01, 0.1, 0.5)
MOST_CLASSES = 12
"""A larger confusion matrix is not drawn."""

LONGEST_WORD = 24
"""Letters that stay together in a cell. A longer name is broken where the page ends."""

_STYLE = """
:root { color-scheme: light dark; --text: #222; --muted: #555; --line: #ddd; --back: #fff; --card: #f3f7fc;
  --edge: #9db8d9; --group: #eef0f3 }
@media (prefers-color-scheme: dark) { :root { --text: #e4e6ea; --muted: #a9afb8; --line: #3a4048;
  --back: #16191d; --card: #1d2530; --edge: #47617f; --group: #23282f } }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 54rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.75rem; line-height: 1.2 } h2 { font-size: 1.25rem; margin-top: 2.5rem }
table { border-collapse: collapse; margin: .8rem 0 }
.wide { overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.2rem .3rem 0;
  border-bottom: 1px solid var(--line) }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.key { white-space: nowrap; font-weight: 600 }
.long { overflow-wrap: anywhere; min-width: 12rem }
.group td { background: var(--group); font-weight: 600; padding-left: .4rem }
.level { padding-left: 1.4rem }
.card { border: 1px solid var(--edge); background: var(--card); border-radius: 6px; padding: .3rem 1.2rem }
.stamp { color: #fff; background: #b00000; font-weight: bold; border-radius: 6px; padding: .8rem 1.2rem }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px } figure { margin: 1rem 0 }
.note { color: var(--muted); font-size: .875rem }
@media (max-width: 36rem) { .facts, .facts tbody, .facts tr, .facts td { display: block; padding-right: 0 }
  .facts td { border: 0 } .facts tr { border-bottom: 1px solid var(--line); padding: .3rem 0 }
  .key { white-space: normal } }
@media print { body { max-width: none; margin: 0; font-size: 10pt; color: #000; background: #fff }
  .card { background: none } h2, tr, figure { break-inside: avoid } h2 { break-after: avoid } }
"""


def escape(text: str) -> str:
    """A text as HTML that shows every character of it."""
    return html.escape(visible_lines(text))


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
        What was spent on the training table, of which only the sum is shown: the report is to hand on. None
        if the ledger may not be read.
    evaluation : Evaluation or None
        On public rows.
    versions : mapping of str to str
        Of what made the report, by name.
    """
    title = f"Model {model.name}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        _stamp(model),
        _guarantee_card(model, charges),
        _accuracy(model, evaluation),
        _coefficients(model),
        _provenance(model, versions),
    ]
    return _page(title, sections)


def comparison_html(comparison: Comparison) -> str:
    """A comparison: the stamp of private rows, the figures against epsilon, and a table of them."""
    title = f"Methods on {comparison.table}"
    stamp = comparison_stamp(comparison)
    what, columns = comparison_headings(comparison)
    picture = _picture(
        plots.comparison_plot(comparison, stamp),
        "Mean of the splits against epsilon; bars are one standard deviation of a split",
    )
    sections = [
        f"<h1>{escape(title)}</h1>",
        "" if stamp is None else f'<p class="stamp">{escape(stamp)}</p>',
        f"<p>{escape(what)}</p>",
        *(f"<p>{escape(warning)}</p>" for warning in comparison_warnings(comparison, values=False)),
        picture,
        _table(comparison_rows(comparison), [head.capitalize() for head in COMPARISON_HEAD], range(2, 6)),
        f'<p class="note">{escape(columns)}</p>',
    ]
    return _page(title, sections)


def _page(title: str, sections: Iterable[str]) -> str:
    """A document that loads nothing; sections are HTML, and empty ones are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def _stamp(model: Model) -> str:
    if model.private:
        return ""
    return (
        f'<p class="stamp">{escape(NOT_PRIVATE)} It was made without noise, and may reveal rows of its '
        "training table.</p>"
    )


def _is_long(text: str) -> bool:
    """Whether a cell has a word that may be broken."""
    return max(map(len, text.split()), default=0) > LONGEST_WORD


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), numeric: Sequence[int] = ()) -> str:
    """A table of escaped cells, columns in `numeric` set to the right. One too wide for a page scrolls."""

    def cell(text: str, tag: str, i: int) -> str:
        of_class = " class=n" if i in numeric else " class=long" if _is_long(text) else ""
        return f"<{tag}{of_class}>{escape(text)}</{tag}>"

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(cell(text, tag, i) for i, text in enumerate(cells))}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<div class=wide><table>{line(head, 'th') if head else ''}{body}</table></div>"


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and what they stand for; on a narrow page one stands below the other."""

    def line(name: str, text: str) -> str:
        of_class = " class=long" if _is_long(text) else ""
        return f"<tr><td class=key>{escape(name)}</td><td{of_class}>{escape(text)}</td></tr>"

    return f"<div class=wide><table class=facts>{''.join(line(*row) for row in rows)}</table></div>"


def _picture(png: bytes, caption: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    width = int.from_bytes(png[16:20], "big") * 96 // plots.DPI
    return (
        f'<figure><img alt="{escape(caption)}" width="{width}" src="data:image/png;base64,{data}">'
        f'<figcaption class="note">{escape(caption)}</figcaption></figure>'
    )


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
e<sup>{guarantee.epsilon:g}</sup> = {odds}, and divides them by no more. A belief of 50 % becomes at most
<b>{share_text(posterior(0.5, guarantee.epsilon))}</b>.</p>
{_table(rows, head)}
<p>This fails with probability at most delta = {guarantee.delta:.3g}, or {chance_text(guarantee.delta)}.
Whatever is computed from the model reveals no more.</p>
{_facts(_terms(guarantee, _spending(model, charges)))}
</div>"""


def _terms(guarantee: Guarantee, spending: str) -> list[tuple[str, str]]:
    unit = "one row of the table; one person must have one row"
    if guarantee.unit is not None:
        unit = f"{protected(guarantee)}, of which at most {guarantee.max_rows_per_unit} are used"
    return [
        ("Guarantee", f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy"),
        ("Protected unit", unit),
        ("Neighbours", f"{guarantee.relation.value}: {guarantee.relation.meaning(guarantee.unit)}"),
        (
            "Public",
            "names of table and columns, bounds, category levels, classes, the number of rows, the training "
            "settings, and everything on this page",
        ),
        (
            "Assumed",
            "bounds and levels come from the meaning of the columns and not from the rows; nobody else reads "
            "the server's memory or the run's private tables; running times are not observed",
        ),
        ("Not covered", f"other releases from the same rows, which add to this one: {spending}"),
    ]


def _coefficients(model: Model) -> str:
    found = coefficients(model)
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
    picture = _picture(
        plots.coefficient_plot(names, sizes, bands, unit),
        f"{what} coefficients, those of one column together",
    )
    by_feature = bool(bands) and model.whitening is not None
    if by_feature:
        heads.append("Noise")
    words = [_direction_words(model), _noise_words(model, found[0], by_feature=by_feature)]
    if model.whitening is not None:
        words.append(
            "The model divides each score by a length that depends on the row. This changes probabilities "
            "and predicted numbers. It changes neither the predicted class nor how coefficients compare."
        )
    text = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in words if sentence)
    table = _coefficient_table(groups, heads, by_feature=by_feature)
    return f"<h2>Coefficients</h2>\n{text}{picture}\n{table}"


def _by_column(model: Model, found: Sequence[Coefficient]) -> list[tuple[str, list[Coefficient]]]:
    """Coefficients by the column that they belong to, the column with the largest one first."""
    columns = sorted((str(column["name"]) for column in model.encoder["columns"]), key=len, reverse=True)
    groups: dict[str, list[Coefficient]] = {}
    for one in found:
        own = next((name for name in columns if one.name.startswith((f"{name}=", f"{name}["))), one.name)
        groups.setdefault(own, []).append(one)
    return list(groups.items())


def _coefficient_table(
    groups: Sequence[tuple[str, Sequence[Coefficient]]], heads: Sequence[str], *, by_feature: bool
) -> str:
    """A row for each coefficient, and above the levels of one column a row with its name."""
    lines = ["<tr><th>Feature</th>" + "".join(f"<th class=n>{escape(head)}</th>" for head in heads) + "</tr>"]
    for column, members in groups:
        together = len(members) > 1
        if together:
            lines.append(f'<tr class=group><td colspan="{len(heads) + 1}">{escape(column)}</td></tr>')
        for one in members:
            name = one.name[len(column) :].lstrip("=") if together else one.name
            numbers = [f"{weight:+.4f}" for weight in one.weights]
            numbers += [f"{one.noise:.3g}"] if by_feature else []
            cells = "".join(f"<td class=n>{escape(number)}</td>" for number in numbers)
            of_class = " class=long" if _is_long(name) else " class=level" if together else ""
            lines.append(f"<tr><td{of_class}>{escape(name)}</td>{cells}</tr>")
    return f"<div class=wide><table>{''.join(lines)}</table></div>"


def _direction_words(model: Model) -> str:
    """Which way a coefficient points."""
    label = shown(str(model.encoder["label"]["name"]))
    if model.task == "regression":
        return f"A positive coefficient raises the predicted {label}, a negative one lowers it."
    if model.classes is not None and len(model.matrix) == 1:
        positive, negative = _sides(model)
        return (
            f"A positive coefficient speaks for {label} = {shown(positive)}, "
            f"a negative one for {shown(negative)}."
        )
    return f"A positive coefficient speaks for its class of {label}, a negative one against it."


def _sides(model: Model) -> tuple[str, str]:
    """The classes that positive and negative scores predict."""
    assert model.classes is not None
    negative, positive = model.classes
    return positive, negative


def _noise_words(model: Model, one: Coefficient, *, by_feature: bool) -> str:
    if one.noise is None:
        return "The coefficients carry no noise."
    size = "the standard deviation in the last column"
    if not by_feature:
        size = f"standard deviation {noise_bound(model)}{one.noise:.3g}"
    return (
        f"What the guarantee costs: noise of {size} moves every coefficient at random. A coefficient smaller "
        "than twice that may be noise alone."
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
        pictures.append(_picture(png, "Confusion: rows by actual and predicted class"))
    if evaluation.roc:
        pictures.append(_picture(plots.roc_plot(evaluation.roc), "ROC curve"))
    if evaluation.calibration:
        png = plots.calibration_plot(evaluation.calibration)
        pictures.append(_picture(png, "Calibration: probability predicted, share observed"))
    warnings = [
        f"<p>Warning: {escape(words)}</p>" for words in left_out_words(evaluation.left_out, values=False)
    ]
    return "<h2>Accuracy on public rows</h2>\n" + _facts(rows) + "\n".join([*warnings, *pictures])


def _spending(model: Model, charges: Sequence[Charge] | None) -> str:
    """What was released about the training table in all: the sum, as other models are not the reader's."""
    if charges is None:
        return "whoever made this report may not read dpml.ledger, which lists them"
    if all(entry.id == model.charge for entry in charges):
        return "there were none when this report was made"
    many = f"with this one there were {len(charges)} when this report was made"
    if len({(entry.relation, entry.mechanism.get("unit")) for entry in charges}) > 1:
        return f"{many}, about different neighbours, so that they do not simply add up"
    epsilon, delta = (sum(getattr(entry, key) for entry in charges) for key in ("epsilon", "delta"))
    return f"{many}, together at most ({epsilon:f}, {float(delta):.3g})-differential privacy, by adding up"


def _provenance(model: Model, versions: Mapping[str, str]) -> str:
    training: Mapping[str, Any] = model.training
    privacy = model.privacy
    size = size_text(training.get("n_units", 0), privacy.get("unit"), privacy.get("max_rows_per_unit"))
    rows = [
        ("Trained on", f"{training.get('table_name')}, {size}"),
        *((("Filter", str(training["where"])),) if training.get("where") else ()),
        ("Method", f"{model.method}, loss {model.loss}, {passes_text(training.get('passes'))}"),
        ("Features", f"{model.n_features}, rows brought to norm 1 ({model.encoder['norm']})"),
        ("Stored", f"{model.created_at:%Y-%m-%d %H:%M %Z} by {model.owner}" if model.created_at else ""),
        ("Charge", "none" if model.charge is None else f"entry {model.charge} of dpml.ledger"),
        *((f"{name}, when trained", str(value)) for name, value in training.get("versions", {}).items()),
        *((f"{name}, of this report", value) for name, value in versions.items()),
    ]
    return "<h2>Provenance</h2>\n" + _facts(rows)
