"""Checkpoint facts: what is tracked, missed, tried, committed, forgotten."""
