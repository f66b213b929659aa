"""Numbers to codes and scales."""
