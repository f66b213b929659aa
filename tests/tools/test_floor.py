"""The lowest versions that are tested are those that pyproject.toml promises."""

from importlib.metadata import requires

from tools.floor import constraints


def test_a_bound_becomes_its_first_series() -> None:
    assert constraints(["torch>=2.9", "rich>=13", "safetensors>=0.4.3"]) == [
        "torch==2.9.*",
        "rich==13.0.*",
        "safetensors==0.4.3",
    ]


def test_what_only_the_tests_need_stays_new_but_for_what_is_tied_to_torch() -> None:
    given = ['plotly>=5.20; extra == "plots"', 'pytest>=8.2; extra == "dev"', 'torchao>=0.14; extra == "dev"']
    assert constraints(given) == ["plotly==5.20.*", "torchao==0.14.*"]


def test_every_library_that_users_meet_has_a_lowest_version() -> None:
    needed = [r for r in requires("fewbits") or [] if "dev" not in r]
    assert len(constraints(requires("fewbits") or [])) == len(needed) + 1  # and torchao
