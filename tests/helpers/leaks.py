# SPDX-License-Identifier: PostgreSQL
"""What a run must keep to itself, taken at its source, and a search for it in all that others may see."""

from __future__ import annotations

import base64
import json
import logging
import math
import pickle
import re
import struct
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pytest
from psycopg import sql

from pg_dpml import cli
from pg_dpml.blocks.blocks import Blocks, GradientSums, GramSums
from pg_dpml.database.session import Session
from pg_dpml.kernels import Noise
from pg_dpml.methods.model_averaging import ShardedSgd
from pg_dpml.privacy import selection
from pg_dpml.privacy.noise import output
from pg_dpml.training import certified
from pg_dpml.training import minimise as minimiser
from pg_dpml.training.job import Job
from pg_dpml.training.minimise import Gradient
from pg_dpml.training.plan import Plan
from pg_dpml.training.scd import Scd
from pg_dpml.training.sgd import Sgd

FloatArray = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint64]

DIGITS = 8
"""Significant digits by which a number is recognised; with fewer, chance would find what is no leak."""

MOST_DIGITS = 15
FEW_BITS = 8
TELLING_BYTES = 6
"""Of the eight bytes of a float8, or of two float4, so many are not 0: files are full of words of fewer, and
the numbers of a grid have few bits. Such numbers are looked for as decimals alone."""

TESTS = (Path(__file__).parent, Path(__file__).parents[1] / "database")
# Not in a name, nor the seconds of a time; but after a line feed or a tab written with a backslash.
_NUMBER = re.compile(rb"(?:(?<![0-9A-Za-z_])(?<!\d\d:\d\d:)|(?<=\\[nrt]))(\d*\.?\d+)(?:[eE][-+]?\d{1,3})?")
_HEX = re.compile(rb"[0-9A-Fa-f]{16,}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{11,}")
_ESCAPE = re.compile(rb"\\+(?:x([0-9A-Fa-f]{2})|([0-3][0-7]{2}))")
_HASH_BITS = 22


def _is_telling(value: float) -> bool:
    """Whether a number's shortest decimal is long; few bits make one too, such as the grids of releases.

    The bits are those of a float4, whose decimal is found for any number next to it.
    """
    digits = len(repr(abs(value)).partition("e")[0].replace(".", "").strip("0"))
    bits = math.frexp(value)[0] * 2.0**FEW_BITS
    return digits >= DIGITS and abs(bits - round(bits)) > 2.0 ** (FEW_BITS - 24)


@dataclass
class Evidence:
    """What was seen, and what its parts may stand for."""

    data: bytes
    least: int = DIGITS
    """Digits of a decimal that is looked at."""
    public: Set[float] = frozenset()
    """Released numbers, without their signs, which are no secret however like one they are."""
    decimals: dict[bytes, int] = field(init=False, repr=False)
    """Decimals, and their digits."""
    hidden: bytes = field(init=False, repr=False)
    """Hexadecimal digits, base64 and escapes, each as the bytes they may stand for."""

    def __post_init__(self) -> None:
        self.decimals = {}
        for token in {match[0] for match in _NUMBER.finditer(self.data)}:
            digits = len(re.split(rb"[eE]", token)[0].replace(b".", b"").lstrip(b"0"))
            if digits >= self.least and float(token) not in self.public:
                self.decimals[token] = min(digits, MOST_DIGITS)
        parts = [
            bytes.fromhex(run[i : i + (len(run) - i) // 2 * 2].decode())
            for run in self._all(_HEX)
            for i in (0, 1)
        ]
        for run in self._all(_BASE64):
            parts += [base64.b64decode(run[i : i + (len(run) - i) // 4 * 4]) for i in range(4)]
        if _ESCAPE.search(self.data):
            parts.append(_ESCAPE.sub(lambda m: bytes([int(m[1], 16) if m[1] else int(m[2], 8)]), self.data))
        self.hidden = bytes(8).join(parts)

    def _all(self, pattern: re.Pattern[bytes]) -> set[bytes]:
        return set(pattern.findall(self.data))


class Secrets:
    """Numbers and texts, and whether bytes show one: as decimals of 8 or more digits, or as float8 or float4.

    Decimals may be rounded or cut off; bytes may come in either byte order, and as hexadecimal digits,
    in base64 or with escapes.
    """

    def __init__(self) -> None:
        self.texts: set[bytes] = set()
        self.public: set[float] = set()
        self._numbers: set[float] = set()
        self._patterns: set[int] = set()
        self._index: tuple[FloatArray, FloatArray, Bytes, npt.NDArray[np.bool_]] | None = None

    def __len__(self) -> int:
        return len(self._numbers) + len(self.texts)

    def add(self, values: npt.ArrayLike) -> None:
        """Remember numbers in their order; those of few digits or bits, such as 0.5, could be anyone's."""
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        own = flat[np.isfinite(flat)]
        own = own[[_is_telling(value) for value in own.tolist()]] if own.size else own
        with np.errstate(over="ignore", under="ignore"):
            narrow = own.astype(np.float32)
        self._numbers.update(abs(own).tolist())
        self._numbers.update(v for v in abs(narrow).astype(np.float64).tolist() if 0.0 < v < np.inf)
        # Four bytes alone are found by chance: with their neighbour, or with a length before them.
        pairs = np.stack([narrow[:-1], narrow[1:]], axis=1)
        counted = np.empty(narrow.size, [("length", ">i4"), ("value", ">f4")])
        counted["length"], counted["value"] = 4, narrow
        for order in "<>":
            for wide in (own, -own):
                self._remember(wide.astype(f"{order}f8").tobytes())
            self._remember(pairs.astype(f"{order}f4").tobytes())
        self._remember(counted.tobytes(), least=5)
        self._index = None

    def publish(self, weights: FloatArray, released: FloatArray) -> None:
        """Remember released numbers, each exactly, but those that a float4 does not tell from the weight.

        A released number has about 21 bits, those of its grid. A float4 has 24, so that one of thousands of
        secrets, as a float4, is a released number by chance: in one of thirty runs of this search.
        """
        with np.errstate(over="ignore", under="ignore"):
            noisy = released.astype(np.float32) != weights.astype(np.float32)
        self.public.update(abs(released[noisy]).tolist())

    def merge(self, other: Secrets) -> None:
        """Add all that another process found."""
        self.texts |= other.texts
        self.public |= other.public
        self._numbers |= other._numbers
        self._patterns |= other._patterns
        self._index = None

    def _remember(self, data: bytes, least: int = TELLING_BYTES) -> None:
        telling = np.count_nonzero(np.frombuffer(data, "u1").reshape(-1, 8), axis=1) >= least
        self._patterns.update(np.frombuffer(data, "<u8")[telling].tolist())

    def find(self, seen: Evidence) -> list[str]:
        """What of the secrets the evidence shows; empty for nothing."""
        found = [text.decode() for text in self.texts if text in seen.data or text in seen.hidden]
        return found + self._decimals(seen) + self.find_bytes(seen.data) + self.find_bytes(seen.hidden)

    def find_bytes(self, data: bytes) -> list[str]:
        """The numbers that stand in the data as float8, or as float4 beside each other."""
        _, _, patterns, marks = self._indexed()
        found: list[str] = []
        for offset in range(min(8, len(data) - 7)):
            words = np.frombuffer(data, "<u8", count=(len(data) - offset) // 8, offset=offset)
            words = words[marks[_hash(words)]]
            places = np.searchsorted(patterns, words).clip(0, max(patterns.size - 1, 0))
            if words.size:
                hits = words[patterns[places] == words]
                found += [f"{hit.tobytes().hex()}, {hit.view(np.float64)!r}" for hit in hits]
        return found

    def _decimals(self, seen: Evidence) -> list[str]:
        numbers, mantissas, _, _ = self._indexed()
        if not seen.decimals:
            return []
        values = np.array([float(token) for token in seen.decimals])
        lengths = np.array(list(seen.decimals.values()))
        # Rounded or cut off: within one unit of the last digit.
        shown = _near(numbers, values, 10.0 ** (1 - lengths))
        # Of so many digits, wherever the point is.
        shown |= _near(mantissas, _mantissa(values), 10.0 ** (1 - lengths)) & (lengths >= 12)
        return [token.decode() for token, hit in zip(seen.decimals, shown, strict=True) if hit]

    def _indexed(self) -> tuple[FloatArray, FloatArray, Bytes, npt.NDArray[np.bool_]]:
        if self._index is None:
            numbers = np.sort(np.fromiter(self._numbers, np.float64, len(self._numbers)))
            patterns = np.sort(np.fromiter(self._patterns, np.uint64, len(self._patterns)))
            marks = np.zeros(2**_HASH_BITS, dtype=np.bool_)
            marks[_hash(patterns)] = True
            self._index = numbers, np.sort(_mantissa(numbers)), patterns, marks
        return self._index


def _hash(words: Bytes) -> Bytes:
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _HASH_BITS)


def _mantissa(values: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = values / 10.0 ** np.floor(np.log10(values))
    return np.where(np.isfinite(scaled), scaled, 0.0)


def _near(secrets: FloatArray, values: FloatArray, tolerance: FloatArray) -> npt.NDArray[np.bool_]:
    """Which values are within a relative tolerance of a secret; secrets are sorted."""
    if secrets.size == 0:
        return np.zeros(values.shape, dtype=np.bool_)
    above = np.searchsorted(secrets, values).clip(1, max(secrets.size - 1, 1))
    nearest = np.minimum(
        abs(secrets[np.minimum(above, secrets.size - 1)] - values), abs(secrets[above - 1] - values)
    )
    return np.asarray((nearest <= tolerance * abs(values)) & np.isfinite(values))


# At the source


def record(monkeypatch: pytest.MonkeyPatch, secrets: Secrets) -> None:
    """Remember whatever is un-noised where a private run has it, and the noise itself.

    What the steps of noise in every step leave (dp-sgd, bst14, scs13) and what follows a release carries
    noise, and is no secret.
    """
    release, draw, choose, drop = output.release, output.draw, selection.choose, Blocks.drop
    gradient, hessian, gram = Blocks.gradient, Blocks.hessian, Blocks.gram
    minimise, init, require_all = minimiser.minimise, Job.__init__, Job.require_all
    plans: dict[int, Plan] = {}

    def recorded_release(weights: FloatArray, noise: output.ReleaseNoise, source: Noise) -> FloatArray:
        released = release(weights, noise, source)
        secrets.add(weights)
        secrets.add(released - weights)
        secrets.publish(weights, released)
        return released

    def recorded_draw(noise: output.ReleaseNoise, source: Noise) -> FloatArray:
        drawn = draw(noise, source)
        secrets.add(drawn * noise.grid)  # such as the linear term of an objective
        return drawn

    def recorded_choose(errors: list[float], *more: Any) -> int:
        secrets.add(errors)
        return choose(errors, *more)

    def recorded_gradient(self: Blocks, *arguments: Any) -> GradientSums:
        sums = gradient(self, *arguments)
        for part in (sums.gradient, sums.losses):
            if part is not None:
                secrets.add(part)
        return sums

    def recorded_hessian(self: Blocks, *arguments: Any) -> FloatArray:
        found = hessian(self, *arguments)
        secrets.add(found)
        return found

    def recorded_gram(self: Blocks) -> GramSums:
        sums = gram(self)
        secrets.add(sums.xx)
        secrets.add(sums.xy)
        return sums

    def recorded_minimise(function: Gradient, *arguments: Any, **more: Any) -> tuple[FloatArray, int]:
        def recorded(weights: FloatArray) -> FloatArray:
            secrets.add(weights)
            return function(weights)

        return minimise(recorded, *arguments, **more)

    def recorded_init(self: Job, blocks: Blocks, plan: Plan, *arguments: Any) -> None:
        plans[id(blocks)] = plan
        # such as the grid of the noise, and what a change that was clipped is
        for told in (plan.work.record(plan.problem.n_units), plan.noise and plan.noise.record()):
            secrets.public.update(_numbers_of(told))
        init(self, blocks, plan, *arguments)

    def recorded_require_all(self: Job, *arguments: Any) -> None:
        require_all(self, *arguments)
        if isinstance(self.plan.work, Scd):
            _look_at_duals(self.blocks, self.plan.work, secrets)

    def recorded_drop(self: Blocks) -> None:
        _look(self, plans.pop(id(self), None), secrets)
        drop(self)

    monkeypatch.setattr(output, "release", recorded_release)
    monkeypatch.setattr(output, "draw", recorded_draw)
    monkeypatch.setattr(selection, "choose", recorded_choose)
    monkeypatch.setattr(certified, "minimise", recorded_minimise)
    for name, function in (
        ("gradient", recorded_gradient),
        ("hessian", recorded_hessian),
        ("gram", recorded_gram),
        ("drop", recorded_drop),
    ):
        monkeypatch.setattr(Blocks, name, function)
    monkeypatch.setattr(Job, "__init__", recorded_init)
    monkeypatch.setattr(Job, "require_all", recorded_require_all)


def _numbers_of(told: Any) -> Iterator[float]:
    """The numbers of a JSON-ready value, without their signs."""
    if isinstance(told, Mapping):
        told = list(told.values())
    if isinstance(told, list | tuple):
        for part in told:
            yield from _numbers_of(part)
    elif isinstance(told, float):
        yield abs(told)


def _look(blocks: Blocks, plan: Plan | None, secrets: Secrets) -> None:
    """Rows of the packed blocks, and the states of all passes, while they exist."""
    rows = sql.SQL("SELECT u.x FROM {} AS b, dpml.unpack(b.block) AS u LIMIT 20").format(blocks.packed.blocks)
    for (x,) in blocks.session.fetch(rows):
        secrets.add(np.array(x, dtype=np.float32))
    work = None if plan is None else plan.work
    if not isinstance(work, Sgd | ShardedSgd) or (isinstance(work, Sgd) and work.noise is not None):
        return
    for table in [table for table in blocks.tables if '."state_' in table.as_string()]:
        states = sql.SQL("SELECT (state).weights, (state).average FROM {}").format(table)
        for parts in blocks.session.fetch(states):
            for part in parts:
                if part is not None:
                    secrets.add(part)


def _look_at_duals(blocks: Blocks, scd: Scd, secrets: Secrets) -> None:
    """The duals of all rows after a pass, with or without noise, and v if it has none.

    Where every update was clipped, a dual is a multiple of the clip, which is public.
    """
    clip = scd.update_clip if np.isfinite(scd.update_clip) else 1.0  # the range of a dual of two classes
    for table in [table for table in blocks.tables if '."duals_' in table.as_string()]:
        of_blocks = sql.SQL(
            "SELECT dpml.duals(d) FROM {} AS t, pg_catalog.unnest((t.ended).duals) AS d"
        ).format(table)
        for (duals,) in blocks.session.fetch(of_blocks):
            clips = np.array(duals) / clip
            secrets.add(np.array(duals)[abs(clips - np.rint(clips)) > 1e-6])
    if scd.noise_scale == 0.0:
        for table in [table for table in blocks.tables if '."state_' in table.as_string()]:
            for (v,) in blocks.session.fetch(sql.SQL("SELECT v FROM {}").format(table)):
                secrets.add(v)


# Where it could be seen


class Sightings(dict[str, list[str]]):
    """What was found, by the place where it was."""

    def look(
        self, place: str, data: bytes, secrets: Iterable[Secrets], *, many_numbers: bool = False
    ) -> None:
        """Search data; among many numbers of 8 or 9 digits, one is like a secret by chance."""
        if not data:
            return
        secrets = list(secrets)
        public = frozenset[float]().union(*(one.public for one in secrets))
        seen = Evidence(data, DIGITS + 2 if many_numbers else DIGITS, public)
        found = [hit for one in secrets for hit in one.find(seen)]
        if found:
            self.setdefault(place, []).extend(found)


class Watcher:
    """Collects what can be seen while runs last: of sessions, temporary files, notices, logs of Python."""

    def __init__(self, dsn: str, folders: Iterable[Path]) -> None:
        self.seen: dict[str, set[bytes]] = {"activity": set(), "temporary files": set()}
        self.notices: list[str] = []
        self.logged: list[str] = []
        self._dsn = dsn
        self._folders = list(folders)
        self._stop = threading.Event()
        self.run: Session | None = None
        """The session of the last run, at REPEATABLE READ."""

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """A second session looks on, again and again, until the block ends."""
        thread = threading.Thread(target=self._sample)
        handler = _Collect(self.logged)
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        self._stop.clear()
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
            root.setLevel(level)
            root.removeHandler(handler)

    def hear(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Collect the notices of every session from now on."""
        start = Session.__init__

        def heard(session: Session, *given: Any) -> None:
            start(session, *given)
            if session.driver.isolation_level == psycopg.IsolationLevel.REPEATABLE_READ:
                self.run = session
            session.driver.add_notice_handler(
                lambda d: self.notices.append(
                    "\n".join(str(part) for part in (d.message_primary, d.message_detail, d.context))
                )
            )

        monkeypatch.setattr(Session, "__init__", heard)

    def _sample(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True, application_name="watcher") as connection:
            while not self._stop.wait(0.01):
                try:
                    for row in connection.execute("SELECT to_jsonb(a)::text FROM pg_stat_activity AS a"):
                        self.seen["activity"].add(_without_times(row[0]).encode())
                except psycopg.OperationalError:  # the server restarts after a crash
                    return
                for folder in self._folders:
                    self.seen["temporary files"].update(part for _, part in contents(folder))

    def look(self, secrets: Iterable[Secrets], found: Sightings) -> None:
        for place, parts in self.seen.items():
            found.look(place, b"\n".join(parts), secrets)
        found.look("notices", "\n".join(self.notices).encode(), secrets)
        found.look("logs of Python", "\n".join(self.logged).encode(), secrets)


class _Collect(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def _without_times(row: str) -> str:
    """A row of pg_stat_activity by which two looks at the same statement are the same."""
    return re.sub(r'"(?:query_start|state_change|backend_xmin|backend_xid)": [^,}]*', "", row)


def contents(folder: Path, since: float = 0.0) -> Iterator[tuple[Path, bytes]]:
    """What the files below a folder hold that were written since then, but those that vanish meanwhile."""
    for path in folder.rglob("*"):
        try:
            if path.is_file() and path.stat().st_mtime >= since:
                yield path, path.read_bytes()
        except OSError:
            continue


def without_padding(wal: bytes, database: int) -> bytes:
    """A file of the server without what its invalidation messages carry by accident.

    PostgreSQL writes these structures to the WAL with the padding that C puts into them, which keeps what was
    on the backend's stack: three and four bytes of each, and by chance those of a number. Who reads the WAL
    reads the rows themselves.
    """
    oid = struct.pack("=I", database)  # after four bytes and before eight
    cleared, place = bytearray(wal), wal.find(oid, 4)
    while 0 <= place <= len(wal) - 12:
        cleared[place - 4 : place + 12] = bytes(16)
        place = wal.find(oid, place + 16)
    return bytes(cleared)


def exception_texts(error: BaseException) -> Iterator[str]:
    """All that can be printed of an exception: its chain, hidden parts too, and its frames' variables."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        yield "".join(traceback.format_exception(one))
        yield repr(vars(one))
        with np.printoptions(precision=17, threshold=sys.maxsize):
            for frame, _ in traceback.walk_tb(one.__traceback__):
                if Path(frame.f_code.co_filename).parent not in TESTS:
                    yield from (f"{name} = {value!r}" for name, value in frame.f_locals.items())


def relations(connection: psycopg.Connection) -> Iterator[tuple[str, set[bytes]]]:
    """The rows of every relation that the connection's role may read, as lines."""
    names = connection.execute(
        "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE c.relkind = ANY ('{r,v,m,p,f}') "
        "AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') "
        "AND n.nspname <> 'information_schema' ORDER BY 1"
    ).fetchall()
    for (name,) in names:
        try:
            (rows,) = connection.execute(
                f"SELECT coalesce(string_agg(r::text, E'\\n'), '') FROM {name} AS r".encode()
            ).fetchall()[0]
        except psycopg.Error:  # a view whose functions need more rights
            continue
        yield name, set(rows.encode().splitlines())


def run_commands(file: str, commands: str) -> None:
    """Run commands, a JSON list of lists, and write what their runs keep to themselves to a file."""
    secrets = Secrets()
    with pytest.MonkeyPatch.context() as monkeypatch:
        record(monkeypatch, secrets)
        for arguments in json.loads(commands):
            cli.app(arguments, standalone_mode=False)
    Path(file).write_bytes(pickle.dumps(secrets))
