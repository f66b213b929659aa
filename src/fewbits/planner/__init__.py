"""Strategy search: how to split a model over machines, with formats and memory in the search."""
