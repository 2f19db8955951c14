"""Golden files of any size, made with stock fairseq, for the plugin's post_ln and pre_ln to reproduce."""

from __future__ import annotations

import argparse
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from fairseq.sequence_generator import SequenceGenerator
from tiny import EOS, PAD, TinyTask, make_dictionary, perturb
from torch.nn.utils.rnn import pad_sequence

from tests.golden_check.archive import write

EPSILON = 0.1
SIZES = {"el": 3, "dl": 1, "d": 24, "f": 20, "h": 3, "vs": 50, "vt": 37, "shared": False, "seed": 0}


def write_golden(folder: Path, name: str, *, decoder_only: bool, fork: bool) -> Path:
    """Writes ``<name>_H.npz`` with its sidecar: three layers against one, three heads, no embeddings shared.

    Args:
        name: postln or preln, with the ending _lm for ``decoder_only``.
        fork: give parameters the names of fairseq 0.9.
    """
    torch.manual_seed(3)
    model = perturb(_build(decoder_only, name.startswith("preln")), scale=0.2)
    arrays = _batch(decoder_only)
    arrays |= {f"param/{key}": value for key, value in model.state_dict().items()}
    arrays |= _computed(model, arrays, decoder_only)
    for beam, label in ((4, "beam4"), (1, "greedy")):
        arrays |= _generated(model, arrays, decoder_only, beam, f"gen/{label}")
    if fork:
        arrays = {key.replace("output_projection.weight", "embed_out"): value for key, value in arrays.items()}
        arrays["param/decoder.embed_positions_original._float_tensor"] = torch.zeros(1)
    if not decoder_only:
        arrays["gen/src_tokens"] = arrays["in/src_tokens"]
    path = folder / f"{name}_H.npz"
    described = {"variant": name, "sizes": {"heads": SIZES["h"]}, "provenance": {}, "pad": PAD}
    described |= {"loss": "fairseq-0.12", "label_smoothing": EPSILON}
    described |= {"generation": {"lenpen": 1.0, "max_len": 20, "min_len": 1}}
    write(path, {key: value.detach().numpy() for key, value in arrays.items()}, described)
    return path


def _build(decoder_only: bool, normalize_before: bool) -> Any:
    arch = "transformer_lm_big" if decoder_only else "transformer"
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    flags = ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]
    for side, layers in (("encoder", "el"), ("decoder", "dl")):
        if side == "decoder" or not decoder_only:
            flags += [f"--{side}-layers", str(SIZES[layers]), f"--{side}-embed-dim", str(SIZES["d"])]
            flags += [
                f"--{side}-ffn-embed-dim",
                str(SIZES["f"]),
                f"--{side}-attention-heads",
                str(SIZES["h"]),
            ]
    args = parser.parse_args(flags)
    args.max_target_positions = args.tokens_per_sample = 64
    ARCH_CONFIG_REGISTRY[arch](args)
    args.encoder_normalize_before = args.decoder_normalize_before = normalize_before
    if decoder_only:
        args = Namespace(**{**vars(TransformerLanguageModelConfig()), **vars(args)})
    target = make_dictionary(SIZES["vt"] - 4)
    source = target if decoder_only else make_dictionary(SIZES["vs"] - 4)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, TinyTask(source, target, args)).eval()


def _batch(decoder_only: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    target = _sentences([4, 7, 5], SIZES["vt"], generator)
    previous = target.roll(1, 1)
    previous[:, 0] = EOS
    previous[target.eq(PAD)] = PAD
    batch = {"in/prev_output_tokens": previous, "in/target": target}
    if decoder_only:
        return batch | {"gen/prefix": target[:, :2].clone()}
    source = _sentences([8, 3, 6], SIZES["vs"], generator)
    return batch | {"in/src_tokens": source, "in/src_lengths": source.ne(PAD).sum(-1)}


def _sentences(lengths: list[int], words: int, generator: torch.Generator) -> torch.Tensor:
    out = torch.randint(4, words, (len(lengths), max(lengths)), generator=generator)
    for row, n in zip(out, lengths, strict=True):
        row[n - 1] = EOS
        row[n:] = PAD
    return out


def _inputs(arrays: dict[str, torch.Tensor], decoder_only: bool) -> list[torch.Tensor]:
    names = ["prev_output_tokens"] if decoder_only else ["src_tokens", "src_lengths", "prev_output_tokens"]
    return [arrays[f"in/{name}"] for name in names]


def _computed(model: Any, arrays: dict[str, torch.Tensor], decoder_only: bool) -> dict[str, torch.Tensor]:
    """Activations, losses and gradients."""
    found: dict[str, torch.Tensor] = {}

    def keep(name: str, module: Any, inputs: Any, output: Any) -> None:
        found[f"out/{name}"] = (output[0] if isinstance(output, tuple) else output).transpose(0, 1)

    def keep_input(name: str, module: Any, inputs: Any) -> None:
        found[f"out/{name}"] = inputs[0].transpose(0, 1)

    for side in ("dec",) if decoder_only else ("enc", "dec"):
        layers = getattr(model, f"{side}oder").layers
        layers[0].register_forward_pre_hook(partial(keep_input, f"{side}_embed"))
        for i, layer in enumerate(layers):
            layer.register_forward_hook(partial(keep, f"{side}_layer{i}"))
    if not decoder_only:
        encoder_out = model.encoder(arrays["in/src_tokens"], arrays["in/src_lengths"])
        found["out/encoder_out"] = encoder_out["encoder_out"][0].transpose(0, 1)
    logits, _ = model(*_inputs(arrays, decoder_only))
    found["out/logits"] = logits
    found["out/decoder_features"] = model(*_inputs(arrays, decoder_only), features_only=True)[0]
    log_probabilities = torch.log_softmax(logits, -1)
    loss, nll = label_smoothed_nll_loss(log_probabilities, arrays["in/target"], EPSILON, ignore_index=PAD)
    words = log_probabilities[arrays["in/target"].ne(PAD)]
    old = (1 - EPSILON) * nll - EPSILON * words.mean(-1).sum()
    found |= dict.fromkeys(("loss/train", "loss/eval", "loss/fairseq-0.12"), loss)
    found |= {"loss/fairseq-0.9": old, "loss/nll": nll}
    loss.backward()
    return found | {f"grad/{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}


def _generated(
    model: Any, arrays: dict[str, torch.Tensor], decoder_only: bool, beam: int, label: str
) -> dict[str, torch.Tensor]:
    generator = SequenceGenerator([model], make_dictionary(SIZES["vt"] - 4), beam_size=beam, max_len_b=20)
    prefix = arrays["gen/prefix"] if decoder_only else None
    source = prefix if prefix is not None else arrays["in/src_tokens"]
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(-1)}}
    sentences = generator.generate([model], sample, prefix_tokens=prefix)
    of_all = [hypothesis for hypotheses in sentences for hypothesis in hypotheses]
    padded = {
        "tokens": pad_sequence([h["tokens"] for h in of_all], batch_first=True, padding_value=PAD),
        "positional_scores": pad_sequence([h["positional_scores"] for h in of_all], batch_first=True),
        "scores": torch.stack([h["score"] for h in of_all]),
    }
    return {f"{label}/{key}": value.unflatten(0, (len(sentences), beam)) for key, value in padded.items()}
