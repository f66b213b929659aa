"""The ``fewbits`` command: one file per subcommand, each parses, calls, prints and sets the exit code."""
