# SPDX-License-Identifier: PostgreSQL
"""The shape of the package: who imports whom, what is public, what documents and code say of each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import typer.main

import pg_dpml
from pg_dpml import cli
from pg_dpml.errors import DpmlError
from pg_dpml.spec.training import METHOD_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "controller" / "pg_dpml"
RULES = PACKAGE / "privacy" / "README.md"

ROOMS = [
    *("names", "errors", "kernels", "replay"),
    *("spec", "privacy", "database", "blocks", "tables", "methods", "ledger", "evaluation", "runs"),
    *("reports", "server"),
    "",  # the package itself
    "cli",
]
"""A room, a folder or a file of the package, imports only rooms that stand before it."""

MOST_FILES = 12
MOST_LINES = 400
LONG = "Long because "
"""A file above MOST_LINES says in its first lines why it is one file."""


def modules() -> dict[str, Path]:
    """Source files by the module's name below pg_dpml; the package's own is ""."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def imports(path: Path, *, at_run_time: bool = False) -> Iterator[str]:
    """Absolute names of what a module imports, `from a import b` as a.b."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if at_run_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of a module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module: str, *, at_run_time: bool = False) -> set[str]:
    """Modules of the package that a module imports, as in MODULES."""
    found = set()
    for name in imports(MODULES[module], at_run_time=at_run_time):
        if name != "pg_dpml" and not name.startswith("pg_dpml."):
            continue
        below = name.removeprefix("pg_dpml").removeprefix(".")
        while below and below not in MODULES and below != "_kernels":
            below = below.rpartition(".")[0]
        found.add(below)
    return found


def room(module: str) -> str:
    return module.partition(".")[0]


def test_every_room_has_its_place() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_those_before_it(module: str) -> None:
    found = {room(other) for other in own_imports(module)} - {"_kernels"}
    before = set(ROOMS[: ROOMS.index(room(module)) + 1])
    assert found <= before - ({""} if room(module) != "cli" else set())


def test_no_module_imports_itself_by_way_of_others() -> None:
    order = TopologicalSorter({m: own_imports(m, at_run_time=True) - {m} for m in MODULES})
    order.prepare()  # raises CycleError


def test_no_room_is_a_corridor() -> None:
    for folder in {path.parent for path in MODULES.values()}:
        assert len(list(folder.glob("*.py"))) <= MOST_FILES, folder


@pytest.mark.parametrize("module", MODULES)
def test_a_long_file_says_why(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES or LONG in text[:1500]


@pytest.mark.parametrize("package", [name for name in MODULES if MODULES[name].name == "__init__.py"])
def test_rooms_import_nothing_themselves(package: str) -> None:
    assert package in ("", "cli") or list(imports(MODULES[package])) == []


@pytest.mark.parametrize(
    ("library", "users"),
    [
        ("psycopg", {"database", "server.demo"}),
        ("cffi", {"server.extension"}),
        ("matplotlib", {"reports.plots"}),
        ("typer", {"cli"}),
        ("rich", {"cli.progress"}),
        ("sqlalchemy", {"database"}),
    ],
)
def test_a_library_has_one_door(library: str, users: set[str]) -> None:
    """An engine's type in a signature is no door: `TYPE_CHECKING` alone imports it."""
    found = {
        name
        for name, path in MODULES.items()
        if any(i.partition(".")[0] == library for i in imports(path, at_run_time=True))
    }
    assert all(name in users or room(name) in users for name in found), found


def test_a_session_hides_its_connection() -> None:
    for name, path in MODULES.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert room(name) == "database" or "driver" not in read, name


def test_only_kernels_and_replay_touch_the_compiled_module() -> None:
    assert {name for name in MODULES if "_kernels" in own_imports(name)} == {"kernels"}
    handles = re.compile(r"\b(ffi|lib)\b")
    users = {
        name
        for name, path in MODULES.items()
        if any(handles.fullmatch(i.rpartition(".")[2]) for i in imports(path) if "kernels" in i)
    }
    assert users == {"kernels", "replay"}
    assert not any("replay" in own_imports(name) for name in MODULES if name != "replay")


def test_random_numbers_come_from_the_operating_system() -> None:
    """No seed, no generator of a library: privacy/README.md, "Randomness"."""
    for path in MODULES.values():
        names = list(imports(path))
        assert not any(name.partition(".")[0] == "random" for name in names), path
        assert not re.search(r"np\.random|default_rng|\bseed\s*[=(]", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("made", "places"),
    [
        (r"\b(noise|release)_grid\(", {"kernels", "privacy.resolution"}),
        (r"\bReleaseNoise\(", {"privacy.noise.composed", "privacy.noise.output", "privacy.noise.sums"}),
        (r"\bStepNoise\(", {"privacy.noise.steps"}),
        (r"\.(gaussian|knorm)\(", {"privacy.noise.output"}),
    ],
)
def test_grids_and_noise_come_from_one_place(made: str, places: set[str]) -> None:
    """No method can choose a grid of its own, or draw noise beside it."""
    found = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if re.search(made, path.read_text())
    }
    assert found == places


PUBLIC = [
    "BudgetError",
    "Column",
    "Comparison",
    "ComparisonEntry",
    "DataSpec",
    "DpmlError",
    "Evaluation",
    "Grid",
    "GuaranteeError",
    "Label",
    "Plan",
    "PrivacySpec",
    "PublicScores",
    "Relation",
    "RunFailedError",
    "RunInterrupted",
    "SpecError",
    "TrainResult",
    "TrainSpec",
    "TuneResult",
    "UnavailableError",
    "compare",
    "evaluate",
    "plan",
    "predict",
    "train",
    "tune",
]


def test_public_names() -> None:
    assert pg_dpml.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(pg_dpml, name).__doc__, name


def listed(module: str) -> list[str]:
    """`__all__` as it is written."""
    for node in ast.parse(MODULES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


@pytest.mark.parametrize("module", MODULES)
def test_only_listed_names_are_imported(module: str) -> None:
    for name in imports(MODULES[module]):
        below = name.removeprefix("pg_dpml.")
        exporter, _, imported = below.rpartition(".")
        if name.startswith("pg_dpml.") and below not in MODULES and exporter in MODULES:
            assert imported in listed(exporter), name


@pytest.mark.parametrize("name", [name for name in MODULES if MODULES[name].name != "__init__.py"])
def test_all_names_exist_and_are_documented(name: str) -> None:
    module = __import__(f"pg_dpml.{name}", fromlist=["_"])
    assert module.__doc__
    for public in getattr(module, "__all__", []):
        value = getattr(module, public)
        if getattr(value, "__module__", None) == module.__name__ and callable(value):
            assert value.__doc__, public


def test_exit_codes() -> None:
    errors: list[type[DpmlError]] = [DpmlError, *DpmlError.__subclasses__()]
    assert {error.__name__: error.exit_code for error in errors} == {
        "DpmlError": 1,
        "SpecError": 2,
        "UnavailableError": 3,
        "BudgetError": 4,
        "GuaranteeError": 5,
        "RunFailedError": 1,
    }


GROUPS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
COMMANDS = {
    name if below == "" else f"{name} {below}": command
    for name, group in GROUPS.items()
    for below, command in getattr(group, "commands", {"": group}).items()
}
"""By name, those of a group with the group's."""


def test_the_commands_are_these() -> None:
    assert set(COMMANDS) == {
        *("inspect", "check", "plan", "train", "tune", "compare", "evaluate", "predict", "demo"),
        *("models", "show", "grant", "revoke", "report", "export", "drop", "doctor", "cleanup"),
        *("budget open", "budget show", "budget history", "budget close"),
        *("dataset register", "dataset withdraw", "dataset list", "serve"),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name}: {parameter.name}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\bdpml {name}\b", readme)


def test_the_readme_shows_only_options_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
    known |= {"--help", "--version"}
    for line in re.findall(r"^ *dpml .*$", readme, re.MULTILINE):
        command = line.partition("#")[0].split()
        options = {word for word in command if word.startswith("--")}
        name = command[1] if command[1] in COMMANDS else " ".join(command[1:3])
        assert options <= {o for p in COMMANDS[name].params for o in p.opts} | {"--help"}, line
    for option in re.findall(r"`(--[a-z-]+)", readme):
        assert option in known, option


def test_the_readme_lists_the_options_of_every_method() -> None:
    """All but --loss and --huber-h, which a sentence above the table is about."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = dict(re.findall(r"^\| `([a-z0-9-]+)` \|.*\|.*\|([^|]*)\|$", readme, re.MULTILINE))
    listed: dict[str, set[str]] = {}
    for method, used in METHOD_OPTIONS.items():
        options = {name.rstrip("_").replace("_", "-") for name in used}
        if method != "auto":
            own, _, left_out = cells[method].partition(" but ")
            listed[method] = set(re.findall(r"`--([a-z-]+)`", own))
            for other in re.findall(r"those of `([a-z0-9-]+)`", own):
                listed[method] |= listed[other]
            listed[method] -= set(re.findall(r"`--([a-z-]+)`", left_out))
            assert listed[method] == options - {"loss", "huber-h"}, method
        assert "loss" in options
        assert ("huber-h" in options) == (method != "sufficient-statistics")


def documents() -> Iterator[tuple[Path, str]]:
    """Text of every source file, comment leaders and line ends removed."""
    for folder, patterns in (
        ("controller", ("*.py",)),
        ("udas", ("*.c", "*.h", "*.py")),
        ("sql", ("*.sql",)),
        ("tests", ("*.py",)),
    ):
        for pattern in patterns:
            for path in (ROOT / folder).rglob(pattern):
                text = re.sub(r"\n[ \t]*(?:\*|--|#)?[ \t]*", " ", path.read_text(encoding="utf-8"))
                yield path, text


def test_cited_rules_exist() -> None:
    titles = set(re.findall(r"^## (.+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE))
    cited = 0
    for path, text in documents():
        for titles_cited in re.findall(r'privacy/README\.md,((?: (?:and )?"[^"]+",?)+)', text):
            for title in re.findall(r'"([^"]+)"', titles_cited):
                assert title in titles, f"{path} cites {title}"
                cited += 1
    assert cited > 40


def test_versions_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    package = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert package is not None
    control = (ROOT / "udas" / "pg_dpml.control").read_text(encoding="utf-8")
    assert f"default_version = '{package[1]}'" in control


def test_every_file_names_its_licence() -> None:
    for path, _ in documents():
        if path.name != "_kernels.c":
            assert "SPDX-License-Identifier: PostgreSQL" in path.read_text(encoding="utf-8")[:200], path
