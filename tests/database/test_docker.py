# SPDX-License-Identifier: PostgreSQL
"""The images: built, started and used, where a container engine answers."""

from __future__ import annotations

import gc
import re
import subprocess
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from helpers.sqltools import scalar
from pg_dpml.server.demo_data import ADULT_SPEC, load_adult
from pg_dpml.server.extension import Sources

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
SUPERUSER, CURATOR = "super:us\\er", "cura:t\\or'"
"""Passwords with every character that a file of passwords or SQL would take amiss."""


def test_the_files_agree_with_the_checkout() -> None:
    """What is copied is there and part of the build; scripts are sound; no password is written down."""
    recipe = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", recipe, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
            assert f"!{name.split('/')[0]}" in kept, name
    for script in (DOCKER / "controller", DOCKER / "healthy", *(DOCKER / "initdb").iterdir()):
        subprocess.run(["sh", "-n", script], check=True)
        assert script.stat().st_mode & 0o111, script
    compose = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    assert re.findall(r"PASSWORD(?!_FILE: /run/secrets/)", compose) == []


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """A client of the engine that `docker` would use; without one the tests below are not run."""
    docker = pytest.importorskip(
        "docker", reason="not run: pip install 'pg_dpml[test]' brings testcontainers"
    )
    client, reason = None, ""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # a client that fails leaves its socket to the collector
        try:
            client = docker.from_env()
        except docker.errors.DockerException as error:
            reason = str(error).splitlines()[0]
        gc.collect()
    if client is None:
        pytest.skip(f"not run: no container engine answers ({reason})")
    yield client
    client.close()


@pytest.fixture(scope="module")
def images(engine: Any, request: pytest.FixtureRequest) -> dict[str, str]:
    """Both images by target, for the first major of --pg."""
    major = request.config.getoption("--pg").split(",")[0]
    tags = {}
    for target in ("database", "controller"):
        tags[target] = f"pg_dpml_test_{target}:{major}"
        engine.images.build(
            path=str(ROOT),
            dockerfile="docker/Dockerfile",
            target=target,
            buildargs={"PG_MAJOR": major},
            tag=tags[target],
            rm=True,
        )
    return tags


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # the accounts in the containers are others than ours
    for name, text in (("superuser", SUPERUSER), ("curator", CURATOR)):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def running(engine: Any, images: dict[str, str], secrets: Path) -> Iterator[tuple[Any, str]]:
    """A database as compose.yaml starts it, but with a port; its container and its socket's volume."""
    from testcontainers.core.container import DockerContainer

    socket = engine.volumes.create(f"pg_dpml_test_{uuid.uuid4().hex}")
    container = (
        DockerContainer(images["database"])
        .with_env("POSTGRES_DB", "dpml")
        .with_env("POSTGRES_PASSWORD_FILE", "/run/secrets/superuser")
        .with_env("DPML_CURATOR_PASSWORD_FILE", "/run/secrets/curator")
        .with_volume_mapping(str(secrets), "/run/secrets", "ro")
        .with_volume_mapping(socket.name, "/run/postgresql", "rw")
        .with_exposed_ports(5432)
        .with_kwargs(cap_drop=["ALL"], security_opt=["no-new-privileges"], shm_size="512m")
    )
    try:
        with container:
            wait_until_healthy(container)
            yield container, socket.name
    finally:
        socket.remove()


def wait_until_healthy(container: Any, seconds: float = 120) -> None:
    """By the image's own check, which not every engine runs by itself."""
    end = time.monotonic() + seconds
    while True:
        code, output = container.get_wrapped_container().exec_run(["healthy"])
        if code == 0:
            return
        assert time.monotonic() < end, (output, container.get_logs())
        time.sleep(0.5)


@pytest.mark.long
def test_the_database_has_the_extension_and_no_more(running: tuple[Any, str]) -> None:
    container, _ = running
    for command, wanted in (("id -u", b"999"), ("command -v gcc clang make || echo none", b"none")):
        code, output = container.get_wrapped_container().exec_run(["sh", "-c", command])
        assert (code, output.strip()) == (0, wanted)
    logs = b"".join(container.get_logs()).decode()
    assert "database system is ready" in logs
    for password in (SUPERUSER, CURATOR):
        assert password not in logs


@pytest.mark.long
def test_the_controller_trains(
    engine: Any, images: dict[str, str], running: tuple[Any, str], secrets: Path
) -> None:
    """From a table to a stored model, by the socket alone: no network, nothing writable but /tmp."""
    container, socket = running
    host, port = container.get_container_host_ip(), container.get_exposed_port(5432)

    def dpml(*command: str) -> str:
        output: bytes = engine.containers.run(
            images["controller"],
            list(command),
            remove=True,
            environment={
                "PGHOST": "/run/postgresql",
                "PGDATABASE": "dpml",
                "PGUSER": "curator",
                "DPML_PASSWORD_FILE": "/run/secrets/curator",
            },
            volumes={
                socket: {"bind": "/run/postgresql", "mode": "rw"},
                str(secrets): {"bind": "/run/secrets", "mode": "ro"},
                str(ADULT_SPEC): {"bind": "/specs/adult.toml", "mode": "ro"},
            },
            network_mode="none",
            read_only=True,
            tmpfs={"/tmp": ""},
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
        )
        return output.decode()

    with psycopg.connect(
        host=host, port=port, dbname="dpml", user="postgres", password=SUPERUSER, autocommit=True
    ) as connection:
        assert scalar(connection, "SELECT dpml.module_version()") == Sources.find().version()
        load_adult(connection)
        connection.execute("GRANT SELECT ON adult_train, adult_test TO dpml_curator")
        assert "WRONG" not in dpml("doctor", "--table", "adult_train")
        dpml("train", "adult.toml", "--epsilon", "1", "--name", "income")
        assert scalar(connection, "SELECT owner FROM dpml.models WHERE name = 'income'") == "curator"
        assert scalar(connection, "SELECT epsilon FROM dpml.ledger") == 1
        right = scalar(
            connection,
            "SELECT avg((dpml.predict('income', t) = dpml.label('income', t))::int) FROM adult_test t",
        )
        assert right > 0.8
