"""Where the time of a training step goes, and how far each operation is from this machine's limits."""

from __future__ import annotations

from fewbits.profiling.limits import measured_limits
from fewbits.profiling.profiled import profile_step

__all__ = ["measured_limits", "profile_step"]
