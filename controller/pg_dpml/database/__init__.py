# SPDX-License-Identifier: PostgreSQL
"""The server: connections, transactions, the catalog, and errors in words."""
