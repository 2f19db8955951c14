"""The state of the authors' optimizer follows its parameters into this plugin's model, or it is said why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from authors_checkpoints import checkpoint
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.importing.importer import Imported, import_checkpoint
from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS, translate
from fairseq_residuals.wirings.core.layer import FAIRSEQ_NORMS

GROUP = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
State = dict[str, Any]


def learned(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters that an optimizer is given, in its order."""
    places = {value.data_ptr(): name for name, value in reversed(model.items())}
    names = [name for name in model if name in places.values()]
    return {name: model[name] for name in names if not name.endswith((".version", "._float_tensor"))}


def adam(parameters: dict[str, Tensor], without: Callable[[str], bool] = lambda name: False) -> State:
    """As Adam has it after 7 updates: moments that tell where they belong; none for what never had a gradient."""
    state = {
        i: {"step": 7, "exp_avg": moment(name, value), "exp_avg_sq": moment(name, value) ** 2}
        for i, (name, value) in enumerate(parameters.items())
        if not without(name)
    }
    return {"state": state, "param_groups": [GROUP | {"params": list(range(len(parameters)))}]}


def moment(name: str, value: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31)
    return torch.randn(value.shape, generator=generator)


def do_import(folder: Path, repository: str, name: str, change: Callable[[State], object], **settings: Any) -> Imported:
    state = checkpoint(name, optimizer="adam", **settings)
    change(state)
    torch.save(state, folder / "authors.pt")
    return import_checkpoint(folder / "authors.pt", repository)


def by_name(imported: Imported) -> dict[str, State]:
    """The state of each parameter of the imported model."""
    state = imported.checkpoint["last_optimizer_state"]
    names = list(learned(imported.checkpoint["model"]))
    assert state["param_groups"] == [GROUP | {"params": list(range(len(names)))}]
    return {names[i]: own for i, own in state["state"].items()}


@pytest.mark.parametrize(
    ("repository", "name", "no_gradient"),
    [
        ("b2t", "b2t_S", ""),
        ("torchscale", "deepnet_S", ""),
        ("fairseq", "preln_fsmain_lm_S", ""),
        ("resi_dual", "residual_S", "dead"),
        ("t_fixup", "tfixup_S", FAIRSEQ_NORMS["cross"]),
        ("t_fixup", "tfixup_Sd", FAIRSEQ_NORMS["cross"]),
        ("dlcl", "dlcl_pre_S", ""),
        ("dlcl", "simple_dlcl_post_S", ""),
        ("admin", "admin_S", ""),
        ("admin", "clinic_deepnet_S", ""),
    ],
)
def test_moments_follow_their_parameters(repository: str, name: str, no_gradient: str, tmp_path: Path) -> None:
    dead = (".in_proj_", ".out_proj_", ".fc1_", ".fc2_") if no_gradient == "dead" else (no_gradient or "nothing",)

    def without(parameter: str) -> bool:
        return any(text in parameter.replace("self_attn.", "") for text in dead)

    def change(state: State) -> None:
        parameters = learned(state["model"])
        state["last_optimizer_state"] = adam(parameters, without)

    imported = do_import(tmp_path, repository, name, change)
    assert imported.report[-2] == "the state of optimizer adam is kept, after 7 updates"
    expected = translate(
        {key: moment(key, value) for key, value in learned(checkpoint(name)["model"]).items()}, AUTHORS[repository]
    )
    found = by_name(imported)
    assert set(found) == set(learned(imported.checkpoint["model"])) == set(expected)
    for parameter, own in found.items():
        assert own["step"] == 7 and isinstance(own["step"], int)
        assert torch.equal(own["exp_avg"], expected[parameter])
        assert torch.equal(own["exp_avg_sq"], expected[parameter] ** 2)


def test_parameters_by_their_addresses(tmp_path: Path) -> None:
    """As PyTorch had them until 1.5."""

    def change(state: State) -> None:
        new = adam(learned(state["model"]))
        (group,) = new["param_groups"]
        address = {i: 140_000_000 - 640 * i for i in group["params"]}
        state["last_optimizer_state"] = {
            "state": {address[i]: own for i, own in reversed(new["state"].items())},
            "param_groups": [group | {"params": list(address.values())}],
        }

    def as_today(state: State) -> None:
        state["last_optimizer_state"] = adam(learned(state["model"]))

    old, today = (do_import(tmp_path, "b2t", "b2t_S", change) for change in (change, as_today))
    assert old.report == today.report
    for name, own in by_name(today).items():
        assert all(torch.equal(own[key], by_name(old)[name][key]) for key in ("exp_avg", "exp_avg_sq"))


def test_the_moments_of_a_joint_projection_are_split(tmp_path: Path) -> None:
    """Independently of the translation of names: thirds of rows, in the order of queries, keys, values."""

    def change(state: State) -> None:
        state["last_optimizer_state"] = adam(learned(state["model"]))

    found = by_name(do_import(tmp_path, "admin", "admin_S", change))
    joint = "decoder.layers.1.encoder_attn.in_proj_weight"
    whole = moment(joint, torch.empty(48, 16))
    for i, part in enumerate("qkv"):
        own = found[f"decoder.layers.1.encoder_attn.{part}_proj.weight"]
        assert torch.equal(own["exp_avg"], whole[16 * i : 16 * (i + 1)])
    omega = found["encoder.layers.0.self_attn_connection.omega"]["exp_avg"]
    assert torch.equal(omega, moment("encoder.layers.0.attention_ratio_change", torch.empty(16)))


def test_weights_that_are_fixed_have_no_state(tmp_path: Path) -> None:
    def change(state: State) -> None:
        parameters = {key: value for key, value in learned(state["model"]).items() if "history.weight" not in key}
        state["last_optimizer_state"] = adam(parameters)

    imported = do_import(tmp_path, "dlcl", "dlcl_post_fix1_S", change)
    assert "is kept" in imported.report[-2]
    count = len(imported.checkpoint["last_optimizer_state"]["param_groups"][0]["params"])
    assert count == len(learned(imported.checkpoint["model"])) - 2


@pytest.mark.parametrize(("repository", "name"), [("b2t", "b2t_S"), ("resi_dual", "residual_S"), ("admin", "admin_S")])
def test_the_one_vector_of_half_precision(repository: str, name: str, tmp_path: Path) -> None:
    def change(state: State) -> None:
        moments = [moment(key, value).flatten() for key, value in learned(state["model"]).items()]
        own = {"step": 7, "exp_avg": torch.cat(moments), "exp_avg_sq": torch.cat(moments) ** 2}
        state["last_optimizer_state"] = {
            "state": {0: own},
            "param_groups": [GROUP | {"params": [0]}],
            "loss_scale": 4.0,
        }

    imported = do_import(tmp_path, repository, name, change)
    state = imported.checkpoint["last_optimizer_state"]
    assert state["loss_scale"] == 4.0 and state["param_groups"] == [GROUP | {"params": [0]}]
    moments = translate(
        {key: moment(key, value) for key, value in learned(checkpoint(name)["model"]).items()}, AUTHORS[repository]
    )
    expected = torch.cat([moments[key].flatten() for key in learned(imported.checkpoint["model"])])
    assert torch.equal(state["state"][0]["exp_avg"], expected)
    assert torch.equal(state["state"][0]["exp_avg_sq"], expected**2)
    assert state["state"][0]["step"] == 7


@pytest.mark.parametrize(
    ("change", "settings", "reason"),
    [
        (lambda p: None, {}, "there is none"),
        (lambda p: adam(dict(list(p.items())[1:])), {}, "it is of 84 parameters, and the checkpoint has 85"),
        (adam, {"optimizer": "radam"}, "the layout of radam's is not known"),
        (lambda p: adam({k: torch.empty(3) for k in p}), {}, "its exp_avg does not fit the parameters"),
        (lambda p: adam(p) | {"param_groups": [GROUP, GROUP]}, {}, "it has several groups of parameters"),
        (
            lambda p: {"state": {0: {"exp_avg": torch.empty(5)}}, "param_groups": [{"params": [0]}]},
            {},
            "it is of 5 numbers, and the checkpoint has 11,776",
        ),
    ],
    ids=("none", "one too few", "radam", "shapes", "groups", "flat"),
)
def test_left_out_with_the_reason(change: Any, settings: State, reason: str, tmp_path: Path) -> None:
    state = checkpoint("b2t_S", **({"optimizer": "adam"} | settings))
    state["last_optimizer_state"] = change(learned(state["model"]))
    torch.save(state, tmp_path / "authors.pt")
    imported = import_checkpoint(tmp_path / "authors.pt", "b2t")
    assert imported.checkpoint["last_optimizer_state"] is None
    assert f"the optimizer's state is left out ({reason}" in imported.report[-2]
