# SPDX-License-Identifier: PostgreSQL
"""What the user states about data, privacy and training, and the files that state it."""
