"""The name of a test's own app, as for the other tests that need a broker."""

from tests.e2e.conftest import app_id

__all__ = ["app_id"]
