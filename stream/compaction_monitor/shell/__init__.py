"""Everything between Kafka and the pure middle."""
