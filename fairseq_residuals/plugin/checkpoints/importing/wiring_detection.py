"""Detection of the variant in a checkpoint of the authors' repositories, from its parameters and its settings.

Where the two contradict each other the parameters are believed, for the flags of some repositories do not say what
they build.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS, FAIRSEQ_NORMS

Side = Literal["encoder", "decoder"]
Choice = tuple[str, str]
"""Values of --residual and --residual-args."""


@dataclass
class Found:
    """Contents of a checkpoint."""

    name: str
    """Name of the file."""
    settings: Settings
    parameters: dict[str, Tensor]
    """Parameters by the names of this plugin's checkpoints."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user on how the checkpoint was read."""

    def in_layers(self, side: Side, parameter: str) -> bool:
        """Return whether a layer of ``side`` has a parameter, such as ``w_resid``."""
        starts = (f"{side}.layers.", f"{side}.transformer_layers.")
        return any(name.startswith(starts) and f".{parameter}" in name for name in self.parameters)

    def top_norm(self, side: Side) -> bool:
        return f"{side}.layer_norm.weight" in self.parameters

    def norms(self, side: Side) -> bool:
        """Return whether its layers have the norms of the Transformer."""
        return self.in_layers(side, FAIRSEQ_NORMS["self"])

    def note(self, said: str, found: str) -> None:
        text = f"its settings say {said}, but it has {found}, which is what was taken"
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, what: str) -> NoReturn:
        raise UserError(f"{self.name} cannot be imported: {what}")


@dataclass(frozen=True)
class Imported:
    """Result of the import of a checkpoint."""

    checkpoint: dict[str, Any]
    """A checkpoint as fairseq-train writes it."""
    report: list[str]
    """Findings, in lines for the user."""


ONLY_IN = {
    "residual_bottom_to_top": "b2t",
    "enc_res_input_norm_scale": "resi_dual",
    "dec_res_input_norm_scale": "resi_dual",
    "init_type": "admin",
    "deepnorm": "torchscale",
    "subln": "torchscale",
    **dict.fromkeys(("rel_pos_buckets", "xpos_rel_pos", "moe_freq", "multiway", "segment_length"), ""),  # of torchscale
    **dict.fromkeys(("layer_wise_attention", "represent_length_by_lrpe", "represent_length_by_ldpe"), ""),
}
"""Settings that change what is computed and may leave no trace in the parameters; whose they are, "" if not carried."""


def check_repository(repository: str, found: Found) -> None:
    """Check that the checkpoint can be of this repository.

    Args:
        repository: a key of :data:`fairseq_residuals.plugin.checkpoints.importing.parameter_names.AUTHORS`.

    Raises:
        UserError: its settings are another's.
    """
    if found.settings.get("residual"):
        found.refuse("it is a checkpoint of this plugin already, which export and fairseq-generate take as it is")
    for key, owner in ONLY_IN.items():
        if owner != repository and found.settings.get(key) not in (None, False, "default"):
            flag = f"--{key.replace('_', '-')}"
            where = f"is of another repository: use --from {owner}" if owner else "this plugin does not carry"
            found.refuse(f"its settings have {flag}, which {where}")


def sides(found: Found) -> list[Side]:
    """Return the stacks that it has, encoder first.

    Raises:
        UserError: it has no decoder.
    """
    names: tuple[Side, ...] = ("encoder", "decoder")
    present = [side for side in names if any(name.startswith(f"{side}.") for name in found.parameters)]
    if "decoder" not in present:
        found.refuse("it has no decoder; what can be imported are encoder-decoder models and language models")
    return present


def wiring(repository: str, found: Found) -> dict[Side, Choice]:
    """Return the variant of each stack, encoder first.

    Raises:
        UserError: it is something that this plugin does not have.
    """
    return {side: RULES[repository](found, side) for side in sides(found)}


def _refuse_around_post_ln(found: Found, side: Side, norms: str) -> None:
    """Refuse a stack with such norms, of which a repository's own flags make something else than a paper's."""
    if not found.top_norm(side) and not found.settings.get(f"{side}_normalize_before"):
        found.refuse(
            f"its {side} is Post-LN with {norms} without --{side}-normalize-before; this plugin has no variant for it"
        )


def _fairseq(found: Found, side: Side) -> Choice:
    before, top = found.settings.get(f"{side}_normalize_before"), found.top_norm(side)
    if not found.norms(side):
        found.refuse(f"the layers of its {side} have no {FAIRSEQ_NORMS['self']}")
    extras = {
        "scale_attn": found.in_layers(side, "attn_ln."),
        "scale_fc": found.in_layers(side, "ffn_layernorm."),
        "scale_heads": found.in_layers(side, "c_attn"),
        "scale_resids": found.in_layers(side, "w_resid"),
    }
    if any(extras.values()):
        _refuse_around_post_ln(found, side, "NormFormer's norms or gains, which fairseq builds where it is")
        options = [f"{name}={str(value).lower()}" for name, value in extras.items()]
        return "normformer", ",".join([*options, "cross=false", f"final_norm={str(top).lower()}"])
    if top:
        if before is not None and not before:
            found.note(f"--{side}-normalize-before is off", "a norm on top of it, as Pre-LN")
        return "pre_ln", "final_norm=true"
    if before and not (side == "decoder" and found.settings.get("no_decoder_final_norm")):
        found.note(f"--{side}-normalize-before", "no norm on top of it, as before fairseq 0.6")
    return ("pre_ln", "final_norm=false") if before else ("post_ln", "")


def _b2t(found: Found, side: Side) -> Choice:
    bottom, norms = found.settings.get("residual_bottom_to_top"), found.norms(side)
    if norms == bool(found.settings.get("no_layer_norm")):
        found.note(f"--no-layer-norm is {'on' if norms else 'off'}", "norms" if norms else "no norms")
    if not norms and found.top_norm(side):
        found.refuse(f"its {side} has a norm on top and none in its layers, which this plugin has no variant for")
    if not norms:
        return ("b2t_no_ln", "") if bottom else ("t_fixup", "")
    if not bottom:
        return _fairseq(found, side)
    if found.top_norm(side) or found.settings.get(f"{side}_normalize_before"):
        found.refuse(f"its {side} has the B2T connection around Pre-LN; this plugin has it around Post-LN only")
    return "b2t", ""


def _resi_dual(found: Found, side: Side) -> Choice:
    if "resi_dual" not in str(found.settings.get("arch")):
        return _fairseq(found, side)
    scale = found.settings.get(f"{side[:3]}_res_input_norm_scale", 1.0)
    return "resi_dual", f"scale={scale},alpha={found.settings.get(f'{side[:3]}_alpha', 1.0)}"


def _dlcl(found: Found, side: Side) -> Choice:
    weights = found.parameters.get(f"{side}.layers.wiring.weight")
    if weights is None:
        return _fairseq(found, side)
    kind = found.settings.get(f"{side}_history_type")
    if kind not in (None, "learnable_dense"):
        found.refuse(f"its {side} has the history {kind!r}; this plugin has learnable_dense")
    top = found.top_norm(side)
    before = found.settings.get(f"{side}_normalize_before")
    if before is not None and bool(before) != top:
        found.note(
            f"--{side}-normalize-before is {'on' if before else 'off'}", f"{'a' if top else 'no'} norm on top of it"
        )
    width = found.parameters[f"{side}.layers.0.fc1.weight"].shape[1]
    types = {1: "scalar", width: "vector"}
    if weights.shape[-1] not in types:
        found.refuse(f"its weights of layers are in {weights.shape[-1]} groups; this plugin has scalar and vector")
    options: dict[str, Any] = {
        "weights": "learned",
        "norm": str(any(name.startswith(f"{side}.layers.wiring.norms.") for name in found.parameters)).lower(),
        "weight_type": types[weights.shape[-1]],
        "softmax": str(bool(found.settings.get("normalize_learned_weight"))).lower(),
        "window": max(0, int(found.settings.get("history_window_size") or 0)),
        "history_dropout": found.settings.get("history_dropout") or 0.0,
    }
    if kind is None and found.settings.get(f"{side}_learnable") in (False, 0):  # simple_dlcl_* looks at none
        lower = weights[..., 0][torch.ones(weights.shape[:2]).tril().bool()]
        options["weights"] = "fixed_one" if bool((lower == 1).all()) else "fixed_average"
    return "dlcl_pre" if top else "dlcl_post", ",".join(f"{name}={value}" for name, value in options.items())


def _admin(found: Found, side: Side) -> Choice:
    kind = found.settings.get("init_type", "default")
    if found.in_layers(side, f"{CONNECTIONS['self']}.omega"):
        if not str(kind).startswith("adaptive"):
            found.note(f"--init-type {kind}", "omegas, as Admin")
        return "admin", ""
    if kind == "deepnet":
        return "deepnet", ""
    if kind != "default":
        found.refuse(f"--init-type {kind}; those that can be are default, deepnet, and adaptive with its omegas")
    return _fairseq(found, side)


def _t_fixup(found: Found, side: Side) -> Choice:
    if found.norms(side) == bool(found.settings.get("dont_use_layernorm")):
        has = found.norms(side)
        found.note(f"--dont-use-layernorm is {'on' if has else 'off'}", "norms" if has else "no norms")
    return _fairseq(found, side) if found.norms(side) else ("t_fixup", "")


def _torchscale(found: Found, side: Side) -> Choice:
    if (eps := found.settings.get("layernorm_eps", 1e-5)) != 1e-5:
        found.refuse(f"its settings have --layernorm-eps {eps}, and a model of fairseq has 1e-05")
    inner, top = found.in_layers(side, f"{CONNECTIONS['self']}.inner_norm."), found.top_norm(side)
    if inner != bool(found.settings.get("subln")):
        found.note(f"--subln is {'off' if inner else 'on'}", f"{'' if inner else 'no '}inner norms")
    if inner:
        _refuse_around_post_ln(found, side, "Sub-LN's inner norms, which torchscale builds where --subln is given")
        return "sub_ln", f"final_norm={str(top).lower()}"
    if found.settings.get("deepnorm") and top:
        found.refuse(
            f"its {side} is Pre-LN with DeepNorm's factor, which torchscale builds where --deepnorm is given for an"
            " architecture that is Pre-LN; this plugin has no variant for it"
        )
    return ("deepnet", "") if found.settings.get("deepnorm") else _fairseq(found, side)


RULES: dict[str, Callable[[Found, Side], Choice]] = {
    "b2t": _b2t,
    "resi_dual": _resi_dual,
    "dlcl": _dlcl,
    "admin": _admin,
    "t_fixup": _t_fixup,
    "torchscale": _torchscale,
    "fairseq": _fairseq,
}
