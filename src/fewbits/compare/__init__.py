"""Measure formats on models, checkpoints and matrices; what is measured comes back as records."""
