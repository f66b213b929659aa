"""Files: safetensors, the layouts that other programs read, and writes that are never half done."""
