"""Training starts from weights that are there; a short fine-tuning wins back what a direct cast loses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.files import cast, load_file
from fewbits.nn import prepare
from fewbits.recipes import recipe
from fewbits.train import Settings, fp32_model, run
from fewbits.train.starting_weights import start_from
from fewbits.train.tasks import task as read_task


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    folder = tmp_path_factory.mktemp("runs") / "digits-fp32-seed0"
    run(Settings("digits", "fp32", steps=30), folder)
    return folder


def weights(file: Path) -> dict[str, torch.Tensor]:
    return {n.removeprefix("model/"): x for n, x in load_file(file).items() if n.startswith("model/")}


def test_it_starts_from_the_weights_of_a_run(begun: Path, tmp_path: Path) -> None:
    trained = weights(begun / "checkpoint.safetensors")
    for path in (begun, begun / "checkpoint.safetensors"):
        model = read_task("digits").create(5)
        start_from(model, path)
        assert all(torch.equal(x, trained[name]) for name, x in model.state_dict().items())
    one = run(Settings("digits", "mxfp6-finetune", steps=2, lr=1e-4, start=str(begun)), tmp_path / "a")
    fresh = run(Settings("digits", "mxfp6-finetune", steps=2, lr=1e-4), tmp_path / "b")
    assert one.losses[0] < 0.5 * fresh.losses[0]
    again = run(
        Settings("digits", "mxfp6-finetune", steps=2, lr=1e-4, start=str(begun)), tmp_path / "a", resume=True
    )
    assert again.losses == one.losses
    with pytest.raises(fb.ArgumentError, match="start="):
        run(Settings("digits", "mxfp6-finetune", steps=2, lr=1e-4), tmp_path / "a", resume=True)


def test_it_starts_from_what_cast_wrote_dequantized(begun: Path, tmp_path: Path) -> None:
    trained = weights(begun / "checkpoint.safetensors")
    save_file(trained, tmp_path / "plain.safetensors")
    for source in (tmp_path / "plain.safetensors", begun / "checkpoint.safetensors"):
        narrow = tmp_path / f"narrow-{source.stem}.safetensors"
        cast(source, narrow, format=fb.mxfp4)
        model = read_task("digits").create(5)
        start_from(model, narrow)
        for name, x in model.state_dict().items():
            w = trained[name]
            rounded = fb.fake_quantize(w.reshape(len(w), -1), "mxfp4").reshape(w.shape) if w.ndim > 1 else w
            assert torch.equal(x, rounded)
            assert w.ndim == 1 or not torch.equal(x, w)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(begun: Path, tmp_path: Path, value: float) -> None:
    trained = weights(begun / "checkpoint.safetensors")
    name = sorted(trained)[1]
    trained[name] = trained[name].clone()
    trained[name].view(-1)[-1] = value
    save_file(trained, tmp_path / "w.safetensors")
    model = read_task("digits").create(0)
    with pytest.raises(fb.DataError, match=f"has NaN or infinity in '{name}'"):
        start_from(model, tmp_path / "w.safetensors")
    # The largest finite number is a weight, also where its dtype is narrower or wider than the model's.
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        trained[name] = torch.full_like(trained[name], torch.finfo(dtype).max, dtype=dtype)
        save_file(trained, tmp_path / "w.safetensors")
        start_from(model, tmp_path / "w.safetensors")
    trained[name] = trained[name].double() * 2  # which float32 does not hold
    save_file(trained, tmp_path / "w.safetensors")
    with pytest.raises(fb.DataError, match=f"in '{name}'"):
        start_from(model, tmp_path / "w.safetensors")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.bool])
def test_integers_in_the_place_of_weights_are_refused_by_name(
    begun: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    trained = weights(begun / "checkpoint.safetensors")
    name = sorted(trained)[1]
    trained[name] = trained[name].to(dtype)
    save_file(trained, tmp_path / "w.safetensors")
    with pytest.raises(fb.ArgumentError, match=f"has '{name}' of {dtype}, and .*'s is torch.float32"):
        start_from(read_task("digits").create(0), tmp_path / "w.safetensors")


def test_another_model_is_refused_by_the_first_tensor_that_does_not_fit(begun: Path, tmp_path: Path) -> None:
    trained = weights(begun / "checkpoint.safetensors")
    first = min(trained)
    for changed, message in (
        ({n: x for n, x in trained.items() if n != first}, f"lacks '{first}', which"),
        ({**trained, "more": torch.zeros(2)}, "has 'more', which"),
        ({**trained, first: torch.zeros(3, 2)}, r"has '.*' of shape \(3, 2\), and"),
    ):
        save_file(changed, tmp_path / "w.safetensors")
        with pytest.raises(fb.ArgumentError, match=message):
            start_from(read_task("digits").create(0), tmp_path / "w.safetensors")
    with pytest.raises(fb.ArgumentError, match="same task, model and size"):
        start_from(read_task("digits", "base").create(0), begun)
    with pytest.raises(fb.DataError):
        start_from(read_task("digits").create(0), tmp_path / "nothing")


def test_the_command_fine_tunes(begun: Path, tmp_path: Path, capsys: Any) -> None:
    words = [
        "train",
        "--task",
        "digits",
        "--recipe",
        "fp32,mxfp6-finetune",
        "--steps",
        "2",
        "--from",
        str(begun),
    ]
    assert cli.run([*words, "--lr", "1e-4", "--out", str(tmp_path / "t")]) == 0, capsys.readouterr().err
    for more, message in (
        (["--seeds", "2"], "--seeds with --from"),
        (["--task", "digits,bytes"], "of one --task"),
        (["--size", "base"], "same task, model and size"),
        (["--from", "nowhere"], "nowhere"),
    ):
        given = [w for i, w in enumerate(words) if w != more[0] and words[i - 1] != more[0]]
        assert cli.run([*given, *more, "--out", str(tmp_path / more[0])]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def _losses(seed: int, folder: Path, steps: int, lr: float) -> tuple[float, float, float]:
    """The held-out loss of the language model in FP32, cast directly, and after fine-tuning."""
    task = read_task("bytes")
    model = fp32_model(task, seed)
    wide = task.evaluate(model)
    save_file(model.state_dict(), folder / f"{seed}.safetensors")
    direct = task.evaluate(prepare(model, NARROW).eval())
    settings = Settings(
        "bytes", NARROW, steps=steps, seed=seed, lr=lr, start=str(folder / f"{seed}.safetensors")
    )
    return wide, direct, run(settings, folder / f"run{seed}").value


NARROW = "mxfp6-finetune"


@pytest.mark.slow
def test_a_short_fine_tuning_wins_back_what_a_direct_cast_to_mxfp6_loses(tmp_path: Path) -> None:
    assert recipe(NARROW).forward_weight is not None
    assert recipe(NARROW).dx_gradient is None
    closed = []
    for seed in range(3):
        wide, direct, tuned = _losses(seed, tmp_path, steps=60, lr=3e-4)
        assert direct > wide
        closed.append((direct - tuned) / (direct - wide))
    assert all(part > 0.5 for part in closed), closed
    other = tmp_path / "other"
    other.mkdir()
    wide, direct, still = _losses(0, other, steps=2, lr=1e-12)  # the control: nothing was learned
    assert still == pytest.approx(direct, abs=0.2 * (direct - wide))
