"""Options of variants: parsed, checked, written back; and the errors that name what would be valid."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import common_options

from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import format_options, option, options_of, parse_options
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS, register_variant
from fairseq_residuals.wirings.core.wiring import Wiring


@dataclass(frozen=True)
class Everything:
    flag: bool = option(True, "a switch")
    count: int = option(3, "a number of things", minimum=1, maximum=9)
    scale: float | Literal["depth"] = option(1.0, "a factor", minimum=0.0, maximum=1e300)
    kind: Literal["add", "concat"] = option("add", "one of two")
    path: str = option("", "a file")


@given(
    st.builds(
        Everything,
        flag=st.booleans(),
        count=st.integers(1, 9),
        scale=st.one_of(st.just("depth"), st.floats(0, 1e300)),
        kind=st.sampled_from(["add", "concat"]),
        path=st.text("abc/._-", max_size=8),
    )
)
def test_written_options_parse_to_the_same(config: Everything) -> None:
    parsed, named = parse_options("x", Everything, format_options(config))
    assert parsed == config
    assert named == set(options_of(Everything))


def test_defaults_and_spaces() -> None:
    assert parse_options("x", Everything, "") == (Everything(), frozenset())
    assert parse_options("x", Everything, " count = 4 , flag=FALSE,")[0] == Everything(count=4, flag=False)
    assert parse_options("x", Everything, "scale=depth")[0].scale == "depth"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size=1", "x has no option 'size'; its options are flag, count, scale, kind, path"),
        ("count", "option 'count' of x needs a value: count=an integer from 1 to 9"),
        ("count=0", "'0' is not valid for option 'count' of x; valid: an integer from 1 to 9"),
        ("count=10", "valid: an integer from 1 to 9"),
        ("count=1.5", "valid: an integer"),
        ("scale=-0.1", "valid: a number from 0 to 1e+300 or depth"),
        ("scale=inf", "valid: a number"),
        ("flag=yes", "valid: true, false"),
        ("kind=mul", "valid: add or concat"),
        ("count=1,count=1", "option 'count' of x is given twice"),
    ],
)
def test_errors(text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        parse_options("x", Everything, text)
    assert says in str(error.value)


def test_a_wiring_spells_out_its_options() -> None:
    wiring = Wiring.parse("b2t", "init_scale=depth")
    spelled_out = common_options(init_scale="depth")
    assert (wiring.args, str(wiring)) == (spelled_out, f"b2t ({spelled_out})")
    assert Wiring.parse("pre_ln").with_default("final_norm", False).value("final_norm") is False
    kept = Wiring.parse("pre_ln", "final_norm=true").with_default("final_norm", False)
    assert kept.args == f"{common_options()},final_norm=true"
    assert Wiring.parse("post_ln").with_default("final_norm", False) == Wiring.parse("post_ln")


@pytest.mark.parametrize("name", sorted(name for name in VARIANTS if VARIANTS[name].Config.former))
def test_checkpoints_may_name_options_that_went(name: str) -> None:
    for former in VARIANTS[name].Config.former:
        assert Wiring.parse(name, former) == Wiring.parse(name)
        with pytest.raises(UserError, match="has no option"):
            Wiring.parse(name, f"{former}3")


@pytest.mark.parametrize(
    ("name", "idle", "needed"),
    [
        ("residual_multiplier", "scale_depth=2", "multiplier=depth"),
        ("unet_skip", "middle=1", "backout=true"),
        ("x0_lambdas", "middle=1", "backout=true"),
        ("complete_p", "base_width=8", "mup=true"),
        ("delta_attnres", "as_coded=true", "block=1"),
        ("pre_ln", "base_depth=3", "depth_mup=true"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(name: str, idle: str, needed: str) -> None:
    with pytest.raises(UserError, match=f"{idle.split('=')[0]} of {name} would do nothing without"):
        Wiring.parse(name, idle).check("decoder", 4, alone=True)
    for valid in (f"{idle},{needed}", needed, Wiring.parse(name).args):
        Wiring.parse(name, valid).check("decoder", 4, alone=True)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register_variant("b2t")(Variant)
    assert VARIANTS["b2t"] is not Variant


@pytest.mark.parametrize("name", ["", "My variant", "a,b", "pre_ln:0-5", "a/b", "a-b"])
def test_a_name_can_stand_in_a_list_of_variants(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a wiring: lower-case letters"):
        register_variant(name)(Variant)
    assert name not in VARIANTS


@dataclass(frozen=True)
class ListOfNumbers:
    sizes: tuple[int, ...] = option((1,), "some", minimum=1, maximum=9)


@dataclass(frozen=True)
class WithoutHelp:
    size: int = 1


@dataclass(frozen=True)
class InvalidDefault:
    size: int = option(12, "a number", minimum=1, maximum=9)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ListOfNumbers, r"the default \(1,\) of ListOfNumbers\.sizes is not valid"),
        (WithoutHelp, r"WithoutHelp\.size needs option\(default, help\)"),
        (InvalidDefault, r"the default 12 of InvalidDefault\.size is not valid; valid: an integer from 1 to 9"),
    ],
)
def test_a_wrongly_declared_option_is_named(config: type, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        options_of(config)


def test_what_a_variant_lacks_is_named() -> None:
    class Complete(Variant):
        title, paper, year, verified, equations = "A", "B 2026", 2026, "nothing", lambda o: ("x = x + F(x)",)

    class Inherited(VARIANTS["pre_ln"]):  # type: ignore[misc]
        year = 2026

    class NoDecorator(Complete):
        class Config(Variant.Config):
            size: int = option(1, "a number", minimum=1, maximum=9)

    for wrong, says in [
        (Inherited, "'wrong' does not say its title, paper, equations, verified in the body of Inherited"),
        (NoDecorator, "NoDecorator.Config needs the decorator @dataclass"),
    ]:
        with pytest.raises(TypeError, match=says):
            register_variant("wrong")(wrong)
    with pytest.raises(TypeError, match=says):  # in a connection, the option would be an object and so as good as true
        Wiring.of(NoDecorator)
    assert "wrong" not in VARIANTS


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_is_described(name: str) -> None:
    variant = VARIANTS[name]
    assert variant.name == name and variant.title and variant.equations and variant.verified
    assert str(variant.year) in variant.paper
    # repository@commit or @version, or nothing was published, which the description then says
    described = sys.modules[variant.__module__].__doc__ or ""
    assert re.fullmatch(r"\S+/\S+@([0-9a-f]{7}|v\d+\.\d+\.\d+)", variant.code) or (
        variant.code == "" and "No code was published" in described
    ), "`code` is owner/repository@commit (7 digits); without it the module's docstring says: No code was published"
    for described in options_of(variant.Config).values():
        assert described.help and described.describe()
    assert Wiring.parse(name).parts[0].config == variant.Config()


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_number_has_bounds(name: str) -> None:
    """Of those that no model could be built with, or compute with, one sentence says what is valid."""
    for known in options_of(VARIANTS[name].Config).values():
        if re.search("an? (number|integer)", known.describe()):
            for value in ("1e308", "-1e308", "1000000000", "-1000000000"):
                with pytest.raises(UserError, match=f"option '{known.name}' .* from .* to "):
                    parse_options(name, VARIANTS[name].Config, f"{known.name}={value}")
