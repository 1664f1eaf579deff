"""The same fixtures as for the other tests that need a broker; the Kafka is one of this folder's own."""

from tests.e2e.conftest import app_id, kafka_broker

__all__ = ["app_id", "kafka_broker"]
