"""Single values: initial values by position."""
