# SPDX-License-Identifier: PostgreSQL
"""What several test files share: people, oracles, replays, neighbours, leak searches."""
