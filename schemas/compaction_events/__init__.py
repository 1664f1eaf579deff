"""The contract of `compaction-monitor`, and what an agent installs: facts in, findings out, the codec between.

This package imports nothing of `compaction_monitor`, and its base needs only pydantic and orjson.
"""
