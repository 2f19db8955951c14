"""--packed: loss, gradients and sentences are those of the padded batch, for every wiring."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from reruns import instead_of_graphs
from tiny import EOS, PAD, build, make_task, perturb
from tiny_trainer import SGD, Task, make_trainer, sample, update
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fairseq_residuals.plugin.speed import cuda_graph_step, varlen_attention
from fairseq_residuals.plugin.speed.varlen_attention import VarlenAttention
from fairseq_residuals.plugin.training import packed
from fairseq_residuals.plugin.training.admin_profile import profile
from fairseq_residuals.plugin.training.packed_batches import FixedShape, full_batches, pack_batch
from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
) -> Tensor:
    """Attend sentence by sentence; (positions, heads, channels of a head)."""
    outputs = []
    for (start, end), (key_start, key_end) in zip(
        pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True
    ):
        assert end - start <= max_q and key_end - key_start <= max_k
        assert (end > start) == (key_end > key_start), "a kernel may write anything where there are no keys"
        q, k, v = (x.transpose(0, 1) for x in (query[start:end], key[key_start:key_end], value[key_start:key_end]))
        causal = window_size == (-1, 0)
        outputs.append(scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale).transpose(0, 1))
    out = torch.cat(outputs)
    assert len(out) == len(query), "the kernel leaves what is in no sentence as it is"
    return out


def instead_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen_attention, "why_not", lambda attn, dtype, device: "")
    attend = partial(varlen_attention.attend_packed, kernel=varlen_attn)
    monkeypatch.setattr(varlen_attention, "attend_packed", attend)


Gradients = dict[str, Tensor]


def shape_of(*samples: dict[str, Any]) -> FixedShape:
    """The shape of batches, each of which is one of some data set."""
    lengths = [
        torch.stack([x.ne(PAD).sum(1) for x in (s["net_input"]["src_tokens"], s["target"])], 1).numpy() for s in samples
    ]
    ends = np.cumsum([len(x) for x in lengths])
    return FixedShape.of(np.concatenate(lengths), np.split(np.arange(ends[-1]), ends[:-1]))


def step(model: nn.Module, inputs: dict[str, Any]) -> tuple[float, Gradients]:
    model.zero_grad()
    torch.manual_seed(1)
    loss, _, _ = LabelSmoothedCrossEntropyCriterion(make_task(), False, 0.1)(model, inputs)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    largest = max(gradient.abs().max().item() for gradient in expected[1].values())
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6 * largest)


def unreachable(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("attention that the kernel does not serve")


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_wiring(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, padded = perturb(build("translation", variant, "--packed")).train(), sample()
    expected = step(model, padded)
    assert_same(step(model, pack_batch(padded, PAD)), expected)
    instead_of_the_kernel(monkeypatch)
    for module in model.modules():
        if isinstance(module, Connection) and not module.edits_scores:
            module.attention = VarlenAttention(unreachable)
    assert_same(step(model, pack_batch(padded, PAD, shape_of(padded))), expected)


@pytest.mark.parametrize(
    ("task", "flags"),
    [
        ("language_modeling", ("--decoder-learned-pos",)),
        ("language_modeling", ("--residual", "realformer:0-0,mudd:1-1")),
        ("speech", ()),
        ("speech", ("--decoder-residual", "transparent_attention", "--residual", "dlcl_pre")),
        ("translation", ("--encoder-learned-pos", "--decoder-learned-pos", "--share-all-embeddings")),
        ("translation", ("--no-token-positional-embeddings", "--layernorm-embedding")),
        ("translation", ("--checkpoint-activations", "--residual-args", "value_residual=learnable")),
        ("translation", ("--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5")),
        ("translation", ("--residual", "transparent_attention/b2t", "--fast-on-cpu")),
        ("translation", ("--left-pad",)),
    ],
    ids=str,
)
def test_options(task: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    left = flags == ("--left-pad",)
    model, padded = perturb(build(task, "b2t", "--packed", *(() if left else flags))).train(), sample(task=task)
    if left:
        source = padded["net_input"]["src_tokens"]
        rows = [row.roll(int(row.eq(PAD).sum())) for row in source]
        padded["net_input"]["src_tokens"] = torch.stack(rows)
    expected = step(model, padded)
    assert_same(step(model, pack_batch(padded, PAD)), expected)
    instead_of_the_kernel(monkeypatch)
    assert_same(step(model, pack_batch(padded, PAD)), expected)


@pytest.fixture
def any_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packed.TASKS, "tiny", Task)


@pytest.mark.usefixtures("any_task")
@pytest.mark.parametrize(
    "flags",
    (
        ("--criterion", "cross_entropy"),
        ("--criterion", "label_smoothed_cross_entropy", "--report-accuracy", "--sentence-avg"),
        ("--criterion", "chunked_label_smoothed_cross_entropy", "--report-accuracy", "--clip-norm", "0.1"),
        ("--criterion", "chunked_label_smoothed_cross_entropy", "--sentence-avg", "--bf16"),
    ),
    ids=lambda flags: " ".join(flags[1:]),
)
def test_updates(flags: tuple[str, ...]) -> None:
    samples, logs = [sample(1), sample(2, sentences=5), sample(3)], []
    for more in ((), ("--packed",)):
        trainer = make_trainer(*SGD, *flags, *more, variant="b2t")
        trainer.load_checkpoint("no_such_checkpoint.pt")
        batches = [pack_batch(s, PAD) for s in samples] if more else samples
        # one update of two batches, one of one; then validation, which is padded
        logged = [update(trainer, *batches[:2]), update(trainer, batches[2])]
        logs.append((logged, trainer.valid_step(samples[0])))
    (padded, validated), (packed_, validated_too) = logs
    rounding = 2e-2 if "--bf16" in flags else 1e-5
    for expected, found in zip(padded, packed_, strict=True):
        assert found.keys() == expected.keys()
        for key in expected.keys() - {"wall", "train_wall", "wps", "ups"}:
            assert found[key] == pytest.approx(expected[key], rel=rounding), key
    assert float(validated_too["loss"]) == pytest.approx(float(validated["loss"]), rel=rounding)


@pytest.mark.usefixtures("any_task")
def test_one_graph_serves_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_graphs(monkeypatch)
    instead_of_the_kernel(monkeypatch)
    monkeypatch.setattr(cuda_graph_step, "refuse_unrecordable", lambda model, device: None)
    samples = [sample(seed, sentences) for seed, sentences in ((1, 3), (2, 5), (3, 2))]
    shape, losses = shape_of(*samples), []
    for more in ((), ("--packed", "--cuda-graphs")):
        flags = ("--criterion", "chunked_label_smoothed_cross_entropy", "--label-smoothing", "0.1")
        trainer = make_trainer(*SGD, *flags, *more, variant="b2t")
        trainer.load_checkpoint("no_such_checkpoint.pt")
        batches = [pack_batch(s, PAD, shape) for s in samples] if more else samples
        losses.append([update(trainer, s)["loss"] for s in batches] + [update(trainer, *batches)["loss"]])
    (steps,) = trainer.criterion.sums.steps.values()
    assert len(steps.steps) == 1
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_rows() -> None:
    padded = sample()
    rows = pack_batch(padded, PAD)
    source, target = padded["net_input"]["src_tokens"], padded["target"]
    assert rows["net_input"]["src_tokens"].tolist() == [[word for s in source.tolist() for word in s if word != PAD]]
    assert rows["net_input"]["source_bounds"].tolist() == [0, 7, 13, 18] and rows["net_input"]["source_longest"] == 7
    assert rows["net_input"]["target_bounds"].tolist() == [0, 6, 11, 15] and rows["net_input"]["target_longest"] == 6
    assert rows["target"].shape == rows["net_input"]["prev_output_tokens"].shape == (1, 15)
    assert rows["target"].ne(PAD).sum() == target.ne(PAD).sum() and rows["nsentences"] == 3
    assert rows["padded"].batch is padded


def test_one_shape_has_room_for_all_batches() -> None:
    samples = [sample(sentences=n) for n in (2, 5, 3)]
    shape = shape_of(*samples)
    rows = [pack_batch(s, PAD, shape) for s in samples]
    sizes = [[x.shape if isinstance(x, Tensor) else x for x in row["net_input"].values()] for row in rows]
    assert sizes[0] == sizes[1] == sizes[2]
    for row in rows:
        for side in ("source", "target"):
            lengths = row["net_input"][f"{side}_bounds"].diff()
            assert lengths.max() <= row["net_input"][f"{side}_longest"]
        bounds = row["net_input"]["source_bounds"], row["net_input"]["target_bounds"]
        assert torch.equal(bounds[0].diff() > 0, bounds[1].diff() > 0)
    lengths, batches = np.array([[3], [5], [4]]), ([0, 1], [2])
    # those of a text in blocks have no sign
    assert FixedShape.of(lengths.astype(np.uint16), batches) == FixedShape.of(lengths, batches)


def test_a_batch_that_is_larger_than_its_data_set_said_has_room_too() -> None:
    small, large = sample(sentences=5), sample(sentences=5)
    shape = shape_of(small)
    for words in (large["net_input"], large):
        for name in words.keys() & {"src_tokens", "prev_output_tokens", "target"}:
            words[name] = words[name].repeat_interleave(4, 1)
    rows = pack_batch(large, PAD, shape)
    model = perturb(build("translation", "b2t", "--packed")).train()
    assert_same(step(model, rows), step(model, large))


def test_full_batches() -> None:
    generator = np.random.default_rng(1)
    lengths = generator.integers(1, 30, (400, 2))
    indices = np.flatnonzero(lengths[:, 0] != 7)
    batches = full_batches(lengths, indices, 100, None)
    assert sorted(np.concatenate(batches).tolist()) == indices.tolist()
    words = np.array([lengths[b].sum(0).max() for b in batches])
    assert words.max() <= 100 and words[:-1].min() > 100 - 30
    assert all(len(b) <= 3 for b in full_batches(lengths, indices, 100, 3))
    assert [len(b) for b in full_batches(np.array([[200], [1]]), np.arange(2), 100, None)] == [1, 1]


@pytest.mark.usefixtures("any_task")
def test_admin_starts_from_the_same_omegas() -> None:
    measured = []
    for pack in (lambda s: s, lambda s: pack_batch(s, PAD)):
        trainer = make_trainer(*SGD, "--packed", variant="admin")
        measured.append(profile(trainer, pack(sample())))
    for stack, layers in measured[0].items():
        for layer, found in zip(layers, measured[1][stack], strict=True):
            assert found == pytest.approx(layer, rel=1e-6)


def refused(match: str, *flags: str, packs: str = "--packed") -> None:
    with pytest.raises(UserError, match=match):
        make_trainer(*SGD, *flags, *packs.split()).load_checkpoint("no_such_checkpoint.pt")


def test_graphs_of_packed_batches_need_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences side by side, of the longest of all lengths, would take too much memory."""
    monkeypatch.setattr(cuda_graph_step, "refuse_unrecordable", lambda model, device: None)
    monkeypatch.setitem(packed.TASKS, "tiny", Task)
    chunked = ("--criterion", "chunked_label_smoothed_cross_entropy", "--cuda-graphs")
    refused("--packed does not go with --cuda-graphs here: .*varlen_attn needs an Nvidia GPU", *chunked)
    instead_of_the_kernel(monkeypatch)
    refused("that leave the scores of attention alone", *chunked, "--residual", "realformer")


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("--packed may be same or full, not 'most'", packs="--packed most")
    refused("--packed is for --task translation, language_modeling, speech_to_text, not Task")
    monkeypatch.setitem(packed.TASKS, "tiny", Task)
    refused("fills batches up to --max-tokens", "--batch-size", "16", packs="--packed full")
    refused("counts sentences", "--max-tokens=9", "--required-batch-size-multiple=64", packs="--packed full")
    other = "label_smoothed_cross_entropy_with_alignment"
    refused(f"--packed is not for --criterion {other}", "--criterion", other)
    smoothed = ("--criterion", "label_smoothed_cross_entropy", "--ignore-prefix-size", "1")
    refused("does not go with --ignore-prefix-size", *smoothed)
    refused("train is for training; choose other subsets", "--valid-subset", "valid,train")
    batch_ = sample()
    with pytest.raises(UserError, match="for batches with one target"):
        pack_batch({"en-BT": batch_, "en-DENOISE": batch_}, PAD)  # of online_backtranslation
    with pytest.raises(UserError, match="for batches with one target"):
        pack_batch(batch_ | {"target": None}, PAD)
    batch_["target"][-1] = EOS
    with pytest.raises(UserError, match="as long as what the decoder is fed"):
        pack_batch(batch_, PAD)
