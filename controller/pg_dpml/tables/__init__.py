# SPDX-License-Identifier: PostgreSQL
"""A table before training, for its owner: a spec template, and a check of the rows that do not fit a spec."""
