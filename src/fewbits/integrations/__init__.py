"""Recipes in the training loops of other libraries: ``lightning`` and ``transformers``, a module for each.

Neither is imported here: not everybody has them.
"""
