"""A plain install, without any extra, has all that it needs for every public name."""

import json
import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fewbits
from fewbits import _native

USE = """
import importlib, pkgutil
import numpy as np, torch
import fewbits as fb

for name in dir(fb):
    getattr(fb, name)
for folder in "formats kernels tensor recipes nn optim solvers sparsity files cli".split():
    package = importlib.import_module("fewbits." + folder)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith("fewbits.kernels.triton."):  # of the extra gpu
            importlib.import_module(module.name)

x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
q = fb.quantize(x, fb.format("mxfp4"))
assert torch.equal(fb.dequantize(q), fb.fake_quantize(x, "mxfp4"))
assert fb.matmul(x, q.t()).shape == (8, 8) and fb.matvec(q, x).shape == (8, 8)
assert abs(fb.qsnr(x, q) - fb.measure(x, "mxfp4").qsnr_db) < 1e-9
a = np.eye(64) * 4 + np.random.default_rng(0).standard_normal((64, 64)) / 16
assert np.abs(a @ fb.solve(a, np.ones(64)) - 1).max() < 1e-12
layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
model = fb.prepare(torch.nn.Sequential(*layers), "mxfp8")
model(x).sum().backward()
fb.sparsify(torch.nn.Sequential(torch.nn.Linear(64, 64)), "2:4")
print("all used")
"""

BLOCK = """
import sys

class Without:
    "A finder that finds none of the packages that a plain install would not have."

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def core() -> dict[str, metadata.Distribution]:
    """Return what pip would bring along with fewbits: its requirements, and theirs, without extras."""
    # From the file, which is newer than what an editable install wrote down once.
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    found = {"fewbits": metadata.distribution("fewbits")}
    wanted = [Requirement(line).name for line in re.findall(r'"(.+?)"', block[1])]
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another kind of machine; what is needed is missed below
        asked = map(Requirement, found[name].requires or ())
        wanted += [r.name for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def used(python: Path | str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh process that has nothing of ours on its path but what it finds itself."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python, "-c", code], cwd=folder, env=kept, capture_output=True, text=True, timeout=600, check=False
    )


def test_every_public_name_works_where_no_extra_is_installed(tmp_path: Path) -> None:
    there = set(core())
    blocked = [
        module
        for module, owners in metadata.packages_distributions().items()
        if not there & {canonicalize_name(owner) for owner in owners}
    ]
    assert "pytest" in blocked
    assert not {"torch", "numpy", "scipy", "safetensors", "fewbits"} & set(blocked)
    done = used(sys.executable, f"BLOCKED = set({json.dumps(blocked)})\n{BLOCK}{USE}", tmp_path)
    assert done.stdout.strip() == "all used", done.stderr


def test_a_dependency_that_is_missing_is_noticed(tmp_path: Path) -> None:
    done = used(sys.executable, f"BLOCKED = {{'scipy'}}\n{BLOCK}{USE}", tmp_path)
    assert done.returncode != 0
    assert "scipy" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="packages are linked into the new environment")
def test_every_public_name_works_in_an_environment_of_the_core_dependencies_alone(tmp_path: Path) -> None:
    venv.create(tmp_path / "plain", symlinks=True)
    site = next((tmp_path / "plain").glob("lib/python*/site-packages"))
    for distribution in core().values():
        for top in {path.parts[0] for path in distribution.files or () if ".." not in path.parts}:
            if (
                not (site / top).exists()
                and not top.endswith(".pth")
                and top not in ("fewbits", "__pycache__")
            ):
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    (site / "fewbits").mkdir()
    ours = [*Path(fewbits.__file__).parent.iterdir(), Path(_native.__file__)]
    for path in {path.name: path for path in ours if path.name != "__pycache__"}.values():
        (site / "fewbits" / path.name).symlink_to(path)
    python = tmp_path / "plain" / "bin" / "python"
    assert "ModuleNotFoundError" in used(python, "import pytest", tmp_path).stderr
    done = used(python, USE, tmp_path)
    assert done.stdout.strip() == "all used", done.stderr
