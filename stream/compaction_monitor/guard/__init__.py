"""The guard in the agent's own process."""
