# SPDX-License-Identifier: PostgreSQL
"""The encoder: the features it makes, the norm it promises, and that no value is too strange for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers import oracles, replay
from helpers.replay import Column, Encoder, Image, encode_row
from pg_dpml.blocks.projection import projection_matrix
from pg_dpml.errors import SpecError
from pg_dpml.kernels import lib, pointer

LARGEST_NORM = 1.0 - 2.0**-20
any_float = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, -0.0])


def exact_norm(row: Any) -> float:
    return math.sqrt(math.fsum(float(v) ** 2 for v in row))


@st.composite
def numeric_fields(draw: st.DrawFn) -> dict[str, Any]:
    log1p = draw(st.booleans())
    ends = st.floats(0 if log1p else -1e308, 1e308)
    scale = draw(st.sampled_from(["center", "zero_based", "standard"]))
    lower, upper = sorted((draw(ends), draw(ends)))
    if not lower < upper:
        lower, upper = 0.0, 1.0
    fields: dict[str, Any] = {"scale": scale, "log1p": log1p, "lower": lower, "upper": upper}
    if scale == "standard":
        fields |= {"mean": draw(st.floats(-1e300, 1e300)), "sd": draw(st.floats(1e-300, 1e300))}
        if not log1p and draw(st.booleans()):
            fields["lower"] = -math.inf
        if draw(st.booleans()):
            fields["upper"] = math.inf
    return fields


@st.composite
def columns_with_values(draw: st.DrawFn) -> tuple[Column, Any]:
    kind = draw(st.sampled_from(["numeric", "category", "array"]))
    if kind == "category":
        width = draw(st.integers(1, 6))
        return Column(kind, width=width, centered=draw(st.booleans())), draw(st.none() | st.integers(-2, 7))
    fields = draw(numeric_fields())
    number = st.none() | any_float
    if kind == "numeric":
        return Column(kind, **fields), draw(number)
    width = draw(st.integers(1, 4))
    return Column(kind, width=width, **fields), draw(st.none() | st.lists(number, max_size=5))


rows = st.lists(columns_with_values(), min_size=1, max_size=5)


@given(rows, st.booleans(), st.booleans())
def test_total_and_bounded(row: list[tuple[Column, Any]], intercept: bool, normalize: bool) -> None:
    encoder = Encoder(tuple(column for column, _ in row), intercept, normalize)
    out = replay.encode_row(encoder, [value for _, value in row])
    assert np.all(np.isfinite(out))
    norm = exact_norm(out)
    assert norm <= LARGEST_NORM
    if normalize and norm > 0:
        assert norm >= 1 - 2.0**-18
    if intercept:
        assert out[-1] >= 0


@given(rows, st.booleans())
def test_clipped_values_lie_in_their_bounds(row: list[tuple[Column, Any]], intercept: bool) -> None:
    encoder = Encoder(tuple(column for column, _ in row), intercept, clip_values=True)
    out = replay.encode_row(encoder, [value for _, value in row])
    assert np.all(np.abs(out) <= 1.0)  # of float32 as it is stored
    if intercept:
        assert out[-1] == 1.0


@pytest.mark.parametrize("value", [-1e300, -7.5, -1.0, -0.25, 0.0, 0.5, 1.0, 3.0, 1e300])
def test_values_are_clipped_on_both_sides(value: float) -> None:
    column = Column("numeric", "standard", lower=-math.inf, upper=math.inf)
    out = replay.encode_row(Encoder((column, column), clip_values=True), [value, 0.5])
    assert out.tolist() == [min(max(value, -1.0), 1.0), 0.5, 1.0]


def as_json(column: Column) -> dict[str, Any]:
    if column.kind == "category":
        return {
            "kind": "category",
            "levels": [str(i) for i in range(column.width)],
            "centered": column.centered,
        }
    finite = {
        k: v if math.isfinite(v) else None for k, v in {"lower": column.lower, "upper": column.upper}.items()
    }
    return {
        "kind": column.kind,
        "length": column.width,
        "scale": column.scale,
        "log1p": column.log1p,
        "mean": column.mean,
        "sd": column.sd,
        **finite,
    }


def well_separated(column: Column) -> bool:
    """Bounds so far apart that the rounding of their difference does not matter."""
    if column.kind == "category" or column.scale == "standard":
        return True
    ends = [column.lower, column.upper]
    if column.log1p:
        ends = [math.log1p(end) for end in ends]
    return ends[1] / 2 - ends[0] / 2 > 1e-6 * max(map(abs, ends)) > 1e-300


@given(rows, st.booleans(), st.booleans())
def test_agrees_with_oracle(row: list[tuple[Column, Any]], intercept: bool, normalize: bool) -> None:
    assume(all(well_separated(column) for column, _ in row))
    encoder = Encoder(tuple(column for column, _ in row), intercept, normalize)
    spec = {"columns": [as_json(column) for column, _ in row], "intercept": intercept}
    values = [
        str(value) if column.kind == "category" and value is not None else value for column, value in row
    ]
    expected = oracles.encode(spec, values)
    expected = np.where(np.isfinite(expected), expected, 0.0)
    expected = oracles.bound_norm(expected, "normalize" if normalize else "clip")
    out = replay.encode_row(encoder, [value for _, value in row])
    # One rounding to float32, of which 1e-6 is a generous bound.
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-9)


def encode_one(column: Column, value: Any) -> list[float]:
    """Features of one column that is short enough to stay as it is, beside no intercept."""
    return [float(v) for v in replay.encode_row(Encoder((column,), intercept=False), [value])]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(15, 0.0), (12.5, -0.5), (18, 0.6), (None, 0.0), (math.nan, 0.0)],
)
def test_center(value: float | None, expected: float) -> None:
    assert encode_one(Column("numeric", lower=10, upper=20), value) == pytest.approx([expected], rel=1e-7)


@pytest.mark.parametrize(
    ("value", "sign"), [(20, 1), (25, 1), (math.inf, 1), (10, -1), (-1e300, -1), (-math.inf, -1)]
)
def test_bounds_and_beyond(value: float, sign: float) -> None:
    """The bounds themselves are features of size 1, which the norm bound then shortens."""
    assert encode_one(Column("numeric", lower=10, upper=20), value) == pytest.approx([sign], rel=3e-6)
    zero_based = Column("numeric", "zero_based", lower=10, upper=20)
    assert encode_one(zero_based, value) == pytest.approx([max(sign, 0)], rel=3e-6)


def test_standard() -> None:
    column = Column("numeric", "standard", mean=100.0, sd=1000.0)
    assert encode_one(column, 350) == pytest.approx([0.25])
    assert encode_one(column, math.inf) == [0.0]
    bounded = Column("numeric", "standard", mean=100.0, sd=1000.0, upper=600.0)
    assert encode_one(bounded, math.inf) == encode_one(bounded, 1e9) == pytest.approx([0.5])
    assert encode_one(bounded, -math.inf) == [0.0]


def test_log1p() -> None:
    column = Column("numeric", "zero_based", log1p=True, lower=0, upper=math.e**2 - 1)
    assert encode_one(column, math.sqrt(math.e) - 1) == pytest.approx([0.25], rel=1e-6)
    assert encode_one(column, -5) == [0.0]


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1, [0, 1, 0, 0]), (None, [0] * 4), (4, [0] * 4), (-2, [0] * 4), (3, [0, 0, 0, 1])],
)
def test_category(level: int | None, expected: list[float]) -> None:
    assert encode_one(Column("category", width=4), level) == pytest.approx(expected, rel=3e-6)
    centered = np.array(expected) - 0.25 * any(expected)
    assert encode_one(Column("category", width=4, centered=True), level) == pytest.approx(centered, rel=1e-6)


def test_array() -> None:
    column = Column("array", "zero_based", width=3, lower=0, upper=100)
    assert encode_one(column, [10, None, 30]) == pytest.approx([0.1, 0.0, 0.3], rel=1e-6)
    for other in (None, [], [1, 2], [1, 2, 3, 4]):
        assert encode_one(column, other) == [0.0] * 3


def test_norm_is_bounded_after_rounding_in_wide_rows() -> None:
    draw = np.random.default_rng(5)
    encoder = Encoder((Column("array", "standard", width=5000),), normalize=True)
    for scale in (1e-300, 1e-160, 1.0, 1e160, 1e300):
        for _ in range(20):
            out = replay.encode_row(encoder, [scale * draw.normal(size=5000)])
            assert 1 - 2.0**-18 <= exact_norm(out) <= LARGEST_NORM


@given(st.lists(any_float, min_size=1, max_size=40))
def test_clip_row(row: list[float]) -> None:
    clipped = replay.clip_row(row)
    if not all(map(math.isfinite, row)):
        assert not clipped.any()
        return
    largest = max(map(abs, row))
    if largest < 1e150 and exact_norm(row) <= 1 - 1e-14:
        np.testing.assert_array_equal(clipped, row)
        return
    norm = exact_norm(clipped)
    assert norm <= 1.0
    if largest > 1e-150 and exact_norm(np.array(row) / largest) * largest > 1:
        assert norm >= 1 - 1e-12
        direction = np.array(row) / largest
        np.testing.assert_allclose(clipped, direction / np.linalg.norm(direction), rtol=1e-12, atol=1e-300)


def test_zero_row_stays_zero() -> None:
    encoder = Encoder((Column("numeric", lower=-1, upper=1),), intercept=False, normalize=True)
    assert not replay.encode_row(encoder, [0.0]).any()
    assert not replay.clip_row([0.0, 0.0]).any()


def test_image_is_blurred_and_thinned() -> None:
    rows, columns = 5, 4
    pixels = np.arange(rows * columns, dtype=np.float64)
    column = Column("array", "zero_based", width=6, lower=0.0, upper=40.0, image=Image(rows, columns, 3, 2))
    got = encode_row(Encoder((column,), intercept=False), [list(pixels)])
    grid = pixels.reshape(rows, columns) / 40.0
    expected = np.array(
        [
            grid[max(r - 1, 0) : r + 2, max(c - 1, 0) : c + 2].mean()
            for r in range(0, rows, 2)
            for c in range(0, columns, 2)
        ]
    )
    length = np.linalg.norm(expected)
    np.testing.assert_allclose(got, expected * min(1.0, (1 - 2**-19) / length), rtol=1e-6)
    assert not encode_row(Encoder((column,), intercept=False), [list(pixels[:-1])]).any()


def test_projection() -> None:
    """Raw features times the public matrix, then the intercept, then the norm."""
    matrix = projection_matrix(17, 3, 6)
    np.testing.assert_array_equal(matrix, projection_matrix(17, 3, 6))
    assert np.abs(matrix - projection_matrix(18, 3, 6)).min() > 0
    column = Column("array", "center", width=6, lower=-1.0, upper=1.0)
    raw = [0.3, -0.2, 1.0, None, 0.5, -1.0]
    got = encode_row(Encoder((column,), intercept=True, normalize=True, projection=matrix), [raw])
    values = np.array([0.0 if v is None else v for v in raw])
    expected = np.append(matrix.astype(np.float64) @ values, 1.0)
    np.testing.assert_allclose(got, expected / np.linalg.norm(expected), rtol=1e-5)
    assert exact_norm(got) <= 1 - 2**-20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 2, 3), "seed must be a whole number"),
        ((2**53 + 1, 2, 3), "seed must be a whole number"),
        ((0.5, 2, 3), "seed must be a whole number"),
        ((0, 0, 3), "n_projected must be a whole number"),
        ((0, 2**20, 3), "n_projected must be a whole number"),
        ((0, 2, -3), "n_raw must be a whole number"),
        ((0, 2, 2**20), "n_raw must be a whole number"),
        ((0, 2**14, 2**13), "n_projected must be at most 8192 for 8192 features, not 16384"),
    ],
)
def test_projection_of_bad_numbers(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        projection_matrix(*arguments)


def test_projection_keeps_squared_norms_on_average() -> None:
    matrix = projection_matrix(5, 400, 50).astype(np.float64)
    x = np.random.default_rng(3).normal(size=50)
    assert np.linalg.norm(matrix @ x) == pytest.approx(np.linalg.norm(x), rel=0.15)
    assert matrix.std() == pytest.approx(1 / 20, rel=0.02)


@st.composite
def sparse_columns(draw: st.DrawFn) -> tuple[Column, Any]:
    """A sparse column that keeps 0 at 0, and places that may be repeated, unsorted or outside."""
    width = draw(st.integers(1, 12))
    scale, lower, upper = draw(
        st.sampled_from([("center", -3.0, 3.0), ("zero_based", 0.0, 9.0), ("standard", -math.inf, math.inf)])
    )
    log1p = scale == "zero_based" and draw(st.booleans())
    places = draw(st.lists(st.integers(0, width), max_size=width + 2))
    if draw(st.booleans()):
        places = sorted({place for place in places if place < width})
    column = Column("sparse", scale, log1p, width=width, lower=lower, upper=upper)
    numbers = draw(st.lists(st.none() | any_float, min_size=len(places), max_size=len(places)))
    return column, draw(st.none() | st.just((places, numbers)))


@given(
    st.lists(columns_with_values() | sparse_columns(), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([(True, False), (False, False), (False, True)]),
)
def test_sparse_row_is_the_dense_row_bit_for_bit(
    row: list[tuple[Column, Any]], intercept: bool, norm: tuple[bool, bool]
) -> None:
    encoder = Encoder(tuple(column for column, _ in row), intercept, *norm)
    dense = replay.encode_row(encoder, [value for _, value in row])
    columns, values = replay.encode_sparse(encoder, [value for _, value in row])
    assert np.all(np.diff(columns.astype(np.int64)) > 0)
    assert np.all(values != 0)
    spread = np.zeros_like(dense)
    spread[columns] = values
    np.testing.assert_array_equal(spread, dense)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_wide_sparse_row_is_the_dense_row_bit_for_bit(scale: float) -> None:
    """Thousands of features: every lane of the norm, and the rest after the last full eight."""
    draw = np.random.default_rng(7)
    for width in (4001, 4008, 4014):
        encoder = Encoder((Column("sparse", "standard", width=width),), normalize=True)
        for n in (1, 7, 300, width):
            places = np.sort(draw.choice(width, n, replace=False))
            row = [(places, scale * draw.normal(size=n))]
            columns, values = replay.encode_sparse(encoder, row)
            spread = np.zeros(width + 1, dtype=np.float32)
            spread[columns] = values
            np.testing.assert_array_equal(spread, replay.encode_row(encoder, row))


def test_norm_of_a_sparse_vector_is_that_of_the_dense_one_bit_for_bit() -> None:
    draw = np.random.default_rng(8)
    for n in (1, 7, 8, 9, 1003):
        for size in (1e-200, 1.0, 1e200):
            x = size * draw.normal(size=n) * (draw.random(n) < 0.8)
            columns = np.flatnonzero(x).astype(np.uint32)
            given = np.ascontiguousarray(x[columns])
            sparse = lib.dpml_norm_sparse(n, given.size, pointer(columns, "uint32_t"), pointer(given))
            assert sparse == lib.dpml_norm(n, pointer(x))


@pytest.mark.parametrize("places", [[0, 0], [1, 0], [0, 3], [4], [2**32 - 1]])
def test_sparse_column_with_bad_places_is_zero(places: list[int]) -> None:
    column = Column("sparse", "standard", width=3)
    row = [(places, [1.0] * len(places))]
    columns, values = replay.encode_sparse(Encoder((column,), intercept=False), row)
    assert columns.size == values.size == 0
    assert not encode_row(Encoder((column,), intercept=False), row).any()


# Curves and crosses


def curve(fields: dict[str, Any], knots: tuple[float, ...]) -> Column:
    """A number with knots, given before log1p."""
    placed = tuple(math.log1p(knot) for knot in knots) if fields["log1p"] else knots
    return Column("numeric", **fields, width=1 + len(knots), knots=placed)


@st.composite
def curves_with_values(draw: st.DrawFn) -> tuple[Column, Any]:
    """A curve between any bounds, its knots anywhere inside, and a value that is often one of them."""
    fields = draw(numeric_fields())
    lower, upper = fields["lower"], fields["upper"]
    assume(math.isfinite(lower) and math.isfinite(upper))
    shares = draw(st.lists(st.floats(0, 1), max_size=6))
    inner = {(1 - share) * lower + share * upper for share in shares}
    ends = draw(st.sampled_from([(lower, upper), (lower / 2 + upper / 2, upper)]))
    knots = tuple(sorted({knot for knot in inner if ends[0] < knot < ends[1]} | set(ends)))
    column = curve(fields, knots)
    assume(len(knots) > 1 and all(np.diff(np.array(column.knots) / 2) > 0))
    value = st.none() | any_float | st.sampled_from([*knots, lower, upper, math.nextafter(lower, upper)])
    return column, draw(value)


levels_with_values = st.integers(1, 4).flatmap(
    lambda width: st.tuples(st.just(Column("category", width=width)), st.none() | st.integers(-1, width))
)


@st.composite
def crossed_rows(draw: st.DrawFn) -> tuple[list[tuple[Column, Any]], tuple[tuple[int, int], ...]]:
    """Curves, categories and crosses of them."""
    row = draw(st.lists(curves_with_values() | levels_with_values, min_size=2, max_size=4))
    pairs = st.tuples(*[st.integers(0, len(row) - 1)] * 2).filter(lambda pair: pair[0] != pair[1])
    return row, tuple(draw(st.lists(pairs, max_size=3)))


NORMS = st.sampled_from([(True, False), (False, False), (False, True)])


@given(crossed_rows(), st.booleans(), NORMS)
def test_curves_and_crosses_are_total_and_bounded(
    crossed: tuple[list[tuple[Column, Any]], tuple[tuple[int, int], ...]],
    intercept: bool,
    norm: tuple[bool, bool],
) -> None:
    row, crosses = crossed
    values = [value for _, value in row]
    encoder = Encoder(tuple(column for column, _ in row), intercept, *norm, crosses=crosses)
    out = replay.encode_row(encoder, values)
    assert np.all(np.isfinite(out))
    if encoder.clip_values:
        assert np.all(np.abs(out) <= 1.0)
    else:
        assert exact_norm(out) <= LARGEST_NORM
    columns, sparse = replay.encode_sparse(encoder, values)
    assert np.all(np.diff(columns.astype(np.int64)) > 0)
    spread = np.zeros_like(out)
    spread[columns] = sparse
    np.testing.assert_array_equal(spread, out)
    most = 3 * len(row) + 4 * len(crosses) + intercept
    assert columns.size <= most


@given(crossed_rows())
def test_basis_functions_sum_to_one(
    crossed: tuple[list[tuple[Column, Any]], tuple[tuple[int, int], ...]],
) -> None:
    """Of a curve at any number, and of a cross where both of its values are known; else they are zeros."""
    row, crosses = crossed
    encoder = Encoder(tuple(column for column, _ in row), False, clip_values=True, crosses=crosses)
    out = replay.encode_row(encoder, [value for _, value in row]).astype(np.float64)
    known, at = [], 0
    for column, value in row:
        own = out[at : at + column.width]
        at += column.width
        if column.kind == "category":
            known.append(value is not None and 0 <= value < column.width)
        else:
            known.append(value is not None and not math.isnan(value))
            assert np.count_nonzero(own[1:]) <= 2
            assert own[1:].sum() == pytest.approx(float(known[-1]), abs=1e-6)
    for pair in crosses:
        width = math.prod(encoder.columns[i].basis_size for i in pair)
        own = out[at : at + width]
        at += width
        assert np.count_nonzero(own) <= 4
        assert own.sum() == pytest.approx(float(all(known[i] for i in pair)), abs=1e-6)
        assert own.min() >= 0.0
    assert at == out.size


def test_hats() -> None:
    """Values at knots, between and beyond them, and none; the knots do not reach the bounds."""
    column = Column("numeric", "zero_based", width=4, lower=0.0, upper=10.0, knots=(2.0, 4.0, 8.0))
    encoder = Encoder((column,), intercept=False, clip_values=True)
    for value, wanted in (
        (2, [0.2, 1, 0, 0]),
        (4, [0.4, 0, 1, 0]),
        (8, [0.8, 0, 0, 1]),
        (3, [0.3, 0.5, 0.5, 0]),
        (5, [0.5, 0, 0.75, 0.25]),
        (0, [0, 1, 0, 0]),
        (9, [0.9, 0, 0, 1]),
        (-math.inf, [0, 1, 0, 0]),
        (math.inf, [1, 0, 0, 1]),
        (1e300, [1, 0, 0, 1]),
        (None, [0, 0, 0, 0]),
        (math.nan, [0, 0, 0, 0]),
    ):
        np.testing.assert_allclose(replay.encode_row(encoder, [value]), wanted, atol=1e-7)


def test_hats_of_the_largest_numbers() -> None:
    """Differences of knots beyond the largest double, and of neighbouring doubles."""
    ends = (-1.7e308, 1.7e308)
    column = Column("numeric", "zero_based", width=3, lower=ends[0], upper=ends[1], knots=ends)
    encoder = Encoder((column,), intercept=False, clip_values=True)
    np.testing.assert_allclose(replay.encode_row(encoder, [0.85e308]), [0.75, 0.25, 0.75], atol=1e-7)
    tiny = Column("numeric", "zero_based", width=3, lower=0.0, upper=1.0, knots=(0.0, 5e-324))
    encoder = Encoder((tiny,), intercept=False, clip_values=True)
    assert replay.encode_row(encoder, [5e-324]).tolist() == [0.0, 0.0, 1.0]


@given(crossed_rows(), st.booleans())
def test_curves_and_crosses_agree_with_the_oracle(
    crossed: tuple[list[tuple[Column, Any]], tuple[tuple[int, int], ...]], normalize: bool
) -> None:
    row, crosses = crossed
    assume(all(well_separated(column) for column, _ in row))
    for column, _ in row:
        gaps, ends = np.diff(column.knots), np.abs(column.knots).max() if column.knots else 1.0
        assume(not column.knots or (np.all(gaps > 1e-6 * ends) and 1e-300 < ends < 1e300))
    encoder = Encoder(tuple(column for column, _ in row), True, normalize, crosses=crosses)
    entries = [
        as_json(column)
        | {"name": str(i)}
        | ({"knots": [math.expm1(k) if column.log1p else k for k in column.knots]} if column.knots else {})
        for i, (column, _) in enumerate(row)
    ]
    spec = {"columns": entries, "crosses": [[str(a), str(b)] for a, b in crosses]}
    values = [
        str(value) if column.kind == "category" and value is not None else value for column, value in row
    ]
    expected = oracles.encode(spec, values)
    expected = np.where(np.isfinite(expected), expected, 0.0)
    expected = oracles.bound_norm(expected, "normalize" if normalize else "clip")
    out = replay.encode_row(encoder, [value for _, value in row])
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-8)


def test_places_in_a_cross() -> None:
    """The product of basis functions i and j has place i times the second's size, plus j."""
    town = Column("category", width=2)
    age = Column("numeric", "zero_based", width=4, lower=0.0, upper=2.0, knots=(0.0, 1.0, 2.0))
    encoder = Encoder((town, age), intercept=False, clip_values=True, crosses=((0, 1), (1, 0)))
    out = replay.encode_row(encoder, [1, 0.25])[6:]
    assert out.tolist() == [0, 0, 0, 0.75, 0.25, 0, 0, 0.75, 0, 0.25, 0, 0]
    for values in ([None, 0.25], [2, 0.25], [1, None], [0, math.nan]):
        assert not replay.encode_row(encoder, values)[6:].any()
