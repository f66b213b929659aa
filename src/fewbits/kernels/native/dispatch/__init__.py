"""Which instruction set runs, and the state of the arithmetic around it."""
