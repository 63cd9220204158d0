# SPDX-License-Identifier: PostgreSQL
"""The main job, on a private PostgreSQL: a private model of the Adult census data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pg_dpml.database.database import Database
from pg_dpml.database.session import sql
from pg_dpml.evaluation.evaluate import Evaluation, evaluate
from pg_dpml.reports import evaluation_report, result_report
from pg_dpml.runs.train import TrainResult, train
from pg_dpml.server.demo_data import ADULT_SPEC, load_adult
from pg_dpml.server.embedded import EmbeddedServer
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.job import Progress
from pg_dpml.training.spec import TrainSpec

__all__ = ["ADULT_SPEC", "Demo", "adult_server", "run_demo"]

PRIVATE_MODEL = "adult_demo"
PLAIN_MODEL = "adult_not_private"


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    Attributes
    ----------
    run : TrainResult
        Of the private model.
    private, plain : Evaluation
        The private and the non-private model on the public test rows.
    """

    run: TrainResult
    private: Evaluation
    plain: Evaluation

    @property
    def text(self) -> str:
        """The demo in words."""
        linear = (
            "" if self.run.plan.problem.pieces == 0 else "; a linear model, without the private one's curves"
        )
        figures = [
            f"Accuracy on {self.private.n_rows:,} held-out rows",
            f"  private model     {self.private.accuracy:7.2%}",
            f"  without privacy   {self.plain.accuracy:7.2%}   (for comparison; not to be published){linear}",
            f"  majority class    {self.private.majority:7.2%}",
        ]
        return result_report.result_text(self.run, figures)

    @property
    def record(self) -> dict[str, Any]:
        """The demo as a JSON-ready mapping."""
        return {
            "run": result_report.result_record(self.run),
            "private": evaluation_report.evaluation_record(self.private),
            "not_private": evaluation_report.evaluation_record(self.plain),
        }


@contextmanager
def adult_server(folder: Path | None) -> Iterator[EmbeddedServer]:
    """A private server with the extension and the tables adult_train and adult_test.

    Parameters
    ----------
    folder : Path or None
        Where the server keeps its files; None for a temporary folder.
    """
    with EmbeddedServer(folder) as server:
        with Database(server.dsn).session() as session:
            session.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS pg_dpml"))
            # Of an earlier demo in the same folder; what else was made there stays.
            earlier = sql.SQL("DELETE FROM dpml.models WHERE name = ANY(%(names)s)")
            session.execute(earlier, {"names": [PRIVATE_MODEL, PLAIN_MODEL]})
            missing = sql.SQL("SELECT pg_catalog.to_regclass('public.adult_train') IS NULL")
            (empty,) = session.fetch_one(missing)
        if empty:
            with psycopg.connect(server.dsn) as connection:
                load_adult(connection)
        yield server


def run_demo(
    server: EmbeddedServer,
    epsilon: float,
    progress: Callable[[], AbstractContextManager[Progress | None]],
) -> Demo:
    """Train a private and a non-private model, and measure both on the public test rows.

    Parameters
    ----------
    server : EmbeddedServer
        From `adult_server`.
    epsilon : float
        In (0, inf).
    progress : callable
        Makes a context that yields a `Progress` or None.
    """
    data = DataSpec.from_toml(ADULT_SPEC)
    with progress() as show:
        run = train(server.dsn, data, PrivacySpec(epsilon), name=PRIVATE_MODEL, progress=show)
    with progress() as show:
        train(server.dsn, data, None, TrainSpec(method="lbfgs"), name=PLAIN_MODEL, progress=show)
    private, plain = (
        evaluate(server.dsn, name, "adult_test", public=True) for name in (PRIVATE_MODEL, PLAIN_MODEL)
    )
    return Demo(run, private, plain)
