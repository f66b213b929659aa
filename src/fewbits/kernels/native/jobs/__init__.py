"""The records that a compiled kernel takes; native/jobs has their fields."""
