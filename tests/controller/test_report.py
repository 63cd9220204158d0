# SPDX-License-Identifier: PostgreSQL
"""The HTML report: self-contained, escaped, stamped, and right in its words. No server."""

from __future__ import annotations

import base64
import re
import subprocess
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.documents import text_of
from pg_dpml.evaluation.evaluate import Evaluation
from pg_dpml.evaluation.metrics import CalibrationBin
from pg_dpml.ledger.models import Charge, Model
from pg_dpml.privacy.meaning import belief_text, chance_text, posterior, share_text, suspicion
from pg_dpml.reports import evaluation_report, model_report, plots, words
from pg_dpml.reports.html import model_html
from pg_dpml.reports.page import LONGEST_WORD

EVIL = "<script>alert('&')</script>"
WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc)
NOISE = {
    "kind": "gaussian",
    "scale": 0.25,
    "sensitivity": 0.1,
    "calibrated_sensitivity": 0.1,
    "grid": 2.0**-30,
    "n_weights": 4,
    "score_stddev": 0.25,
}
MODEL = Model(
    name=EVIL,
    method="bolt-on",
    private=True,
    task="binary",
    loss="logistic",
    classes=(EVIL, f"not {EVIL}"),
    weights=np.array([1.0, -3.0, 0.1, 2.0]),
    n_features=4,
    encoder={"columns": [], "norm": "normalize", "label": {"name": EVIL}},
    privacy={"epsilon": 1.0, "delta": 1e-9, "relation": "replace_one", "noise": NOISE},
    training={
        "table_name": EVIL,
        "n_units": 1000,
        "passes": 3,
        "options": {EVIL: EVIL},
        "features": [EVIL, "$x_2$", "naïve 特\x07", "intercept"],
        "versions": {EVIL: EVIL},
    },
    charge=7,
    created_at=WHEN,
    owner=EVIL,
)
CHARGE = Charge(
    7, WHEN, EVIL, EVIL, EVIL, EVIL, Decimal(1), Decimal("1e-9"), "replace_one", 1000, {"unit": None}
)
EVALUATION = Evaluation(
    model=EVIL,
    table=EVIL,
    private=True,
    mode="public",
    n_rows=100,
    accuracy=0.8,
    majority=0.6,
    confusion=((EVIL, EVIL, 50), (EVIL, f"not {EVIL}", 20), (f"not {EVIL}", f"not {EVIL}", 30)),
    auc=0.9,
    roc=((0.0, 0.0), (0.2, 0.7), (1.0, 1.0)),
    calibration=(CalibrationBin(0.0, 0.1, 60, 0.05, 0.1), CalibrationBin(0.9, 1.0, 40, 0.95, 0.9)),
)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the words need not wait for drawings."""
    for name in plots.__all__:
        monkeypatch.setattr(plots, name, lambda *given: b"\x89PNG" + bytes(20))


words_only = pytest.mark.usefixtures("no_pictures")


def html(model: Model = MODEL, **changes: Any) -> str:
    given: dict[str, Any] = {"charges": [CHARGE], "evaluation": EVALUATION, "versions": {EVIL: EVIL}}
    return model_html(model, **(given | changes))


class Reader(HTMLParser):
    """Tags, attributes and text of a document; complains of tags that do not match."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def words_of(document: str) -> str:
    return " ".join(Reader(document).text.split())


def test_nothing_is_loaded_from_elsewhere() -> None:
    document = html()
    reader = Reader(document)
    assert not {"script", "link", "iframe", "object", "embed", "base", "a", "form"} & set(reader.tags)
    for name, value in reader.attributes:
        assert name in ("alt", "charset", "class", "content", "lang", "name", "src", "width"), name
        assert name != "src" or str(value).startswith("data:image/png;base64,")
    without_pictures = re.sub(r"base64,[A-Za-z0-9+/=]+", "", document)
    assert not re.search(r"https?:|//|url\(|@import", without_pictures)


@words_only
def test_names_are_escaped() -> None:
    document = html()
    assert "<script" not in document
    assert "alert('" not in document
    assert words_of(document).count(EVIL) > 9  # everywhere, as text


def test_pictures() -> None:
    document = html()
    pictures = re.findall(r'base64,([A-Za-z0-9+/=]+)"', document)
    assert len(pictures) == document.count("base64,") == 4  # coefficients, confusion, ROC, calibration
    for picture in pictures:
        assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert html(evaluation=None).count("base64,") == 1


@words_only
def test_the_guarantee_in_words() -> None:
    text = words_of(html())
    for part in (
        "e1 = 2.72",
        "73.1 %",
        "26.9 %",
        "or one in a billion",
        "replace_one",
        "one person must have one row",
    ):
        assert part in text
    assert "standard deviation 0.25" in text
    assert "-3.0000" in text
    units = replace(MODEL, privacy={**MODEL.privacy, "unit": "patient", "max_rows_per_unit": 5})
    text = words_of(html(units))
    assert "all rows with one value of patient" in text
    assert "at most 5 are used" in text
    blanked = replace(MODEL, privacy={**MODEL.privacy, "relation": "add_remove", "epsilon": 30.0})
    text = words_of(html(blanked))
    assert "rather than being blanked out" in text
    assert "more than 99.99 %" in text


@pytest.mark.parametrize("prior", [0.001, 0.5, 0.9])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 800.0])
def test_posterior(prior: float, epsilon: float) -> None:
    found = posterior(prior, epsilon)
    assert prior < found <= 1.0
    if epsilon < 100.0:
        odds = found / (1.0 - found) / (prior / (1.0 - prior))
        assert np.log(odds) == pytest.approx(epsilon, rel=1e-9)


def test_the_documents_say_what_an_epsilon_means() -> None:
    """In the words of the report, so that neither can say anything else."""
    page = text_of("docs/choosing.md")
    [heading] = re.findall(r"^\| epsilon \|(.*)\|$", page, re.MULTILINE)
    priors = [float(share) / 100.0 for share in re.findall(r"([\d.]+) % becomes", heading)]
    rows = re.findall(r"^\| ([\d.]+) \| (.* %.*) \|$", page, re.MULTILINE)
    assert [float(epsilon) for epsilon, _ in rows] == [0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0]
    for epsilon, cells in rows:
        assert cells.split(" | ") == [share_text(posterior(prior, float(epsilon))) for prior in priors]


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("unit", [None, "patient", "Patient ID"])
def test_the_meaning_is_that_of_the_report(relation: str, unit: str | None) -> None:
    privacy = {**MODEL.privacy, "relation": relation, "unit": unit, "epsilon": 3.0, "delta": 1e-6}
    guarantee = words.guarantee_of(replace(MODEL, privacy=privacy))
    assert guarantee is not None
    named = {None: "one row", "patient": "of patient", "Patient ID": 'of "Patient ID"'}[unit]
    assert words.promise_lines(guarantee)[0][1].endswith(named)
    text = belief_text(guarantee)
    assert suspicion(guarantee) in text
    assert "a belief of 50 % becomes at most 95.3 % by seeing the model" in text
    assert "except with probability 1e-06 (one in a million)" in text
    assert "except" not in belief_text(replace(guarantee, delta=0.0))
    assert "becomes at most <b class=whole>95.3 %</b>" in " ".join(
        html(replace(MODEL, privacy=privacy)).split()
    )


@pytest.mark.parametrize(
    ("relation", "unit", "neighbours"),
    [
        ("replace_one", None, "one row's values may be replaced by any others; the number of rows is public"),
        ("add_remove", None, "one row may be blanked out to a zero row; the number of rows is public"),
        (
            "replace_one",
            "Patient ID",
            'the values of all rows with one value of "Patient ID" may be replaced by any others; '
            "which rows these are is public, and at most 5 of them are used",
        ),
        (
            "add_remove",
            "patient",
            "all rows with one value of patient may be blanked out to zero rows; "
            "which rows these are is public, and at most 5 of them are used",
        ),
    ],
)
@words_only
def test_neighbours_are_those_of_the_unit(relation: str, unit: str | None, neighbours: str) -> None:
    privacy = {**MODEL.privacy, "relation": relation, "unit": unit, "max_rows_per_unit": 5}
    model = replace(MODEL, privacy=privacy)
    text = " ".join(model_report.model_text(model).split())
    assert f"Neighbours ({relation}): {neighbours}. Public:" in text
    assert ("one row" in text) == (unit is None)
    page = words_of(html(model))
    assert f"{relation}: {neighbours.partition(', and at most')[0]}" in page
    assert page.count("which rows these are is public") == (unit is not None)


def by_shards(relation: str, unit: str | None = None) -> Model:
    privacy = {**MODEL.privacy, "relation": relation, "unit": unit, "placed_by": "id"}
    training = {**MODEL.training, "shards": [{"rows": 600}, {"rows": 0}, {"rows": 400}]}
    return replace(MODEL, privacy=privacy, training=training)


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@words_only
def test_a_model_of_shards_promises_nothing_about_the_column_that_decides_them(relation: str) -> None:
    model = by_shards(relation)
    text, page = " ".join(model_report.model_text(model).split()), words_of(html(model))
    assert "changes the odds of any claim about one row but its id by at most" in text
    guess = {
        "replace_one": "guesses the values of one row but its id",
        "add_remove": "guesses that one row took part, rather than being blanked out in all but its id",
    }[relation]
    assert f"all the rest of the training table and {guess}." in page
    guarantee = words.guarantee_of(model)
    assert guarantee is not None
    assert guess in belief_text(guarantee)
    assert words.promise_lines(guarantee)[0][1].endswith("privacy of one row but its id")
    assert "one row of the table but its id; one person" in page
    for found in (text, page):
        assert "the number of rows is public, and the row's id stays the same" in found
        assert "the number of rows, in which shard a row lies, by its id, the training settings" in found
        assert "2 with rows, of 400 to 600 units: the passes are over each by itself, and the model" in found


@words_only
def test_a_unit_that_decides_the_shards_is_protected_as_ever() -> None:
    model = by_shards("replace_one", "id")
    for found in (" ".join(model_report.model_text(model).split()), words_of(html(model))):
        assert "but its" not in found
        assert "stays the same" not in found
        assert "in which shard a row lies, by its id, the training settings" in found


@words_only
def test_other_models_have_no_shards() -> None:
    assert "shard" not in model_report.model_text(MODEL) + html()


def test_a_percentage_stays_on_one_line() -> None:
    for filler in range(100):
        text = "\n".join(words.filled_lines([("Meaning", f"{'x ' * filler}50 % becomes 73.1 %")]))
        assert "50 %" in text
        assert "73.1 %" in text
        assert max(map(len, text.splitlines())) <= 100


def test_no_share_reads_as_certainty() -> None:
    shares = [0.5, 0.9949, 0.99959, 0.99985, 0.9999, 0.99999, 1.0]
    expected = ["50 %", "99.5 %", "99.96 %", "99.98 %", "99.99 %", "more than 99.99 %", "more than 99.99 %"]
    assert [share_text(share) for share in shares] == expected


@words_only
def test_not_private_is_stamped() -> None:
    plain = replace(MODEL, private=False, privacy={"private": False}, charge=None)
    document = html(plain, charges=[])
    text = words_of(document)
    assert 'class="stamp"' in document
    assert "NOT PRIVATE" in text
    assert "What an attacker learns at most" not in text
    assert 'class="stamp"' not in html()
    assert "NOT PRIVATE" in model_report.model_text(plain)
    assert model_report.model_record(plain)["private"] is False
    assert "NOT PRIVATE" in model_report.models_text([plain])


@words_only
def test_a_report_to_hand_on_has_no_more_than_its_reader_needs() -> None:
    """Neither names and charges of other models, nor options that no reader could make sense of."""
    other = replace(CHARGE, id=8, model="the other model", method="dp-sgd")
    options = {"losses": False, "clip": 0.5}
    text = words_of(
        html(replace(MODEL, training={**MODEL.training, "options": options}), charges=[CHARGE, other])
    )
    assert "the other model" not in text
    assert "dp-sgd" not in text
    assert "losses" not in text


@words_only
def test_what_matters_comes_first() -> None:
    heads = re.findall("<h[12]>(.*?)</h[12]>", html(replace(MODEL, name="m")))
    assert heads == [
        "Model m",
        "What an attacker learns at most",
        "Accuracy on public rows",
        "Coefficients",
        "Provenance",
    ]


@pytest.mark.parametrize(
    ("delta", "chance"),
    [
        (0.0, "never"),
        (0.3, "one in 3.33"),
        (0.05, "one in 20"),
        (1e-4, "one in 10,000"),
        (1e-6, "one in a million"),
        (1.0001e-9, "one in a billion"),
        (9.43e-10, "one in 1.06 billion"),
        (2.5e-17, "one in 40 quadrillion"),
        (1e-18, "one in a quintillion"),
        (1e-300, "less than one in a thousand quintillions"),
        (5e-324, "less than one in a thousand quintillions"),
    ],
)
def test_chances_in_words(delta: float, chance: str) -> None:
    assert chance_text(delta) == chance


class Cells(HTMLParser):
    """Classes and text of every cell."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._class: str | None = None
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("td", "th"):
            self._class = dict(attrs).get("class") or ""

    def handle_endtag(self, tag: str) -> None:
        self._class = None

    def handle_data(self, data: str) -> None:
        if self._class is not None:
            self.found.append((self._class, data))


LONG = "a_name_that_no_line_of_a_telephone_could_ever_hold_in_one_piece"
PAGE = replace(
    MODEL,
    name="m",
    owner=LONG,
    encoder={"columns": [], "norm": "normalize", "label": {"name": "y"}},
    training={
        "table_name": LONG,
        "n_units": 9,
        "features": [LONG, "p", "q", "r"],
        "versions": {"PostgreSQL": "16"},
    },
)


@words_only
def test_words_of_cells_are_not_broken() -> None:
    """Words may be broken in cells of one class, and only cells with a word that is too long have it."""
    document = html(PAGE, evaluation=replace(EVALUATION, confusion=()), versions={})
    style = document[document.index("<style>") : document.index("</style>")]
    rules = re.findall(r"([^{}]+)\{([^}]*)\}", style)
    breaking = [
        selector.strip()
        for selector, rule in rules
        if re.search(r"anywhere|break-all|break-word|hyphens|table-layout", rule)
    ]
    assert breaking == [".long"]
    cells = Cells(document).found
    assert {"Guarantee", "Protected unit", "Neighbours", "Assumed", "Not covered"} <= {
        text for _, text in cells
    }
    for of_class, text in cells:
        longest = max(map(len, text.split()), default=0)
        assert (of_class == "long") is (longest > LONGEST_WORD and of_class != "n"), text


_MEASURE = """<script>
const broken = [];
for (const cell of document.querySelectorAll("td, th")) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) for (const word of node.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
    if (range.getClientRects().length > 1 && word[0].length <= LIMIT) broken.push(word[0]);
  }
}
parent.postMessage("BROKEN " + JSON.stringify(broken) + " " +
  (document.documentElement.scrollWidth > innerWidth), "*");
</script>"""


@pytest.mark.long
@pytest.mark.parametrize("width", [1100, 500, 375])
@words_only
def test_words_of_cells_are_not_broken_in_a_browser(width: int, tmp_path: Path) -> None:
    """Chromium has drawn the page: no word is on two lines, and the page is no wider than the window."""
    page = tmp_path / "page.html"
    document = html(PAGE, evaluation=replace(EVALUATION, confusion=()), versions={})
    frame = tmp_path / "frame.html"
    page.write_text(document.replace("</body>", _MEASURE.replace("LIMIT", str(LONGEST_WORD)) + "</body>"))
    # A window is at least 500 pixels wide, a frame is not.
    frame.write_text(
        "<script>onmessage = message => document.body.append(message.data)</script>"
        f'<iframe src="page.html" style="border: 0; width: {width}px; height: 4000px"></iframe>'
    )
    found = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width + 100},4000"),
            *("--virtual-time-budget=5000", "--dump-dom"),
            str(frame),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert "BROKEN [] false" in found


def test_several_classes_and_regression() -> None:
    several = replace(
        MODEL, task="multiclass", loss="softmax", classes=("a", "b", "c"), weights=np.arange(12.0) - 5.0
    )
    text = words_of(html(several, evaluation=None))
    assert "Featureabc" in text  # three columns
    numbers = replace(MODEL, task="regression", loss="squared", classes=None)
    measured = Evaluation(
        model="m", table="t", private=True, mode="public", n_rows=9, mean_squared_error=4.0, r_squared=0.5
    )
    text = words_of(html(numbers, evaluation=measured))
    assert "Root mean squared error2" in text
    assert "R squared0.5000" in text


@words_only
def test_charges_add_up_only_if_they_are_about_the_same_neighbours() -> None:
    other = replace(CHARGE, id=8, epsilon=Decimal("0.10"), delta=Decimal("1e-12"))
    text = words_of(html(charges=[CHARGE, other]))
    assert "with this one there were 2" in text
    assert "together at most (1.10, 1e-09)-differential privacy, by adding up" in text
    text = words_of(html(charges=[CHARGE, replace(other, relation="add_remove")]))
    assert "do not simply add up" in text
    assert "may not read dpml.ledger" in words_of(html(charges=None))
    for none in ([], [CHARGE]):
        assert "there were none when this report was made" in words_of(html(charges=none))
    assert "with this one there were 1" in words_of(html(charges=[other]))


@words_only
def test_long_lists_are_cut() -> None:
    wide = replace(
        MODEL,
        weights=np.linspace(-1.0, 1.0, 500),
        n_features=500,
        training={**MODEL.training, "features": [f"f{i}" for i in range(500)]},
    )
    assert "The 40 largest of 500" in words_of(html(wide, evaluation=None)) + html(wide, evaluation=None)
    assert len(model_report.model_text(wide).splitlines()) < 60
    many = tuple((f"c{i}", f"c{j}", 1) for i in range(10) for j in range(10))
    text = evaluation_report.evaluation_text(replace(EVALUATION, confusion=many))
    assert "--format json has all" in text
    assert len(text.splitlines()) < 60


WHITENED = replace(
    MODEL,
    name="m",
    training={**MODEL.training, "features": ["p", "q", "r", "s"]},
    whitening=np.diag([0.1, 10.0, 1.0, 3.6]) + 0.01 * np.eye(4)[::-1],
)
"""The noise 0.25 in the whitened model is 0.025, 2.5, 0.25 and 0.9 in its weights 1, -3, 0.1 and 2."""


def test_text_of_a_whitened_model() -> None:
    text = model_report.model_text(WHITENED)
    assert "divided by the length of the row after the model's whitening matrix" in " ".join(text.split())
    assert "whitening" not in model_report.model_text(replace(WHITENED, whitening=None))
    heading, *lines = text.splitlines()[-5:]
    assert heading.startswith("Coefficients and the standard deviation of the noise in each; ~ marks")
    found = [line.split() for line in lines]
    assert [line[:2] for line in found] == [
        ["q", "-3.0000"],
        ["s", "+2.0000"],
        ["p", "+1.0000"],
        ["r", "+0.1000"],
    ]
    np.testing.assert_allclose([float(line[2]) for line in found], [2.5, 0.9, 0.0251, 0.25], rtol=1e-2)
    assert [line[3:] for line in found] == [["~"], [], [], ["~"]]
    without = replace(WHITENED, private=False, privacy={"private": False}, charge=None)
    assert model_report.model_text(without).splitlines()[-5:][0] == "Coefficients"


@words_only
def test_html_of_a_whitened_model() -> None:
    document = html(WHITENED)
    text = words_of(document)
    assert "The model divides each score by a length that depends on the row" in text
    assert "noise of the standard deviation in the last column" in text
    assert "FeatureCoefficientNoiseq-3.00002.5s" in text
    assert "whitening" not in words_of(html())
    assert "neither the predicted class nor how coefficients compare" in text
    numbers = words_of(html(replace(WHITENED, task="regression", classes=None), evaluation=None))
    assert "changes the predicted numbers. It does not change how coefficients compare" in numbers
    assert "predicted class" not in numbers
    damped = replace(WHITENED, privacy=dict(MODEL.privacy) | {"noise": NOISE | {"damped": True}})
    assert "noise of at most the standard deviation in the last column" in words_of(html(damped))
    several = replace(
        WHITENED, task="multiclass", loss="softmax", classes=("a", "b", "c"), weights=np.arange(12.0) - 5.0
    )
    assert "FeatureabcNoise" in words_of(html(several, evaluation=None))


def test_pictures_of_a_whitened_model() -> None:
    assert html(WHITENED, evaluation=None).count("base64,") == 1


def test_the_record_of_a_whitened_model() -> None:
    record = model_report.model_record(WHITENED)
    assert record["format"] == "pg_dpml model, version 3"
    assert WHITENED.whitening is not None
    np.testing.assert_array_equal(record["whitening"], WHITENED.whitening)
    assert model_report.model_record(MODEL)["whitening"] is None


@pytest.mark.parametrize("damped", [True, False])
def test_noise_that_steps_damp_is_a_bound(damped: bool) -> None:
    noise = NOISE | {"damped": damped}
    model = replace(MODEL, name="m", privacy=dict(MODEL.privacy) | {"noise": noise})
    html = model_html(model, charges=None, evaluation=None, versions={})
    for text in (model_report.model_text(model), html):
        assert ("standard deviation at most 0.25, less where the losses" in text) is damped
    assert ("~ marks what is within two of that bound" in model_report.model_text(model)) is damped


@words_only
def test_models_of_one_method_can_be_told_apart_by_their_settings() -> None:
    options = {"lambda": 0.0125, "batch_size": 40, "update_clip": 0.5, "dual_noise": True, "rows": 9}
    model = replace(MODEL, name="m", method="dp-scd", training={**MODEL.training, "options": options})
    said = "lambda 0.0125, batch size 40, update clip 0.5, dual noise"
    assert f"\nSettings    {said}\n" in model_report.model_text(model)
    assert f"Settings{said}Features" in Reader(html(model)).text.replace("\n", "")
    assert "Settings" not in model_report.model_text(replace(MODEL, name="m"))


def test_text_says_what_is_within_the_noise() -> None:
    model = replace(MODEL, name="m", training={**MODEL.training, "features": ["p", "q", "r", "s"]})
    lines = model_report.model_text(model).splitlines()[-4:]
    assert [line.split()[0] for line in lines] == ["q", "s", "p", "r"]
    assert [line.endswith("~") for line in lines] == [False, False, False, True]


def test_coefficients_of_one_column_stand_together() -> None:
    columns = [{"name": "ward"}, {"name": "age"}]
    features = ["ward=heart", "age", "ward=lung", "intercept"]
    model = replace(
        MODEL,
        classes=("no", "yes"),
        task="binary",
        encoder={"columns": columns, "norm": "normalize", "label": {"name": "readmitted"}},
        training={**MODEL.training, "features": features},
        weights=np.array([3.0, 2.0, -0.5, 1.0]),
        n_features=4,
    )
    document = html(model, evaluation=None)
    heading = document.index("<tr class=group><td colspan=")
    places = [document.index(f"<td class=level>{level}</td>", heading) for level in ("heart", "lung")]
    assert heading < places[0] < places[1] < document.index("<td>age</td>")
    assert "A positive coefficient speaks for readmitted = yes, a negative one for no." in words_of(document)


# Coefficients that are 0.

CHOSEN = replace(
    MODEL,
    name="m",
    method="frank-wolfe",
    classes=("no", "yes"),
    weights=np.array([0.0, -3.0, 0.0, 0.5]),
    encoder={"columns": [], "norm": "clip_values", "label": {"name": "y"}},
    privacy={**MODEL.privacy, "noise": {"kind": "gumbel", "rho": 0.5, "score_stddev": None, "damped": False}},
    training={**MODEL.training, "features": ["a", "b", "c", "intercept"]},
)


@words_only
def test_a_report_lists_coefficients_that_are_not_0() -> None:
    """And says how many are 0, and what is random of those that are not."""
    text = model_report.model_text(CHOSEN)
    lines = text[text.index("Coefficients") :].splitlines()
    assert lines[0].startswith("Coefficients (those of 2 of 4 features are 0); chance chose which are not 0")
    assert [line.split() for line in lines[1:]] == [["b", "-3.0000"], ["intercept", "+0.5000"]]
    words = words_of(html(CHOSEN, evaluation=None))
    assert "The coefficients of 2 features are 0." in words
    assert "chance chose which are not 0, the likelier the more each helps, so that some may" in words
    assert "each clipped to [-1, 1]" in words
    assert model_report.model_record(CHOSEN)["weights"] == [[0.0, -3.0, 0.0, 0.5]]


@words_only
def test_a_report_of_the_zero_model_says_so() -> None:
    zero = replace(CHOSEN, weights=np.zeros(4))
    assert model_report.model_text(zero).endswith("Coefficients (those of 4 of 4 features are 0)")
    assert "All coefficients are 0." in words_of(html(zero, evaluation=None))


# What a run chose and paid.

ADAPTIVE = replace(
    MODEL,
    method="dp-agd",
    privacy={**MODEL.privacy, "noise": {**NOISE, "rho": 0.5}},
    training={
        **MODEL.training,
        "passes": 120,
        "spending": [
            {"step": step, "length": 0.25, "gradient_rho": 0.01, "choice_rho": 0.005, "rho_left": 0.25}
            for step in range(1, 61)
        ],
    },
)


@words_only
def test_a_report_lists_what_was_chosen_and_paid() -> None:
    """As shares of rho; the page has all choices, the text the first and the last ones."""
    assert model_report.spending_rows(ADAPTIVE)[1] == ("2", "0.25", "2.00%", "1.00%", "50.00%")
    text = model_report.model_text(ADAPTIVE)
    assert "of rho = 0.5, choice by choice" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["STEP", "LENGTH", "GRADIENT", "CHOICE", "LEFT"] in lines
    assert [line[0] for line in lines if line[1:2] == ["0.25"]] == [
        f"{step}" for step in (*range(1, 16), *range(46, 61))
    ]
    page = Reader(html(ADAPTIVE))
    assert page.text.count("2.00%") == 60
    assert "the whole guarantee was charged" in " ".join(page.text.split())
    assert "Spending" not in html(MODEL)
    assert "rho" not in model_report.model_text(MODEL)
