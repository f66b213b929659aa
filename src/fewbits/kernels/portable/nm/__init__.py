"""N:M sparsity: streams of what is kept."""
