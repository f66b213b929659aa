"""Compressed sparse rows."""
