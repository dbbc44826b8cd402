"""Families whose latent dynamics are deterministic: every action path is run once, readings are drawn in batch."""
