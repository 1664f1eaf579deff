"""What is remembered: a session, its checkpoints, and how they are stored."""
