"""How this plugin builds what the authors' code calls by other names in golden files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification import hosts


@dataclass(frozen=True)
class Recipe:
    """How this plugin builds what some authors' code calls ``names``."""

    names: tuple[str, ...]
    """Of the variant in golden files, less the endings of :data:`ENDINGS`."""
    variant: str
    """For --residual."""
    args: str = ""
    """For --residual-args."""
    flags: tuple[str, ...] = ()
    """Further flags of fairseq-train."""
    endings: Mapping[str, str] = field(default_factory=dict)
    """What may follow a name, and the option that it stands for."""

    def match(self, name: str) -> Recipe | None:
        """The recipe for ``name`` with the options that its endings stand for, if it is one of its names."""
        found = re.fullmatch(rf"({'|'.join(self.names)})((?:{'|'.join(self.endings) or '(?!)'})*)", name)
        if found is None:
            return None
        options = [option for ending, option in self.endings.items() if ending in found[2]]
        return replace(self, args=",".join(filter(None, [self.args, *options])))


ENDINGS = re.compile(r"(_lm|_enc|_b2tfork)*$")
"""Of a variant's name in golden files: the language model, the encoder alone, and the B2T repository's copy of a
baseline."""

_DLCL = {
    "_fix1": "weights=fixed_one",
    "_fixavg": "weights=fixed_average",
    "_noln": "norm=false",
    "_softmax": "softmax=true",
    "_vector": "weight_type=vector",
}
_PRE_LN_ENCODER = ("--residual", "pre_ln", "--decoder-residual", "normformer", "--decoder-residual-args", "cross=false")

RECIPES = (
    Recipe(("postln", "clinic_postln", "tfixuprepo_postln"), "post_ln"),
    Recipe(("preln", "clinic_preln", "tfixuprepo_preln", "dlclrepo_prenorm_baseline"), "pre_ln"),
    Recipe(("preln_fsmain",), "pre_ln", flags=("--activation-fn", "gelu")),
    Recipe(("b2t",), "b2t"),
    Recipe(("b2t_noln",), "b2t_no_ln"),
    Recipe(("residual",), "resi_dual", endings={"_s005": "scale=0.05"}),
    Recipe(("deepnet", "clinic_deepnet"), "deepnet"),
    Recipe(("subln",), "sub_ln"),
    Recipe(("normformer_encdec",), "normformer", flags=_PRE_LN_ENCODER),
    Recipe(("normformer",), "normformer", flags=("--activation-fn", "gelu"), endings={"_resids": "scale_resids=true"}),
    Recipe(("dlcl_pre", "simple_dlcl_pre"), "dlcl_pre", endings=_DLCL),
    Recipe(("dlcl_post", "simple_dlcl_post"), "dlcl_post", endings=_DLCL),
    Recipe(("admin",), "admin"),
    Recipe(("tfixup",), "t_fixup"),
    Recipe(("realformer_fairseq_reimpl",), "realformer"),
    Recipe(("realformer_preln_fairseq_reimpl",), "realformer", "norm=pre"),
    Recipe(
        ("dwlstm_reimpl",),
        "depthwise_lstm",
        endings={
            "_gate1add": "hidden=1",
            "_gate2add": "",
            "_gate2concat": "merge=concat",
            "_none2add": "share=none",
        },
    ),
)

OTHER_KINDS = {
    r"^subln_clibug(_|$)": "it documents a bug of torchscale's command line (--subln alone leaves the decoder Post-LN)"
    " and is not Sub-LN",
    r"_initweights$": "it is an initialisation with nothing computed from it, which tests/test_init.py compares with",
    r"^admin_profile_": "it belongs to a profile of Admin, which tests/test_admin_profile.py compares with",
    r"^mhc_lucidrains(_|$)": "it is a third party's reading of mHC and not the paper's: its norm is of each"
    " stream alone, its router's matrix one for all streams, and its Sinkhorn steps end with the columns",
    r"^realformer_google_": "it is an encoder of Google's BERT with names of its own, which tests/test_realformer.py"
    " compares with",
}
"""By the name of the file: why it is no golden file in the sense of ``fairseq-residuals verify``."""


class OtherKind(UserError):
    """A file beside the goldens that is none in the sense of ``fairseq-residuals verify``."""


class LackedVariant(UserError):
    """Golden files of variants that this version of the plugin does not have."""

    def __init__(self, *files: tuple[Path, str]) -> None:
        """
        Args:
            files: each with the name of its variant.
        """
        known = sorted(name for recipe in RECIPES for name in recipe.names)
        endings = sorted(ending for recipe in RECIPES for ending in recipe.endings)
        lacking = ", ".join(f"{path} ({name})" for path, name in files)
        super().__init__(
            f"not verified, for this version lacks the variant: {lacking};"
            f" it can verify {', '.join(known)}, and these with what they have of {', '.join(dict.fromkeys(endings))},"
            f" _lm, _enc or _b2tfork appended; and of the newer designs {', '.join(sorted(hosts.RECIPES))}"
        )
        self.files = files


def find_recipe(name: str) -> Recipe | None:
    """The recipe for what a golden file calls its variant, if this plugin has it."""
    base = ENDINGS.sub("", name)
    return next(filter(None, (recipe.match(base) for recipe in RECIPES)), None)


def refuse_other_kinds(path: Path) -> None:
    """
    Raises:
        OtherKind: by its name, ``path`` is something else than a golden file.
    """
    for pattern, reason in OTHER_KINDS.items():
        if re.search(pattern, path.stem):
            raise OtherKind(f"{path} is not verified: {reason}")
