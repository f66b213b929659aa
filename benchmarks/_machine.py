"""Which machine a figure was measured on, and how it is held to fewer instructions than it has."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

# What makes each library take no more than an instruction set; else the peers would run on units that a CPU
# with that set does not have.
HELD: dict[str, dict[str, str]] = {
    "amx": {},
    "avx512_bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OPENBLAS_CORETYPE": "SkylakeX"},
    "avx512_vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "OPENBLAS_CORETYPE": "SkylakeX"},
    "avx2_vnni": {
        "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}
UNITS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_vbmi",
    "amx_bf16",
    "amx_int8",
)


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def cpu() -> dict[str, Any]:
    """Return the name, the numbers that tell it from others of that name, its matrix units and cores."""
    info = _cpuinfo()
    has = set(info.get("flags", "").split())
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "family": info.get("cpu family"),
        "model": info.get("model"),
        "units": [unit for unit in UNITS if unit in has],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def gpu() -> dict[str, Any]:
    """Return the name of the GPU, what it can do and how much memory it has."""
    import torch

    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "gibibytes": round(found.total_memory / 2**30),
    }


def file_name(own: dict[str, Any]) -> str:
    """Return what the file of its figures is called; a hypervisor may hide all of a name but its maker."""
    if "gpu" in own:
        return "-".join(re.findall(r"[a-z0-9]+", own["gpu"]["name"].lower()))
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(.*?\)| CPU|@.*", "", own["cpu"]).lower())
    tiles = ("amx",) if "amx_bf16" in own["units"] else ()  # which a hypervisor may hide, too
    return "-".join((*words, f"family{own['family']}", f"model{own['model']}", *tiles))


def held(isa: str) -> dict[str, str]:
    """Return the environment in which ours and the peers' kernels take no more than an instruction set."""
    return {"FEWBITS_ISA": isa, **HELD.get(isa, {})}


def forced() -> dict[str, str]:
    """Return what the environment forces now."""
    names = {name for settings in HELD.values() for name in settings}
    names |= {"FEWBITS_ISA", "OMP_NUM_THREADS", "OMP_WAIT_POLICY"}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}
