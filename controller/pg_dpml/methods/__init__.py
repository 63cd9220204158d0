# SPDX-License-Identifier: PostgreSQL
"""Training methods, one file a family: guarantee, calibration, passes."""
