"""Train in narrow formats: the loop, its tasks, and what watches it."""
