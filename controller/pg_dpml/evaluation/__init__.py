# SPDX-License-Identifier: PostgreSQL
"""Measuring models: exact figures, noisy errors, and scores of candidates."""
