"""Files: safetensors, the layouts that other programs read, and writes that are never half done."""

from fewbits.files.cast import cast, restore
from fewbits.files.inspect import inspect
from fewbits.files.tensors import load_file, save_file

__all__ = ["cast", "inspect", "load_file", "restore", "save_file"]
