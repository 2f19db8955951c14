"""Reads golden files, in whichever layout they come."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fairseq_residuals.checkpoints.importing.parameter_names import Authors, authors_of, translate
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification.golden_file import (
    PAD,
    Arrays,
    Generation,
    Golden,
    Hypothesis,
    Sizes,
    flat_activations,
)
from fairseq_residuals.verification.golden_neutron import read_neutron

LOSSES = {
    "train": "train_own",
    "eval": "eval_own",
    "fairseq-0.9": "eval_ls_fairseq09",
    "fairseq-0.12": "eval_ls_fairseq012",
    "nll": "eval_nll",
}
SIZES = {
    "config_values": {
        "encoder_layers": "el",
        "decoder_layers": "dl",
        "dim": "d",
        "ffn_dim": "f",
        "heads": "h",
    },
    "hyper": {
        "encoder_layers": "enc",
        "decoder_layers": "dec",
        "dim": "d",
        "ffn_dim": "ffn",
        "heads": "heads",
    },
}
"""By the section of the sidecar, the keys under which it has the sizes."""


def read_golden(path: Path, sidecar: dict[str, Any]) -> Golden:
    """Reads ``path`` in whichever layout it has.

    Args:
        sidecar: its description.

    Raises:
        UserError: the file is damaged, or it or its description lacks something that its layout has.
    """
    arrays, authors = Arrays(path), authors_of(sidecar.get("repo"))
    if "in/loss_weight" in arrays.names:
        golden, layer = _read_encoder(arrays, sidecar, authors), "out/{}_layer{}"
    elif "in/prev_output_tokens" in arrays.names:
        golden, layer = _read_slashed(arrays, sidecar, authors), "out/{}_layer{}"
    elif "param/enc.wemb.weight" in arrays.names:
        golden, layer = read_neutron(arrays, _sizes(arrays, sidecar, "hyper")), "{}_layer_{}"
    elif "prev_output_tokens" in arrays.names:
        golden, layer = _read_flat(arrays, sidecar, authors), "{}_layer_{}"
    else:
        raise UserError(
            f"{path} has no layout of golden files: it holds no in/prev_output_tokens or prev_output_tokens"
        )
    for stack, depth in (("enc", golden.sizes.encoder_layers), ("dec", golden.sizes.decoder_layers)):
        for i in range(depth):
            arrays.need(layer.format(stack, i))
    for name, generation in golden.generations.items():
        given = generation.prefix if generation.src_tokens is None else generation.src_tokens
        if given is not None and len(generation.sentences) != len(given):
            found = len(generation.sentences)
            raise UserError(f"{path}: gen/{name} has {found} sentences instead of {len(given)}")
    return golden


def _read_slashed(arrays: Arrays, sidecar: dict[str, Any], authors: Authors) -> Golden:
    """Layout 1: in/src_tokens, out/enc_layer0, loss/train_own, gen/beam4/0/0/tokens."""
    alone = bool(sidecar.get("decoder_only", False))
    smoothing = str(sidecar.get("loss_formula", "")).partition(":")[0]
    if smoothing not in ("fairseq-0.9", "fairseq-0.12"):
        raise UserError(
            f"{arrays.path.with_suffix('.json')}: loss_formula must start with fairseq-0.9: or fairseq-0.12:"
        )
    computed = arrays.under("out/") | arrays.under("sub/")
    logits = arrays.need("out/logits")
    return Golden(
        path=arrays.path,
        sizes=_sizes(arrays, sidecar, "config_values", absent="encoder_layers" if alone else ""),
        parameters=translate(arrays.under("param/"), authors),
        gradients=translate(arrays.under("grad/"), authors),
        src_tokens=None if alone else arrays.need("in/src_tokens"),
        src_lengths=None if alone else arrays.need("in/src_lengths"),
        prev_output_tokens=arrays.need("in/prev_output_tokens"),
        target=arrays.need("in/target"),
        activations={name: value for name, value in computed.items() if name != "logits"},
        logits={"evaluation": logits, "training": arrays.under("train/").get("logits", logits)},
        losses={kind: arrays.need(f"loss/{name}").item() for kind, name in LOSSES.items()},
        smoothing=smoothing,
        epsilon=_label_smoothing(str(sidecar.get("cli_equivalent", ""))),
        generations=_slashed_generations(arrays, sidecar.get("generation", {}), alone),
    )


def _read_encoder(arrays: Arrays, sidecar: dict[str, Any], authors: Authors) -> Golden:
    """An encoder alone in layout 1: in/loss_weight, param/layers.0.fc1.weight."""
    source = arrays.need("in/src_tokens")
    return Golden(
        path=arrays.path,
        sizes=_sizes(arrays, sidecar, "config_values", absent="decoder_layers"),
        parameters=translate({f"encoder.{name}": x for name, x in arrays.under("param/").items()}, authors),
        gradients=translate({f"encoder.{name}": x for name, x in arrays.under("grad/").items()}, authors),
        src_tokens=source,
        src_lengths=source.ne(PAD).sum(-1),
        prev_output_tokens=None,
        target=None,
        activations=arrays.under("out/"),
        logits={},
        output_weight=arrays.need("in/loss_weight"),
    )


def _slashed_generations(arrays: Arrays, settings: dict[str, Any], alone: bool) -> dict[str, Generation]:
    hypotheses: dict[str, dict[int, list[Hypothesis]]] = {}
    keys = [m for m in map(re.compile(r"gen/(\w+)/(\d+)/(\d+)/tokens").fullmatch, arrays.names) if m]
    for key in sorted(keys, key=lambda m: (m[1], int(m[2]), int(m[3]))):
        prefix = key[0].removesuffix("tokens")
        hypothesis = Hypothesis(
            arrays.need(f"{prefix}tokens"),
            arrays.need(f"{prefix}score").item(),
            arrays.need(f"{prefix}positional_scores"),
        )
        hypotheses.setdefault(key[1], {}).setdefault(int(key[2]), []).append(hypothesis)
    return {
        name: Generation(
            beam=1 if name == "greedy" else int(name.removeprefix("beam")),
            max_len=int(settings.get("max_len_b", 20)),
            min_len=int(settings.get("min_len", 1)),
            lenpen=float(settings.get("lenpen", 1.0)),
            src_tokens=None if alone else arrays.need("in/src_tokens"),
            prefix=arrays.need("in/gen_prefix") if alone else None,
            sentences=list(sentences.values()),
        )
        for name, sentences in hypotheses.items()
    }


def _read_flat(arrays: Arrays, sidecar: dict[str, Any], authors: Authors) -> Golden:
    """Layout 2: src_tokens, enc_layer_0, loss, gen/tokens; its repositories are older than fairseq 0.10."""
    logits = arrays.need("logits")
    return Golden(
        path=arrays.path,
        sizes=_sizes(arrays, sidecar, "hyper"),
        parameters=translate(arrays.under("param/"), authors),
        gradients=translate(arrays.under("grad/"), authors),
        src_tokens=arrays.need("src_tokens"),
        src_lengths=arrays.need("src_lengths"),
        prev_output_tokens=arrays.need("prev_output_tokens"),
        target=arrays.need("target"),
        activations=flat_activations(arrays),
        logits={"evaluation": logits, "training": logits}
        | ({"incremental": arrays.need("logits_incremental")} if "logits_incremental" in arrays.names else {}),
        losses={"train": arrays.need("loss").item(), "nll": arrays.need("nll_loss").item()},
        smoothing="fairseq-0.9",
        epsilon=_label_smoothing(" ".join(map(str, sidecar.get("argv", [])))),
        generations={"beam": _flat_generation(arrays)} if "gen/tokens" in arrays.names else {},
    )


def _flat_generation(arrays: Arrays) -> Generation:
    tokens, scores, positional = (arrays.need(f"gen/{name}") for name in ("tokens", "scores", "positional_scores"))
    lengths = tokens.ne(PAD).sum(-1)
    sentences = [
        [Hypothesis(tokens[i, rank, :n], scores[i, rank].item(), positional[i, rank, :n]) for rank, n in enumerate(row)]
        for i, row in enumerate(lengths.tolist())
    ]
    return Generation(
        beam=tokens.shape[1],
        max_len=20,
        min_len=1,
        lenpen=1.0,
        src_tokens=arrays.need("gen/src_tokens"),
        prefix=None,
        sentences=sentences,
    )


def _sizes(arrays: Arrays, sidecar: dict[str, Any], section: str, absent: str = "") -> Sizes:
    values = sidecar.get(section)
    sizes = {}
    for name, key in SIZES[section].items():
        value = values.get(key) if isinstance(values, dict) else None
        if name == absent:
            value = 0
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(
                f"{arrays.path.with_suffix('.json')}: {section}.{key} must be a whole number of at least 1,"
                f" not {value!r}"
            )
        sizes[name] = value
    return Sizes(**sizes)


def _label_smoothing(command: str) -> float:
    """Of a command line; the harness that made the files used 0.1 where the command line does not tell."""
    found = re.search(r"--label-smoothing[ =]([\d.]+)", command)
    return float(found[1]) if found else 0.1
