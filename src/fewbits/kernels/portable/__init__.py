"""Plain operations of torch that equal the definition, for devices without kernels of ours."""
