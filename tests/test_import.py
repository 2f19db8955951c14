"""Checkpoints of the authors' code become checkpoints of this plugin that compute what the authors' code computed."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.models import build_model
from golden_files import FOLDER, provenance, tensors_of
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.plugin.checkpoints.fairseq_config import flat_settings
from fairseq_residuals.plugin.checkpoints.importing.importer import import_checkpoint
from fairseq_residuals.wirings.core.errors import UserError
from tests.golden_check.parity import compare, read

Settings = dict[str, Any]
HISTORY = {
    "criterion_name": "LabelSmoothedCrossEntropyCriterion",
    "optimizer_name": "FairseqAdam",
    "lr_scheduler_state": {"best": None},
    "num_updates": 7,
}


def parameters(name: str) -> dict[str, Tensor]:
    """Under the authors' names, the encoder's first.

    The decoder's embedding is the encoder's, as it is in checkpoints, if it equals it.
    """
    found = tensors_of(FOLDER / f"{name}.npz", "param/")
    found = dict(sorted(found.items(), key=lambda item: not item[0].startswith("encoder.")))
    first = found.get("encoder.embed_tokens.weight", found["decoder.embed_tokens.weight"])
    for key in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        if key in found and torch.equal(found[key], first):
            found[key] = first
    return found


def settings(name: str) -> Settings:
    """The authors' flags, from the golden's sidecar."""
    sidecar = provenance(FOLDER / f"{name}.npz")
    if "args" in sidecar:
        return {key: _value(text) for key, text in sidecar["args"].items()} | {"source_lang": "s", "target_lang": "t"}
    command = sidecar["cli_equivalent"]
    objects = re.search(r"\{.*\}", command)
    if objects:
        lone = sidecar.get("decoder_only", False)
        base = {"arch": "lm_base", "task": "language_modeling"} if lone else {"arch": json.loads(objects[0])["_name"]}
        return base | json.loads(objects[0]) | {"source_lang": "s", "target_lang": "t"}
    found: Settings = {"source_lang": "s", "target_lang": "t"}
    words = shlex.split(command)
    for i, word in enumerate(words):
        if word.startswith("--"):
            alone = i + 1 == len(words) or words[i + 1].startswith("--")
            found[word[2:].replace("-", "_")] = True if alone else _value(words[i + 1])
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def checkpoint(name: str, **changed: Any) -> dict[str, Any]:
    """In the layout of the authors' version of fairseq.

    Args:
        changed: settings that are other than the golden's; None takes one away.
    """
    chosen = {key: value for key, value in (settings(name) | changed).items() if value is not None}
    state: dict[str, Any] = {
        "model": parameters(name),
        "optimizer_history": [dict(HISTORY)],
        "extra_state": {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}, "val_loss": 2.5},
        "last_optimizer_state": None,
    }
    if not isinstance(chosen.get("encoder"), dict):
        return state | {"args": Namespace(**chosen)}
    task = {"_name": "translation", "data": "data", "source_lang": "s", "target_lang": "t"}
    optimizer = {"_name": chosen.pop("optimizer", "adam")}
    return state | {"args": None, "cfg": {"model": chosen, "task": task, "optimizer": optimizer}}


def write(folder: Path, name: str, **changed: Any) -> Path:
    path = folder / f"{name}.pt"
    torch.save(checkpoint(name, **changed), path)
    return path


def write_dictionaries(folder: Path) -> Path:
    """For all languages, 40 words with the 4 special symbols."""
    folder.mkdir(exist_ok=True)
    lines = "".join(f"w{i} 1\n" for i in range(36))
    for name in ("dict.txt", "dict.s.txt", "dict.t.txt"):
        (folder / name).write_text(lines)
    return folder


CASES = [
    ("b2t", "b2t_S", "b2t"),
    ("b2t", "b2t_noln_S", "b2t_no_ln"),
    ("b2t", "b2t_lm_S", "b2t"),
    ("resi_dual", "residual_s005_S", "resi_dual"),
    ("dlcl", "dlcl_pre_S", "dlcl_pre"),
    ("dlcl", "dlcl_post_fix1_S", "dlcl_post"),
    ("dlcl", "dlcl_pre_fixavg_noln_S", "dlcl_pre"),
    ("dlcl", "dlcl_pre_softmax_S", "dlcl_pre"),
    ("dlcl", "dlcl_pre_vector_S", "dlcl_pre"),
    ("dlcl", "simple_dlcl_post_S", "dlcl_post"),
    ("dlcl", "dlclrepo_prenorm_baseline_S", "pre_ln"),
    ("admin", "admin_S", "admin"),
    ("admin", "clinic_deepnet_S", "deepnet"),
    ("t_fixup", "tfixup_Sd", "t_fixup"),
    ("t_fixup", "tfixuprepo_preln_S", "pre_ln"),
    ("torchscale", "deepnet_S", "deepnet"),
    ("torchscale", "deepnet_lm_S", "deepnet"),
    ("torchscale", "subln_S", "sub_ln"),
    ("fairseq", "postln_S", "post_ln"),
    ("fairseq", "normformer_encdec_S", "pre_ln"),
    ("fairseq", "normformer_resids_lm_S", "normformer"),
]
NOT_IN_SIDECAR = {"normformer_resids_lm_S": {"activation_fn": "gelu"}}
"""What the architecture implied."""


ADAPTIVE = (
    *("--adaptive-input", "--adaptive-input-cutoff", "10,20", "--adaptive-softmax-cutoff", "10,20"),
    *("--adaptive-input-factor", "2", "--adaptive-softmax-factor", "2"),
    *("--tie-adaptive-weights", "--tie-adaptive-proj"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dictionaries(tmp_path_factory.mktemp("data") / "data")


@pytest.mark.parametrize(("repository", "name", "variant"), CASES, ids=[name for _, name, _ in CASES])
def test_what_is_imported_computes_the_same(
    repository: str, name: str, variant: str, data: Path, tmp_path: Path
) -> None:
    """Loaded by fairseq's own code, strictly; logits, gradients and the hypotheses of beam search."""
    imported = import_checkpoint(write(tmp_path, name, **NOT_IN_SIDECAR.get(name, {})), repository)
    assert imported.report[0].split()[1].rstrip(";") == variant
    save(imported.checkpoint, tmp_path / "imported.pt")
    (model,), _ = load_model_ensemble([str(tmp_path / "imported.pt")], arg_overrides={"data": str(data)})
    parity = compare(read(FOLDER / f"{name}.npz"), model)
    assert parity.failures() == {}
    assert parity.logits["evaluation"] <= 1e-5
    assert parity.scores


def dead_copies(model: dict[str, torch.Tensor], layers: str) -> dict[str, torch.Tensor]:
    """What fairseq 0.12.2 keeps beside the weights of every encoder layer."""
    names = {name.partition(".fc1.weight")[0] for name in model if name.startswith(layers) and ".fc1.weight" in name}
    shapes = {"in_proj_weight": (48, 16), "in_proj_bias": (48,), "out_proj_weight": (16, 16), "out_proj_bias": (16,)}
    shapes |= {"fc1_weight": (32, 16), "fc1_bias": (32,), "fc2_weight": (16, 32), "fc2_bias": (16,)}
    return {f"{name}.{key}": torch.zeros(shape) for name in names for key, shape in shapes.items()}


@pytest.mark.parametrize("before", [False, True], ids=("post", "pre"))
@pytest.mark.parametrize(
    ("task", "flags"),
    [
        ("speech", ()),
        ("language_modeling", ADAPTIVE),
        ("translation", ("--share-decoder-input-output-embed", "--encoder-learned-pos", "--layernorm-embedding")),
    ],
    ids=("speech", "adaptive", "learned positions"),
)
def test_models_of_fairseq_that_have_no_golden(task: str, flags: tuple[str, ...], before: bool, tmp_path: Path) -> None:
    stock = tiny.perturb(tiny.build_stock(task, *flags, normalize_before=before))
    args = Namespace(**vars(tiny.settings(tiny.STOCK[task], *tiny.dimensions(task), *flags)))
    args.encoder_normalize_before = args.decoder_normalize_before = before
    args.task = tiny.FAIRSEQ_TASKS[task]
    model = stock.state_dict()
    model |= dead_copies(model, "encoder.transformer_layers." if task == "speech" else "encoder.layers.")
    torch.save({"args": args, "model": model}, tmp_path / "stock.pt")
    imported = import_checkpoint(tmp_path / "stock.pt", "fairseq").checkpoint
    ours = build_model(imported["args"], tiny.make_task()).eval()
    ours.load_state_dict(imported["model"])
    inputs = tiny.batch(task)
    with torch.no_grad():
        assert torch.equal(tiny.logits(ours, task, inputs), tiny.logits(stock, task, inputs))


def report(repository: str, name: str, folder: Path, **changed: Any) -> list[str]:
    return import_checkpoint(write(folder, name, **changed), repository).report


def test_the_flags_are_printed(tmp_path: Path) -> None:
    line = report("t_fixup", "tfixup_Sd", tmp_path, dropout=0.3)[-1]
    for flag in ("--arch transformer_t_fixup", "--dropout=0.3", "--encoder-attention-heads=2", "--encoder-layers="):
        assert flag in line
    assert "normalize-before" not in line


def test_options_of_the_variant_are_kept(tmp_path: Path) -> None:
    args = import_checkpoint(write(tmp_path, "residual_s005_S"), "resi_dual").checkpoint["args"]
    assert "scale=0.05" in args.residual_args
    args = import_checkpoint(write(tmp_path, "dlcl_post_fix1_S"), "dlcl").checkpoint["args"]
    assert "weights=fixed_one" in args.residual_args and "softmax=false" in args.residual_args
    # modules/layer_history.py of the authors looks at no flag, and trains the weights
    path = write(tmp_path, "simple_dlcl_post_S", encoder_learnable=False, decoder_learnable=False)
    assert "weights=learned" in import_checkpoint(path, "dlcl").checkpoint["args"].residual_args


def test_settings_of_task_and_criterion_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "b2t_S", left_pad_source="False", max_positions=77)
    args = import_checkpoint(path, "b2t").checkpoint["args"]
    assert (args.source_lang, args.target_lang, args.left_pad_source) == ("s", "t", False)
    assert (args.max_source_positions, args.max_target_positions) == (77, 77)
    assert (args.criterion, args.label_smoothing) == ("label_smoothed_cross_entropy", 0.1)


def test_word_dropout_of_the_b2t_repository(tmp_path: Path) -> None:
    path = write(tmp_path, "b2t_S", sampling_method="worddrop", enc_replace_rate=0.1, dec_replace_rate=0.2)
    args = import_checkpoint(path, "b2t").checkpoint["args"]
    assert (args.encoder_word_dropout, args.decoder_word_dropout) == (0.1, 0.2)


def test_old_names_of_flags(tmp_path: Path) -> None:
    args = import_checkpoint(write(tmp_path, "dlcl_pre_S", relu_dropout=0.25), "dlcl").checkpoint["args"]
    assert args.activation_dropout == 0.25


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    state = checkpoint("b2t_S")
    state["model"] = {name: value.half() for name, value in state["model"].items()}
    torch.save(state, tmp_path / "half.pt")
    model = import_checkpoint(tmp_path / "half.pt", "b2t").checkpoint["model"]
    weight = model["decoder.layers.0.fc1.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, parameters("b2t_S")["decoder.layers.0.fc1.weight"].half().float())


def test_a_checkpoint_of_the_oldest_layout(tmp_path: Path) -> None:
    """fairseq before 0.5 kept the epoch and the loss beside the model; what is imported are the parameters."""
    state = checkpoint("dlcl_pre_S")
    del state["extra_state"], state["optimizer_history"]
    state |= {"epoch": 5, "batch_offset": 0, "val_loss": 1.5, "best_loss": 1.25, "optimizer": None}
    torch.save(state, tmp_path / "old.pt")
    imported = import_checkpoint(tmp_path / "old.pt", "dlcl").checkpoint
    assert imported["extra_state"] == {"train_iterator": {"epoch": 1}}
    newer = import_checkpoint(write(tmp_path, "dlcl_pre_S"), "dlcl").checkpoint
    assert all(torch.equal(imported["model"][name], value) for name, value in newer["model"].items())


@pytest.mark.parametrize(
    ("repository", "name", "changed", "note"),
    [
        ("b2t", "b2t_noln_S", {"no_layer_norm": False}, "--no-layer-norm is off, but it has no norms"),
        ("b2t", "postln_b2tfork_S", {"encoder_normalize_before": True}, "--encoder-normalize-before, but it has no"),
        ("fairseq", "preln_S", {"decoder_normalize_before": False}, "is off, but it has a norm on top of it"),
        ("dlcl", "dlcl_post_S", {"decoder_normalize_before": True}, "is on, but it has no norm on top"),
        ("admin", "admin_S", {"init_type": "default"}, "--init-type default, but it has omegas"),
        ("t_fixup", "tfixup_S", {"dont_use_layernorm": False}, "--dont-use-layernorm is off, but it has no norms"),
        ("torchscale", "subln_S", {"subln": False}, "--subln is off, but it has inner norms"),
        ("b2t", "b2t_S", {"encoder_layers": 30}, "--encoder-layers 30, but it has 2"),
        ("b2t", "b2t_S", {"share_all_embeddings": False}, "--share-all-embeddings is off, but it has one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameters_are_believed(
    repository: str, name: str, changed: dict[str, Any], note: str, tmp_path: Path
) -> None:
    notes = [line for line in report(repository, name, tmp_path, **changed) if line.startswith("note: ")]
    assert note in "\n".join(notes)
    assert all(line.endswith("which is what was taken") for line in notes)


@pytest.mark.parametrize(
    ("repository", "name", "changed", "reason"),
    [
        ("b2t", "preln_b2tfork_S", {"residual_bottom_to_top": True}, "the B2T connection around Pre-LN"),
        ("dlcl", "dlcl_pre_S", {"decoder_history_type": "dense"}, "the history 'dense'"),
        ("admin", "clinic_postln_S", {"init_type": "rezero"}, "--init-type rezero; those that can be are"),
        ("admin", "clinic_postln_S", {"init_type": "adaptive"}, "adaptive with its omegas"),
        ("torchscale", "deepnet_S", {"rel_pos_buckets": 32}, "--rel-pos-buckets, which this plugin does not carry"),
        ("torchscale", "subln_S", {"layernorm_eps": 1e-3}, "--layernorm-eps 0.001, and a model of fairseq has 1e-05"),
        ("b2t", "b2t_S", {"represent_length_by_ldpe": True}, "--represent-length-by-ldpe, which this plugin does not"),
        ("fairseq", "preln_S", {"layer_wise_attention": True}, "--layer-wise-attention, which this plugin does not"),
        ("torchscale", "preln_S", {"deepnorm": True}, "Pre-LN with DeepNorm's factor"),
        ("fairseq", "b2t_noln_S", {"residual_bottom_to_top": None}, "have no self_attn_layer_norm"),
        ("fairseq", "b2t_S", {}, "have --residual-bottom-to-top, which is of another repository: use --from b2t"),
        ("fairseq", "residual_S", {}, "use --from resi_dual"),
        ("t_fixup", "clinic_deepnet_S", {}, "use --from admin"),
        ("b2t", "deepnet_S", {}, "use --from torchscale"),
        ("fairseq", "postln_S", {"residual": "b2t"}, "it is a checkpoint of this plugin already"),
        ("fairseq", "admin_S", {"init_type": None}, "7 more; it may be of another repository than --from fairseq"),
        ("fairseq", "postln_S", {"task": "poetry"}, "task 'poetry' is none of this fairseq's"),
        ("fairseq", "postln_S", {"activation_fn": "softsign"}, "are not valid in this version of fairseq"),
        ("fairseq", "postln_S", {"encoder_layers_to_keep": "0"}, "layer pruning"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(repository: str, name: str, changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        report(repository, name, tmp_path, **changed)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("repository", "name", "what"),
    [("torchscale", "subln_S", "Sub-LN's inner norms"), ("fairseq", "normformer_resids_lm_S", "NormFormer's norms")],
)
def test_what_a_command_line_builds_around_post_ln_is_refused(
    repository: str, name: str, what: str, tmp_path: Path
) -> None:
    """Its decoder then is Post-LN, and has no norm on top."""
    state = checkpoint(name, decoder_normalize_before=None)
    state["model"] = {k: v for k, v in state["model"].items() if not k.startswith("decoder.layer_norm")}
    torch.save(state, tmp_path / "bug.pt")
    with pytest.raises(UserError, match=f"its decoder is Post-LN with {what}"):
        import_checkpoint(tmp_path / "bug.pt", repository)


def test_a_model_without_decoder_is_refused(tmp_path: Path) -> None:
    state = checkpoint("deepnet_S")
    state["model"] = {k: v for k, v in state["model"].items() if k.startswith("encoder.")}
    torch.save(state, tmp_path / "encoder.pt")
    with pytest.raises(UserError, match="it has no decoder"):
        import_checkpoint(tmp_path / "encoder.pt", "torchscale")


def test_what_a_model_leaves_empty_does_not_hide_what_its_task_says() -> None:
    """Such as the languages, without which a model is exported without a tokenizer, or translates the other way."""
    task, model = {"_name": "translation", "source_lang": "de"}, {"_name": "transformer_b2t", "source_lang": None}
    assert flat_settings({"cfg": {"task": task, "model": model}})["source_lang"] == "de"
    assert flat_settings({"cfg": {"task": task, "model": model | {"source_lang": "fr"}}})["source_lang"] == "fr"


# settings of another's checkpoint are data: never parsed as a command line, never another type


def user_dir(folder: Path) -> tuple[Path, Path]:
    """A folder that, imported, leaves a trace, and the trace."""
    trace = folder / "trace"
    plugin = folder / f"plugin_{folder.name}"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    return plugin, trace


@pytest.mark.parametrize("key", ["data", "source_lang", "activation_fn", "task", "criterion"])
def test_no_setting_of_a_file_is_parsed_as_a_command_line(key: str, tmp_path: Path) -> None:
    plugin, trace = user_dir(tmp_path)
    path = write(tmp_path, "postln_S", **{key: f"--user-dir={plugin}"})
    with contextlib.suppress(UserError):  # some are refused, but none may be followed
        assert import_checkpoint(path, "fairseq").checkpoint["args"].user_dir is None
    assert not trace.exists()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"encoder_attention_heads": "two"}, "encoder_attention_heads must be a whole number, not 'two'"),
        ({"encoder_attention_heads": [2]}, "encoder_attention_heads must be a whole number, not [2]"),
        ({"encoder_attention_heads": 2.5}, "encoder_attention_heads must be a whole number, not 2.5"),
        ({"dropout": {"a": 1}}, "dropout must be a number, not {'a': 1}"),
        ({"no_scale_embedding": "perhaps"}, "no_scale_embedding must be true or false, not 'perhaps'"),
        ({"adaptive_softmax_cutoff": [[1], 2]}, "adaptive_softmax_cutoff must be text, not [[1], 2]"),
        ({"label_smoothing": "much", "criterion": "label_smoothed_cross_entropy"}, "label_smoothing must be a number"),
        ({"left_pad_source": 3}, "left_pad_source must be true or false, not 3"),
        ({"data": {"a": 1}}, "data must be text"),
        ({"arch": ["transformer"]}, "arch must be a name, not ['transformer']"),
        ({"task": {"translation": 1}}, "task must be a name"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_of_another_type_are_refused(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        import_checkpoint(write(tmp_path, "postln_S", **changed), "fairseq")
    assert reason in str(error.value)
