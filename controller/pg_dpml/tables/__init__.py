# SPDX-License-Identifier: PostgreSQL
"""What an owner wants to know of a table before training: a spec template, and which rows do not fit."""
