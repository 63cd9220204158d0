# SPDX-License-Identifier: PostgreSQL
"""The shape of the package: who imports whom, what is public, what documents and code say of each other."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import typer.main

import pg_dpml
from helpers.documents import corpus
from pg_dpml import cli
from pg_dpml.cli import reference
from pg_dpml.errors import DpmlError
from pg_dpml.server.extension import Sources

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "controller" / "pg_dpml"
RULES = PACKAGE / "privacy" / "README.md"

ROOMS = [
    *("names", "errors", "kernels"),
    *(
        "spec",
        "privacy",
        "database",
        "blocks",
        "tables",
        "training",
        "methods",
        "ledger",
        "evaluation",
        "runs",
    ),
    *("reports", "server"),
    "",  # the package itself
    "cli",
]
"""A room, a folder or a file of the package, imports only rooms that stand before it."""

MOST_FILES = 12
CATALOGUE = PACKAGE / "methods"
"""The one folder that may have more: a file for each method, and no code asks for one by its place."""

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


@cache
def imports(path: Path, *, at_run_time: bool = False) -> tuple[str, ...]:
    """Absolute names of what a module imports, `from a import b` as a.b."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), list[str]()
    for node in ast.walk(tree):
        if at_run_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of a module"
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


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
        assert folder == CATALOGUE or len(list(folder.glob("*.py"))) <= MOST_FILES, folder


@pytest.mark.parametrize("module", MODULES)
def test_a_long_file_says_why(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES or LONG in text[:1500]


@pytest.mark.parametrize("package", [name for name in MODULES if MODULES[name].name == "__init__.py"])
def test_rooms_import_nothing_themselves(package: str) -> None:
    assert package in ("", "cli") or imports(MODULES[package]) == ()


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


def test_only_kernels_touch_the_compiled_module() -> None:
    assert {name for name in MODULES if "_kernels" in own_imports(name)} == {"kernels"}
    handles = re.compile(r"\b(ffi|lib)\b")
    users = {
        name
        for name, path in MODULES.items()
        if any(handles.fullmatch(i.rpartition(".")[2]) for i in imports(path) if "kernels" in i)
    }
    assert users <= {"kernels"}


def test_random_numbers_come_from_the_operating_system() -> None:
    """No seed, no generator of a library: privacy/README.md, "Randomness"."""
    for path in MODULES.values():
        names = imports(path)
        assert not any(name.partition(".")[0] == "random" for name in names), path
        assert not re.search(r"np\.random|default_rng|\bseed\s*[=(]", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("made", "places"),
    [
        (r"\b(noise|release)_grid\(", {"kernels", "privacy.resolution"}),
        (r"\bReleaseNoise\(", {"privacy.noise.output", "privacy.noise.sums"}),
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
    "projection_matrix",
    "train",
    "tune",
]


def test_public_names() -> None:
    assert pg_dpml.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(pg_dpml, name).__doc__, name


@cache
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
        *("load", "inspect", "check", "plan", "train", "tune", "compare", "evaluate", "predict", "demo"),
        *(
            "models",
            "show",
            "grant",
            "revoke",
            "report",
            "plot",
            "export",
            "drop",
            "share",
            "doctor",
            "cleanup",
        ),
        *("budget open", "budget show", "budget history", "budget close"),
        *("dataset register", "dataset withdraw", "dataset list", "serve"),
        *("request list", "request withdraw"),
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


@pytest.mark.parametrize("name", reference.pages())
def test_pages_made_from_the_code_are_up_to_date(name: str) -> None:
    """If this fails: python -m pg_dpml.cli.reference docs."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == reference.pages()[name]


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


def test_one_file_names_the_version() -> None:
    """pg_dpml.control: what setup.py, the Makefile and the embedded server's build make of it."""
    found = Sources.find()
    version = found.version()
    run = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split()[-1] == version
    assert f'-DDPML_VERSION="{version}"' in found.compile_flags()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path in (ROOT / "pyproject.toml", ROOT / "setup.py", *found.c_files(), found.server / "Makefile"):
        assert version not in path.read_text(encoding="utf-8"), path.name


def test_one_file_names_the_flags_of_the_kernels() -> None:
    """compile_flags.txt: a row and its replay agree bit for bit if all builds compile alike."""
    own = Sources.find().own_flags()
    assert "-ffp-contract=off" in own
    assert Sources.find().compile_flags()[: len(own)] == own
    code = "import build_kernels; print(*build_kernels.COMPILE_ARGS)"
    run = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=ROOT / "udas", capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == own
    for name in ("Makefile", "build_kernels.py"):
        assert "-ffp-contract" not in (ROOT / "udas" / name).read_text(encoding="utf-8"), name


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile_compiles_with_these_flags_and_this_version(tmp_path: Path) -> None:
    """Its own lines, over a PostgreSQL that has nothing but the files it looks for."""
    (tmp_path / "postgres.h").touch()
    (tmp_path / "pgxs.mk").touch()
    config = tmp_path / "pg_config"
    config.write_text(
        "#!/bin/sh\ncase $1 in\n--version) echo PostgreSQL 16.0 ;;\n"
        f"--pgxs) echo {tmp_path}/pgxs.mk ;;\n--includedir-server) echo {tmp_path} ;;\nesac\n"
    )
    config.chmod(0o755)
    asked = "$(info $(PG_CFLAGS))$(info $(PG_CPPFLAGS))"
    run = subprocess.run(
        ["make", "-C", ROOT / "udas", "-n", f"PG_CONFIG={config}", f"--eval=asked: ; {asked}", "asked"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = Sources.find()
    lines = [line for line in run.stdout.splitlines() if line.startswith("-")]
    assert lines[0].split() == found.own_flags()
    assert f"-DDPML_VERSION='\"{found.version()}\"'" in lines[1].split()


def test_every_file_names_its_licence() -> None:
    for path, _ in documents():
        if path.name != "_kernels.c":
            assert "SPDX-License-Identifier: PostgreSQL" in path.read_text(encoding="utf-8")[:200], path


def test_the_architecture_page_names_every_file() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w/]+\.(?:py|c|h))` \| (?=\S)", page, re.MULTILINE))
    package = {path.name for path in MODULES.values() if path.parent == PACKAGE}
    package |= {
        "/".join(path.relative_to(PACKAGE).parts[1:])
        for path in MODULES.values()
        if path.parent != PACKAGE and path.name != "__init__.py"
    }
    kernels = ROOT / "udas" / "kernels"
    c_files = {path.name for path in (ROOT / "udas").glob("*.c")}
    c_files |= {path.name for path in kernels.glob("*.h")}
    c_files |= {path.name for path in kernels.glob("*.c") if not path.with_suffix(".h").exists()}
    assert named == package | {name for name in c_files if not name.startswith("_kernels")}
