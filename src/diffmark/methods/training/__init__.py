"""Training of the baselines that need it."""
