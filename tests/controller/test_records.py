# SPDX-License-Identifier: PostgreSQL
"""What is stored of a model's privacy and training is what is read again."""

from __future__ import annotations

import json

import pytest

from pg_dpml import Relation
from pg_dpml.ledger.records import PrivacyRecord, TrainingRecord
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.reports import words

GUARANTEE = Guarantee(0.5, 1e-6, Relation.ADD_REMOVE, "patient", 3)
BY_SHARDS = Guarantee(0.5, 1e-6, Relation.REPLACE_ONE, placed_by="id")


@pytest.mark.parametrize(
    "record",
    [
        PrivacyRecord(),
        PrivacyRecord("patient", 3),
        PrivacyRecord("patient", 3, GUARANTEE, {"scale": 0.25}),
        PrivacyRecord(guarantee=BY_SHARDS, noise={}),
    ],
)
def test_privacy_is_read_as_it_was_stored(record: PrivacyRecord) -> None:
    assert PrivacyRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_what_a_guarantee_takes_for_public_is_said() -> None:
    placed = "the number of rows, in which shard a row lies, by its id, the training settings"
    assert placed in words.neighbours_text(BY_SHARDS)
    assert "shard" not in words.neighbours_text(GUARANTEE)


def test_a_record_says_whether_the_model_is_private() -> None:
    assert PrivacyRecord().to_json()["private"] is False
    assert PrivacyRecord("patient", 3, GUARANTEE, {}).to_json()["private"] is True


@pytest.mark.parametrize(
    "record",
    [
        TrainingRecord(),
        TrainingRecord(
            "public.people",
            "age > 17",
            1000,
            None,
            ("age", "intercept"),
            {"PostgreSQL": "16.1"},
            {"options": {"loss": "logistic"}, "steps": 7},
            {"chosen": {"lambda": 0.1}},
            dates={"born": "date"},
        ),
    ],
)
def test_training_is_read_as_it_was_stored(record: TrainingRecord) -> None:
    stored = json.loads(json.dumps(record.to_json()))
    assert TrainingRecord.from_json(stored) == record
    assert "method" not in stored  # its keys stand beside the others


def test_what_a_record_lacks_has_a_default() -> None:
    assert PrivacyRecord.from_json({}) == PrivacyRecord()
    assert TrainingRecord.from_json({}) == TrainingRecord()
