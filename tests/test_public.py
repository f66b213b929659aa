"""The public face: one explicit list, loaded when used, and formats without torch."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fewbits
from fewbits import errors
from fewbits.formats import CATALOGUE
from tests import cases

FOLDERS = (
    "bench",
    "compare",
    "distributed",
    "files",
    "formats",
    "kernels",
    "metrics",
    "nn",
    "optim",
    "planner",
    "profiling",
    "ptq",
    "recipes",
    "records",
    "report",
    "solvers",
    "sparsity",
    "tensor",
    "train",
    "typing",
)


def python(code: str) -> str:
    """Run ``code`` in a fresh process and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_public_list_is_exactly_this() -> None:
    assert sorted(fewbits.__all__) == [
        "ArgumentError",
        "DTypeError",
        "DataError",
        "FewbitsError",
        "FormatError",
        "MissingDependencyError",
        "NarrowTensor",
        "dequantize",
        "fake_quantize",
        "format",
        "load",
        "matmul",
        "matvec",
        "measure",
        "plan",
        "prepare",
        "qsnr",
        "quantize",
        "solve",
        "sparsify",
    ]
    assert len(fewbits.__all__) == len(set(fewbits.__all__))


def test_dir_lists_the_public_names_the_folders_and_every_format() -> None:
    assert set(dir(fewbits)) == {*fewbits.__all__, *FOLDERS, *cases.NAMES}


@pytest.mark.parametrize("name", [*fewbits.__all__, *FOLDERS, "__version__"])
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fewbits, name) is not None


@pytest.mark.parametrize("name", cases.NAMES)
def test_every_catalogued_format_is_a_name_of_the_package(name: str) -> None:
    assert getattr(fewbits, name) is CATALOGUE[name].format


def test_no_format_hides_a_public_name_or_a_folder() -> None:
    assert not set(cases.NAMES) & {*fewbits.__all__, *FOLDERS}


def test_a_name_that_does_not_exist_says_where_the_formats_are_listed() -> None:
    with pytest.raises(
        AttributeError, match="fewbits has no name 'mxfp5'; `fewbits formats` lists the formats"
    ):
        _ = fewbits.mxfp5
    assert not hasattr(fewbits, "__wrapped__")


def test_star_import_brings_the_public_list() -> None:
    code = "from fewbits import *; import fewbits; print(all(n in globals() for n in fewbits.__all__))"
    assert python(code) == "True"


@pytest.mark.parametrize("module", ["fewbits", "fewbits.formats", "fewbits.errors", "fewbits.records"])
def test_the_lowest_floor_loads_no_torch(module: str) -> None:
    assert python(f"import {module}, sys; print('torch' in sys.modules)") == "False"


def test_who_rounds_numpy_arrays_loads_no_torch_and_who_packs_them_does() -> None:
    code = (
        "import fewbits as fb, numpy as np, sys\n"
        "x = np.ones((2, 32), np.float32)\n"
        "fb.qsnr(x, fb.fake_quantize(x, 'nvfp4')); fb.measure(x, 'mx6')\n"
        "print('torch' in sys.modules)\n"
        "fb.quantize(x, fb.mxfp4)\n"
        "print('torch' in sys.modules)"
    )
    assert python(code).split() == ["False", "True"]


@pytest.mark.parametrize(
    "module", ["fewbits.tensor.narrow", "fewbits.nn", "fewbits.solvers", "fewbits.train"]
)
def test_no_folder_loads_torchs_compiler(module: str) -> None:
    assert python(f"import {module}, sys; print('torch._dynamo' in sys.modules)") == "False"


def test_folders_are_there_without_an_import_of_their_own() -> None:
    assert python("import fewbits as fb; print(fb.formats.CATALOGUE['mxfp4'].name)") == "mxfp4"
    assert (
        python("import fewbits as fb; print(fb.metrics.qsnr.__name__, fb.kernels.__name__)")
        == "qsnr fewbits.kernels"
    )


def test_every_error_is_one_of_ours_and_of_pythons() -> None:
    kinds = {
        errors.FormatError: ValueError,
        errors.ArgumentError: ValueError,
        errors.DataError: ValueError,
        errors.DTypeError: TypeError,
        errors.MissingDependencyError: ImportError,
    }
    for kind, built_in in kinds.items():
        assert issubclass(kind, fewbits.FewbitsError)
        assert issubclass(kind, built_in)
        assert kind.__doc__


def _modules() -> list[str]:
    names = []
    for folder in ("compare", "files", "formats", "kernels", "optim", "sparsity", "tensor"):
        package = importlib.import_module(f"fewbits.{folder}")
        names += [package.__name__]
        names += [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [*names, "fewbits.metrics", "fewbits.versions"]


def test_the_examples_in_docstrings_are_true() -> None:
    """Of every module that has one: `>>>` is looked for first, since some modules take seconds to load."""
    root = Path(fewbits.__file__).parent
    with_examples = [path for path in sorted(root.rglob("*.py")) if ">>> " in path.read_text("utf-8")]
    tried = 0
    for path in with_examples:
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert result.failed == 0, name
        assert result.attempted > 0, f"{name} shows an example that is in no docstring of its own"
        tried += result.attempted
    assert tried > 40


def test_the_lists_of_the_folders_name_what_is_there() -> None:
    for name in _modules():
        module = importlib.import_module(name)
        listed = getattr(module, "__all__", [])
        assert len(set(listed)) == len(listed)
        for public in listed:
            assert hasattr(module, public), f"{name}.{public}"
