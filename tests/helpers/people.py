# SPDX-License-Identifier: PostgreSQL
"""A small table with a column of every kind, its specs, and what the oracle makes of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from helpers import oracles
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec

FloatArray = npt.NDArray[np.float64]

MOODS = ("low", "middle", "high")
TOWNS = ("Aix", "Bonn", "Cork")
FEATURES = (
    Column("age", lower=0, upper=100),
    Column("gain", lower=0, upper=1000, log1p=True, scale="zero_based"),
    Column("married"),
    Column("mood"),  # an enum: its labels come from the catalog
    Column("town", levels=TOWNS),
    Column("height", scale="standard", mean=170, sd=10),
    Column("pixels", lower=0, upper=255, length=3),
)
LABELS = {
    "binary": Label("rich", positive="yes", negative="no"),
    "multiclass": Label("grade", classes=("1", "2", "3")),
    "regression": Label("price", lower=0, upper=10),
}
N_FEATURES = 1 + 1 + 1 + 3 + 3 + 1 + 3 + 1


def spec(task: str = "binary", table: str = "people", **changes: Any) -> DataSpec:
    """The data spec of one of the three tasks."""
    given: dict[str, Any] = {"table": table, "label": LABELS[task], "columns": FEATURES}
    return DataSpec(**(given | changes))


@dataclass(frozen=True)
class Person:
    """One row, in the order of the table's columns."""

    age: float | None
    gain: int | None
    married: bool | None
    mood: str | None
    town: str | None
    height: float | None
    pixels: Sequence[float | None] | None
    rich: str | None
    grade: int | None
    price: float | None


NOBODY = Person(None, None, None, None, None, None, None, None, None, None)
BAD_PEOPLE = (
    NOBODY,
    Person(math.nan, 5, True, "low", "Aix", math.inf, [1, 2], "maybe", 7, math.nan),
    Person(-math.inf, -(10**9), None, None, "Rome", -math.inf, [math.nan, None, math.inf], "yes", 1, 1e300),
    Person(1e308, 2**31 - 1, False, "high", "", math.nan, [], "no", -3, -math.inf),
    Person(50.0, 0, True, "low", "aix", 170.0, [0.0, 255.0, 300.0, 1.0], None, None, None),
)


def make_people(n: int, seed: int = 1) -> list[Person]:
    """People whose labels follow from their age and town."""
    rng = np.random.default_rng(seed)
    people = []
    for _ in range(n):
        age = float(rng.uniform(0, 100))
        town = int(rng.integers(3))
        value = age / 100 + (town - 1) / 2 + rng.normal(scale=0.05)
        people.append(
            Person(
                age=age,
                gain=int(rng.integers(1001)),
                married=bool(rng.integers(2)),
                mood=str(rng.choice(MOODS)),
                town=TOWNS[town],
                height=float(rng.normal(170, 10)),
                pixels=[float(v) for v in rng.integers(256, size=3)],
                rich="yes" if value > 0.5 else "no",
                grade=1 + int(value > 0.25) + int(value > 0.75),
                price=5.0 * value + 2.5,
            )
        )
    return people


def create_people(connection: psycopg.Connection, people: Sequence[Person], table: str = "people") -> None:
    """A table (id, age, ...) of people."""
    connection.execute(
        "DO $$ BEGIN CREATE TYPE mood AS ENUM ('low', 'middle', 'high'); "
        "EXCEPTION WHEN duplicate_object THEN END $$"
    )
    connection.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, age float8, gain int, married boolean, mood mood, "
        "town text, height numeric, pixels float4[], rich text, grade smallint, price float8)".encode()
    )
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
        for i, person in enumerate(people):
            values = dict(vars(person))
            if values["pixels"] is not None:
                values["pixels"] = list(values["pixels"])
            copy.write_row((i, *values.values()))


def encode(encoder: Mapping[str, Any], people: Sequence[Person]) -> tuple[FloatArray, FloatArray]:
    """The oracle's rows and labels, before they are rounded to float32."""
    rows, labels = [], []
    for person in people:
        values = [getattr(person, column["name"]) for column in encoder["columns"]]
        row = oracles.bound_norm(oracles.encode(encoder, values), encoder["norm"])
        label = encode_label(encoder["label"], getattr(person, encoder["label"]["name"]))
        rows.append(np.zeros_like(row) if label is None else row)
        labels.append(label or 0.0)
    return np.array(rows), np.array(labels)


def encode_label(label: Mapping[str, Any], value: Any) -> float | None:
    """The label as the loss wants it; None for one that is not declared."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if label["kind"] == "number":
        lower, upper = float(label["lower"]), float(label["upper"])
        return (2.0 * min(max(float(value), lower), upper) - lower - upper) / (upper - lower)
    if label["kind"] == "classes":
        return float(label["classes"].index(str(value))) if str(value) in label["classes"] else None
    if str(value) == label["positive"]:
        return 1.0
    return -1.0 if label["negative"] in (None, str(value)) else None
