# SPDX-License-Identifier: PostgreSQL
"""The shape of the package: who imports whom, what is public, what documents and code say of each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import pg_dpml
from documents import corpus, text_of
from pg_dpml import cli
from pg_dpml.errors import DpmlError
from pg_dpml.spec import METHOD_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "controller" / "pg_dpml"
RULES = PACKAGE / "privacy" / "README.md"

# A module imports only what stands above it; what shares a line may import each other.
ORDER = [
    ("names",),
    ("errors",),
    ("privacy.relation",),
    ("moments",),
    ("spec",),
    ("_kernels",),
    ("kernels",),
    ("replay",),
    ("privacy.resolution", "privacy.selection"),
    ("privacy.mechanisms",),
    ("privacy.composed",),
    ("privacy.accounting",),
    ("privacy.step_noise",),
    ("privacy.budget",),
    ("tables.constraints",),
    ("connections",),
    ("database",),
    ("tables.levels",),
    ("tables.inspection",),
    ("registry",),
    ("maintenance",),
    ("tables.template",),
    ("rows",),
    ("tables.measuring",),
    ("portions",),
    ("methods.plan",),
    ("meaning",),
    ("budgets",),
    ("methods.job",),
    ("methods.sgd",),
    ("methods.minimise",),
    ("methods.certified",),
    ("methods.baselines", "methods.bolt_on", "methods.full_batch", "methods.sufficient_statistics"),
    ("methods.noisy_sgd",),
    ("methods.auto",),
    ("charged",),
    ("train",),
    ("requests",),
    ("scoring",),
    ("figures",),
    ("tuning",),
    ("compare",),
    ("noisy_error",),
    ("evaluate",),
    ("tables.checks",),
    ("tables.advice",),
    ("report",),
    ("export",),
    ("plots",),
    ("report_html",),
    ("extension",),
    ("embedded_host",),
    ("embedded",),
    ("demo_data",),
    ("demo",),
    (),  # the package itself
    ("cli.progress",),
    ("cli.framework",),
    ("cli.budget", "cli.models", "cli.requests", "cli.tables", "cli.training"),
    ("cli",),
]
FACADE = ("cli.budget", "cli.framework", "cli.models", "cli.requests", "cli.tables", "cli.training")
"""Modules that use the package as its users do."""


def modules() -> dict[str, Path]:
    """Source files by the module's name below pg_dpml; the package's own is ""."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """Absolute names of what a module imports, `from a import b` as a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of a module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module: str) -> set[str]:
    """Modules of the package that a module imports, as in MODULES."""
    found = set()
    for name in imports(MODULES[module]):
        if name != "pg_dpml" and not name.startswith("pg_dpml."):
            continue
        below = name.removeprefix("pg_dpml").removeprefix(".")
        while below and below not in MODULES and below != "_kernels":
            below = below.rpartition(".")[0]
        found.add(below)
    return found


def test_every_module_has_its_place() -> None:
    listed = [name for line in ORDER for name in line if name != "_kernels"]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(MODULES) - {"", "privacy", "methods", "tables"}


@pytest.mark.parametrize("module", [name for line in ORDER for name in line if name != "_kernels"])
def test_imports_go_upwards_only(module: str) -> None:
    place = next(i for i, line in enumerate(ORDER) if module in line)
    allowed = {name for line in ORDER[:place] for name in line} | set(ORDER[place])
    found = own_imports(module) - {module, "privacy", "methods"}
    if module in FACADE:
        found.discard("")
    assert found <= allowed


@pytest.mark.parametrize("package", ["privacy", "methods"])
def test_subpackages_import_nothing_themselves(package: str) -> None:
    assert list(imports(MODULES[package])) == []


@pytest.mark.parametrize(
    ("library", "users"),
    [
        ("psycopg", {"connections", "database", "demo_data"}),
        ("cffi", {"extension"}),
        ("matplotlib", {"plots"}),
        (
            "typer",
            {"cli.budget", "cli.framework", "cli.models", "cli.requests", "cli.tables", "cli.training"},
        ),
        ("rich", {"cli.progress"}),
        (
            "sqlalchemy",
            {
                "connections",
                "database",
                "tables.inspection",
                "train",
                "tuning",
                "compare",
                "evaluate",
                "tables.checks",
            },
        ),
    ],
)
def test_a_library_has_one_door(library: str, users: set[str]) -> None:
    found = {
        name for name, path in MODULES.items() if any(i.partition(".")[0] == library for i in imports(path))
    }
    assert found <= users


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
        (r"\bReleaseNoise\(", {"privacy.composed", "privacy.mechanisms"}),
        (r"\bStepNoise\(", {"privacy.step_noise"}),
        (r"\.(gaussian|knorm)\(", {"privacy.mechanisms"}),
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


@pytest.mark.parametrize("name", [name for name in MODULES if name and name not in ("privacy", "methods")])
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
    assert re.search(rf"\bdpml {name}\b", corpus())


def test_the_documents_show_only_options_that_exist() -> None:
    text = corpus()
    known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
    known |= {"--help", "--version"}
    for line in re.findall(r"^ *dpml .*$", text, re.MULTILINE):
        command = line.partition("#")[0].split()
        options = {word for word in command if word.startswith("--")}
        name = command[1] if command[1] in COMMANDS else " ".join(command[1:3])
        assert options <= {o for p in COMMANDS[name].params for o in p.opts} | {"--help"}, line
    for option in re.findall(r"`(--[a-z-]+)", text):
        assert option in known, option


def test_the_documents_list_the_options_of_every_method() -> None:
    """All but --loss and --huber-h, which a sentence above the table is about."""
    page = text_of("docs/training.md")
    cells = dict(re.findall(r"^\| `([a-z0-9-]+)` \|.*\|.*\|([^|]*)\|$", page, re.MULTILINE))
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
