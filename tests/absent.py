"""What a test needs and this machine has not."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Absent is a skip on a laptop; in CI it would be a green run that tested nothing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
