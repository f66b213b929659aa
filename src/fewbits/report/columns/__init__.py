"""The columns of every report: what is printed, what it sorts by, what it means."""
