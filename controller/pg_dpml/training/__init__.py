# SPDX-License-Identifier: PostgreSQL
