# SPDX-License-Identifier: PostgreSQL
"""The parts of scripts/reproduce: entries, their rows, published noise, cells, pictures and the page."""
