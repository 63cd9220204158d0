# SPDX-License-Identifier: PostgreSQL
"""Noise and its calibration. README.md beside this file states and proves every rule."""
