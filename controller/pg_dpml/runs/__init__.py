# SPDX-License-Identifier: PostgreSQL
"""Whole runs: training, tuning, comparing, and the service that answers requests."""
