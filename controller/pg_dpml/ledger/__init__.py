# SPDX-License-Identifier: PostgreSQL
"""What was spent and what was made of it: budgets, charges and stored models."""
