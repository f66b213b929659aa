"""Aliases of formats, options that do nothing, completion, and how little a simple mistake loads."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file

from fewbits.cli import aliases
from fewbits.cli import main as cli
from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import read_bytes, read_codecs, read_count, read_numbers, read_recipes
from fewbits.errors import ArgumentError
from fewbits.train.tasks import TASKS, task

APP = typer.main.get_command(cli.app)
MINE = "block(element=lookup(-1,0,0.25,1),scale=fp32,size=16)"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(aliases, "_KNOWN", aliases.ContextVar("aliases", default=None))
    save_file({"w": np.arange(1, 65, dtype=np.float32).reshape(4, 16)}, "m.safetensors")
    Path("a.mtx").write_text("%%MatrixMarket matrix array real general\n2 2\n4\n1\n1\n3\n")
    Path("narrow.safetensors").write_bytes(b"")
    return tmp_path


def test_every_parameter_that_takes_a_format_takes_an_alias() -> None:
    for command in APP.commands.values():
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            if name in ("codec", "codecs", "format", "formats", "recipe", "map") or (command.name, name) in (
                ("formats", "name"),
                ("profile", "compare"),
            ):
                assert any(isinstance(m, Formats) for m in hint.__metadata__), (command.name, name)


# A plan takes networks, one recipe or several for its layers, and sets rules beside itself. Formats are
# explored on numbers, not on texts.
OWN = {("train", "--model"), ("bench", "--task"), ("explore", "--data")} | {
    ("plan", option) for option in ("--model", "--formats", "--recipe", "--codec", "--compare")
}
# A profile is of one step.
OWN |= {("profile", option) for option in ("--task", "--recipe", "--compare", "--steps")}


def test_an_option_of_one_name_has_one_meaning_and_help_on_every_command() -> None:
    options: dict[str, dict[str, set[str]]] = {}
    for command in APP.commands.values():
        for p in command.params:
            # What --out writes is of another kind on each command, and `train` and `plan` have own models.
            same = p.opts[0] not in ("--help", "--out") and (command.name, p.opts[0]) not in OWN
            if p.opts[0].startswith("--") and same:
                options.setdefault(p.opts[0], {}).setdefault(str(p.help), set()).add(command.name)
    assert {name: texts for name, texts in options.items() if len(texts) > 1} == {}
    on = {name: set.union(*texts.values()) for name, texts in options.items()}
    assert (
        on["--seeds"]
        == on["--task"]
        == {"compare", "prune", "train"}
        == (on["--model"] | {"train"}) - {"cast"}
    )
    assert on["--report"] == {
        "bench",
        "compare",
        "explore",
        "plan",
        "profile",
        "prune",
        "scale",
        "solve",
        "train",
    }
    assert on["--codecs"] == on["--latency-us"] == {"compare", "scale"}
    assert on["--json"] == set(APP.commands)
    assert on["--include"] == on["--exclude"] == {"cast", "compare", "explore", "prune", "train"}


def test_help_names_every_task() -> None:
    for command in ("compare", "prune", "train"):
        text = next(p.help for p in APP.commands[command].params if "--task" in p.opts)
        assert set(TASKS) <= set(re.findall(r"\w+", text))


def test_help_names_options_of_its_own_command_or_says_of_which() -> None:
    for command in APP.commands.values():
        own = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        for text in (command.help, *(getattr(p, "help", None) for p in command.params)):
            without = re.sub(r"`fewbits [^`]*`|fewbits .*", "", text or "")
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", without)) <= own, (command.name, text)


@pytest.mark.parametrize(
    ("text", "recipes"),
    [
        ("fp32", ["fp32"]),
        ("fp32, mxfp6", ["fp32", "mxfp6"]),
        ("mx:weight=mxfp4,gradient=int(8),fp32", ["mx:weight=mxfp4,gradient=int(8)", "fp32"]),
        ("mxfp6:update=kahan,mx9:vector=bf16,x=1", ["mxfp6:update=kahan", "mx9:vector=bf16,x=1"]),
        ("fp32,fp32", ["fp32"]),
        ("none", []),
        (None, ["default"]),
    ],
)
def test_a_list_of_recipes_is_split_between_recipes_and_not_between_changes(text: str, recipes: Any) -> None:
    assert read_recipes(text, ["default"]) == recipes


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("fp32", ["fp32"]),
        ("mxfp8_e4m3,int8_256:feedback", ["mxfp8_e4m3", "int8_256:feedback"]),
        ("topk:density=0.01,feedback,mxfp4", ["topk:density=0.01,feedback", "mxfp4"]),
        ("float(e=3,m=0):aps,float(e=4,m=3)", ["float(e=3,m=0):aps", "float(e=4,m=3)"]),
        (
            "topk:density=0.1,values=int(8),stochastic , fp32",
            ["topk:density=0.1,values=int(8),stochastic", "fp32"],
        ),
        ("mxfp4:feedback,stochastic,mxfp4:feedback,stochastic", ["mxfp4:feedback,stochastic"]),
        ("powersgd:rank=4,kahan", ["powersgd:rank=4,kahan"]),
        ("default", ["usual"]),
        (None, ["usual"]),
        ("", []),
    ],
)
def test_a_list_of_codecs_is_split_between_codecs_and_not_between_stabilizers(text: Any, codecs: Any) -> None:
    assert read_codecs(text, ["usual"]) == codecs


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("25.6M", 25_600_000),
        ("7b", 7 * 10**9),
        ("1.5K", 1500),
        ("2T", 2 * 10**12),
        (" 3G ", 3 * 10**9),
    ],
)
def test_counts_are_read_with_powers_of_a_thousand(text: str, count: int) -> None:
    assert read_count("parameters", text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "M",
        "1e6",
        "nan",
        "1MM",
        "0.2",
        "1.5",
        "7.6",
        "1.0004K",
        "2.0005K",
        "9" * 400,
        "9" * 5000,
    ],
)
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected a whole number from 1 up"):
        read_count("parameters", text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("40", 40),
        ("40b", 40),
        ("1.5K", 1500),
        ("24GB", 24 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("1tib", 2**40),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_bytes_are_read_in_units_of_1000_and_of_1024(text: str, count: int) -> None:
    assert read_bytes("memory", text) == count


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "G", "1iB", "40 parsecs", "1e9", "inf", "0.2", "9" * 400, "9" * 5000]
)
def test_what_are_no_bytes_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected a number of bytes, as in 40G, 40GB or 40GiB"):
        read_bytes("memory", text)


@pytest.mark.parametrize("text", ["0", "1,-1", "1,x", "inf", "nan"])
def test_what_are_no_numbers_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="give some, as in 1,10,100"):
        read_numbers("links", text)
    assert read_numbers("links", "1, 2.5") == [1.0, 2.5]


@pytest.mark.parametrize(
    "words",
    [
        ["formats", "mine", "--json", "-"],
        ["compare", "m.safetensors", "--formats", "mxfp4,mine", "--json", "-"],
        ["compare", "a.mtx", "--formats", "mine,fp32", "--json", "-"],
        ["cast", "m.safetensors", "n.safetensors", "--format", "mine", "--json", "-"],
        ["cast", "m.safetensors", "n.safetensors", "--map", "w=mine", "--json", "-"],
        ["prune", "m.safetensors", "--format", "mine", "--json", "-"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("how", ["option", "environment"])
def test_an_alias_is_the_format_it_stands_for(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: Path,
    words: list[str],
    how: Any,
) -> None:
    told = []
    for given in (words, [word.replace("mine", MINE) for word in words]):
        Path("n.safetensors").unlink(missing_ok=True)
        if given is words and how == "environment":
            monkeypatch.setenv("FEWBITS_ALIAS", f"part=lookup(-1,0,0.25,1),mine={MINE}")
        option = ["--alias", f"mine={MINE}"] if given is words and how == "option" else []
        assert cli.run([*option, *given]) == 0
        document = json.loads(capfd.readouterr().out)
        document.pop("provenance", None)
        told.append({k: v for k, v in document.items() if k != "models"} or document)
    assert told[0] == told[1]


def test_an_alias_may_be_made_of_another_and_leaves_patterns_alone(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    chain = ["--alias", "nf=lookup(-1,0,0.25,1),mine=block(element=nf,scale=fp32,size=16)"]
    assert cli.run([*chain, "formats", "mine"]) == 0
    assert "block(element=lookup(-1,0,0.25,1),scale=fp32,size=16)" in capsys.readouterr().out.replace(
        "\n", ""
    )
    assert cli.run(["--alias", "w=mx9", "cast", "m.safetensors", "n.safetensors", "--map", "w=w"]) == 0
    assert cli.run(["formats", "mine"]) == 2  # of another run


@pytest.mark.parametrize(
    ("alias", "said"),
    [
        ("nf4", "not NAME=FORMAT"), ("=int(8)", "not NAME=FORMAT"), ("a b=int(8)", "not NAME=FORMAT"),
        ("mxfp4=int(8)", "a format already"), ("float=int(8)", "a format already"), ("nf=int(", "nf: cannot"),
        ("nf=nosuch", "nf: there is no format named 'nosuch'"),
        ("nf=int(8),a=int(4),nf=mxfp4", "nf is int8 and mxfp4; give each a name of its own"),
    ],
)  # fmt: skip
def test_a_wrong_alias_is_refused_and_said_to_be_of_the_option_or_the_environment(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: Path,
    alias: Any,
    said: str,
) -> None:
    assert cli.run(["--alias", alias, "formats"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fewbits: --alias ")
    assert said in error
    monkeypatch.setenv("FEWBITS_ALIAS", alias)
    assert cli.run(["formats"]) == 2
    assert capsys.readouterr().err == error.replace("--alias", "FEWBITS_ALIAS")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["compare", "m.safetensors", "--seeds", "3"], "--seeds does nothing for a checkpoint"),
        (["compare", "m.safetensors", "--task", "digits", "--train"], "--task, --train do nothing"),
        (["compare", "a.mtx", "--min-qsnr", "30"], "--min-qsnr does nothing for a matrix"),
        (["compare", "a.mtx", "--scale-rule", "floor"], "--scale-rule does nothing for a matrix"),
        (["compare", "--links", "1"], "--links does nothing for models"),
        (["compare", "--codecs", "fp32", "--formats", "mxfp4"], "--formats does nothing for codecs"),
        (["compare", "m.safetensors", "--codecs", "fp32"], "--codecs does nothing for a checkpoint"),
        (["compare", "--min-qsnr", "30"], "--min-qsnr does nothing for models"),
        (["prune", "m.safetensors", "--steps", "0"], "--steps does nothing for a checkpoint"),
        (["prune", "m.safetensors", "--size", "small"], "--size does nothing for a checkpoint"),
        (["cast", "m.safetensors", "n.safetensors", "--back", "--exclude", "w"], "--exclude does nothing"),
        (["train", "--model", "m:f", "--size", "base"], "--size does nothing for --model"),
        (["compare", "--model", "m:f", "--seeds", "2"], "--seeds does nothing for a model of your own"),
        (["solve", "a.mtx", "--rtol", "1e-10"], "--rtol does nothing for --solver direct"),
        (["solve", "a.mtx", "--solver", "cg", "--assume-a", "gen"], "--assume-a does nothing for --solver"),
        (["solve", "--compare", "--precision", "fp32"], "--precision does nothing for --solver direct with"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], place: Path, words: list[str], named: Any
) -> None:
    before = sorted(place.iterdir())
    assert cli.run(words) == 2
    assert named in capsys.readouterr().err
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize("command", APP.commands)
def test_an_empty_text_or_list_is_refused_for_every_option_and_argument(
    capsys: pytest.CaptureFixture[str], place: Path, command: str
) -> None:
    arguments = 0
    for p in APP.commands[command].params:
        if getattr(p, "is_flag", False):
            continue
        name = p.opts[0]
        if not name.startswith("--"):
            typed = [[*["m.safetensors"] * arguments, text] for text in ("", ",")]
            name, arguments = name.upper(), arguments + 1
        else:
            typed = [[name, ""], [name, " "], [name, " , "], [f"{name}="]]
        for words in typed:
            assert cli.run([command, *words]) == 2
            text = words[-1].removeprefix(f"{name}=")
            assert capsys.readouterr().err.startswith(f"fewbits: {name} {text!r} is empty; give it a value")
    assert len(list(place.iterdir())) == 3


# Each does its work, or ends, without PyTorch, which takes seconds to load.
SIMPLE = [
    (0, ["--help"]), (0, ["--version"]), (2, ["nothing"]), (0, ["formats"]), (0, ["formats", "mxfp4"]),
    (0, ["recipes"]),
    *[(0, [name, "--help"]) for name in APP.commands],
    (2, ["formats", "mxfp5"]), (2, ["--alias", "x", "formats"]),
    (2, ["compare", "gone.safetensors"]), (2, ["compare", "--formats", "mxfp5"]),
    (2, ["compare", "--seeds", "x"]), (2, ["compare", "m.safetensors", "--seeds", "2"]),
    (2, ["compare", "m.safetensors", "--formats", "mxfp5"]),
    (2, ["compare", "narrow.safetensors"]), (2, ["compare", "m.safetensors", "--json", "m.safetensors"]),
    (2, ["cast", "gone.safetensors", "n.safetensors", "--format", "mxfp4"]), (2, ["cast", "m.safetensors"]),
    (2, ["cast", "m.safetensors", "n.safetensors", "--format", "mxfp5"]),
    (0, ["compare", "m.safetensors", "--formats", "mxfp4,nvfp4"]),
    (0, ["cast", "m.safetensors", "n.safetensors", "--format", "mxfp4"]), (0, ["inspect", "n.safetensors"]),
    (2, ["inspect", "gone.safetensors"]), (2, ["inspect", "m.safetensors", "--json", "m.safetensors"]),
    (2, ["solve", "gone.mtx"]), (2, ["solve", "a.mtx", "--out", "a.mtx"]),
    (2, ["train", "--recipe", "mxfp5"]), (2, ["train", "--task", "m.safetensors", "--out", "m.safetensors"]),
    (2, ["compare", "--codecs", "mxfp5"]), (2, ["compare", "--codecs", "fp32", "--links", ""]),
    (2, ["compare", "--codecs", "fp32", "--links", "1,-1"]),
    (2, ["compare", "m.safetensors", "--links", "1"]),
    (2, ["scale"]), (2, ["scale", "--parameters", "many", "--step-ms", "1"]),
    (2, ["scale", "--parameters", "1M", "--step-ms", "1", "--codecs", "mxfp5"]),
    (2, ["scale", "--parameters", "1M", "--step-ms", "1", "--ranks", "2.5"]),
    (2, ["bench", "--recipe", "mxfp5"]), (2, ["bench", "--check", "gone"]), (2, ["bench", "--check", "."]),
    (2, ["bench", "--recipe", "posit8", "--out", "x"]), (2, ["bench", "--check", ".", "--runs", "5"]),
    (2, ["prune"]), (2, ["prune", "gone.safetensors"]),
    (2, ["prune", "m.safetensors", "--out", "m.safetensors"]),
]  # fmt: skip


def test_help_checkpoints_and_simple_mistakes_do_not_load_torch(place: Path) -> None:
    script = (
        "import contextlib, io, json, sys\n"
        "from fewbits.cli.main import run\n"
        "found = []\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    said = io.StringIO()\n"
        "    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):\n"
        "        code = run(words)\n"
        "    lines = [line for line in said.getvalue().splitlines() if line.startswith('fewbits: ')]\n"
        "    found.append((code, words, len(lines), 'torch' in sys.modules))\n"
        "    assert 'torch' not in sys.modules, words\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([words for _, words in SIMPLE])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [[code, words, 1 if code else 0, False] for code, words in SIMPLE]
    assert json.loads(done.stdout) == expected


def said(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    return done.stdout


def test_the_package_runs_as_a_module_and_completes_names() -> None:
    assert said("-m", "fewbits", "--version").startswith("fewbits ")
    assert "--show-completion" in said("-m", "fewbits", "--help")
    script = "import sys; sys.argv = ['fewbits']; from fewbits.cli.main import main; main()"
    asked = {"COMP_WORDS": "fewbits comp", "COMP_CWORD": "1", "_FEWBITS_COMPLETE": "complete_bash"}
    assert said("-c", script, **asked).strip() == "compare"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["train", "--recipe", "fp32", "--out", "runs"], "runs"),
        (["prune", "--recipe", "none"], "models"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_task_that_is_named_twice_is_measured_once(
    words: list[str], kind: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = task("digits")
    short = replace(short, hyper=replace(short.hyper, steps=1))
    monkeypatch.setattr("fewbits.train.tasks.digits_task", lambda config: short)
    monkeypatch.setenv("FEWBITS_CACHE", str(place))
    assert cli.run([*words, "--task", "digits, digits", "--json", "r.json"]) == 0
    assert len(json.loads(Path("r.json").read_text())[kind]) == 1
