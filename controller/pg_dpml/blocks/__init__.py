# SPDX-License-Identifier: PostgreSQL
"""The rows of a table as blocks of encoded vectors."""
