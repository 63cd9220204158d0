# SPDX-License-Identifier: PostgreSQL
# What pyproject.toml cannot carry: the version, cffi_modules, and server modules compiled into a wheel.
import importlib
import os
import re
import sys
import types
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Also compiles a server module for each pg_config in PG_DPML_PG_CONFIG, separated as in PATH."""

    def run(self):
        super().run()
        named = [Path(name) for name in os.environ.get("PG_DPML_PG_CONFIG", "").split(os.pathsep) if name]
        if named and not self.editable_mode:
            # The package as a whole imports what is not there while it is being built.
            package = types.ModuleType("pg_dpml")
            package.__path__ = ["controller/pg_dpml"]
            sys.modules["pg_dpml"] = package
            extension = importlib.import_module("pg_dpml.server.extension")
            sources = extension.Sources(Path("udas").resolve(), Path("sql").resolve())
            extension.prebuild(named, sources, Path(self.build_lib, "pg_dpml", "_server"))


# The control file is the only place that names the version.
control = Path(__file__).with_name("udas") / "pg_dpml.control"
(version,) = re.findall(r"^default_version *= *'(.+)'", control.read_text(encoding="utf-8"), re.MULTILINE)

setup(version=version, cffi_modules=["udas/build_kernels.py:ffibuilder"], cmdclass={"build_py": BuildPy})
