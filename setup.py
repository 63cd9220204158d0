# SPDX-License-Identifier: PostgreSQL
# cffi_modules is the one setup() keyword that pyproject.toml cannot carry.
from setuptools import setup

setup(cffi_modules=["udas/build_kernels.py:ffibuilder"])
