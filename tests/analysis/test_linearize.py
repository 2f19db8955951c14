"""``fairseq-residuals linearize``: what a linear map can take over, and what a command tells of it."""

from __future__ import annotations

import contextlib
import csv
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from analysed_models import TINY, built, checkpoint, corpus
from fairseq.data.language_pair_dataset import collate
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look.batches import Batch
from fairseq_residuals.lab.look.linearize import LinearMap, fit, train
from fairseq_residuals.lab.look.probes import replaced
from tests.rotation import SHAPES_OF_CODE

DIM = 16


def samples(model: Any, number: int = 8) -> list[dict[str, Any]]:
    """Batches with padding."""
    words = model.decoder.dictionary
    draw = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(number):
        lengths = torch.randint(4, 9, (6,), generator=draw).tolist()
        sources = [torch.randint(words.nspecial, len(words), (n,), generator=draw) for n in lengths]
        sources = [torch.cat([x, torch.tensor([words.eos()])]) for x in sources]
        targets = [torch.cat([x[:-1].flip(0), x[-1:]]) for x in sources]
        pairs = [{"id": i, "source": x, "target": y} for i, (x, y) in enumerate(zip(sources, targets, strict=True))]
        batches.append(collate(pairs, words.pad(), words.eos()))
    return batches


def linear_layer(model: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Makes the encoder's second layer x + W2 (W1 x + b1) + b2; returns it, and the matrix and bias that this is."""
    layer = model.encoder.layers[1]
    nn.init.zeros_(layer.self_attn.out_proj.weight)
    layer.ffn_connection.norm = nn.Identity()
    layer.activation_fn = lambda x: x
    with torch.no_grad():
        matrix = torch.eye(DIM) + layer.fc2.weight @ layer.fc1.weight
        bias = layer.self_attn.out_proj.bias @ matrix.T + layer.fc2.weight @ layer.fc1.bias + layer.fc2.bias
    return layer, matrix, bias


def test_a_layer_that_is_linear_is_recovered() -> None:
    model, _ = built("pre_ln")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    layer, matrix, bias = linear_layer(model)
    data = samples(model)
    mapping = fit(model, layer, data)
    assert mapping.reads == ["x"] and mapping.writes == ["x"]
    assert torch.allclose(mapping.weight[:-1].T, matrix, atol=1e-4)
    assert torch.allclose(mapping.weight[-1], bias, atol=1e-4)
    assert mapping.explained == pytest.approx(1, abs=1e-9)
    inputs = data[0]["net_input"]
    expected = model(**inputs)[0]
    with replaced(layer, "forward", mapping):
        assert torch.allclose(model(**inputs)[0], expected, atol=1e-4)


def test_a_layer_that_is_not_is_fitted_as_well_as_can_be() -> None:
    model, _ = built("post_ln")
    layer, data = model.encoder.layers[1], samples(model)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def see(module: Any, inputs: Any, output: Any) -> None:
        keep = ~inputs[1].padding_mask.T
        seen.append((inputs[0]["x"][keep], output[0]["x"][keep]))

    hook = layer.register_forward_hook(see)
    mapping = fit(model, layer, data)
    hook.remove()
    x, y = (torch.cat(part).double() for part in zip(*seen, strict=True))
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    # what a norm gives lies in a plane but for rounding, which is not to be fitted
    by_hand = torch.linalg.lstsq(x, y, rcond=1e-5, driver="gelsd").solution
    residual, best = ((x @ w - y).square().sum().item() for w in (mapping.weight.double(), by_hand))
    assert best > 0 and residual == pytest.approx(best, rel=1e-4)
    assert mapping.explained == pytest.approx(1 - best / (y - y.mean(0)).square().sum().item(), rel=1e-4)
    assert mapping.explained < 0.999


@pytest.mark.parametrize("variant", SHAPES_OF_CODE)
def test_a_wiring_of_each_shape_and_nothing_is_left(variant: str) -> None:
    model, _ = built(variant)
    data = samples(model, 2)
    inputs = data[0]["net_input"]
    expected = model(**inputs)[0]
    for stack in (model.encoder.layers, model.decoder.layers):
        for i in range(len(stack)):
            mapping = fit(model, stack[i], data)
            with replaced(stack[i], "forward", mapping):
                # before training ReZero is the identity, which is linear
                assert variant == "re_zero" or not torch.equal(model(**inputs)[0], expected)
    with contextlib.suppress(ZeroDivisionError), replaced(stack[0], "forward", mapping):
        raise ZeroDivisionError
    assert torch.equal(model(**inputs)[0], expected)
    assert not any("forward" in vars(module) or module._forward_hooks for module in model.modules())


READS = {variant: {"x"} for variant in ("post_ln", "b2t", "dlcl_pre")}
READS |= {"resi_dual": {"x", "dual"}, "depthwise_lstm": {"x", "cell"}}


@pytest.mark.parametrize("variant", READS)
def test_a_map_reads_what_its_layer_reads(variant: str) -> None:
    model, _ = built(variant)
    for stack in (model.encoder.layers, model.decoder.layers):
        assert set(fit(model, stack[1], samples(model, 1)).reads) == READS[variant]


def test_training_goes_on_with_the_map_alone() -> None:
    model, _ = built("post_ln")
    layer, data = model.encoder.layers[1], samples(model, 2)
    before = {name: p.clone() for name, p in model.named_parameters()}

    def loss_of(sample: dict[str, Any]) -> torch.Tensor:
        logits = model(**sample["net_input"])[0]
        return nn.functional.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=1)

    mapping = fit(model, layer, data)
    with replaced(layer, "forward", mapping), torch.no_grad():
        first = loss_of(data[0]).item()
    train(layer, mapping, iter([data[0]] * 30), loss_of, updates=30, lr=0.01)
    with replaced(layer, "forward", mapping), torch.no_grad():
        assert loss_of(data[0]).item() < first - 0.1
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_the_loss_of_an_adaptive_softmax_is_its_own() -> None:
    """Without words fewer than channels, fairseq's features have no cross entropy; with them, it is no loss."""
    model, _ = built("pre_ln", *TINY, "--dim", "64", "--vocabulary", "30", "--adaptive-softmax-cutoff", "10,20")
    (sample,), padding = samples(model, 1), model.decoder.dictionary.pad()
    with torch.no_grad():
        scores = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
    real = sample["target"].ne(padding)
    expected = -scores[real].gather(-1, sample["target"][real, None]).mean()
    loss = Batch(sample, padding).loss(model)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert model.decoder.adaptive_softmax.tail[1][0].weight.grad.any()


def test_a_map_splits_what_it_writes() -> None:
    weight = torch.cat([torch.eye(4), torch.tensor([[0.0, 0.0, 1.0, 1.0]])])
    s = {"x": torch.ones(1, 1, 2), "dual": torch.full((1, 1, 2), 5.0), "kept": torch.zeros(1)}
    after, attention = LinearMap(["x", "dual"], ["dual", "x"], weight)(s, None)  # type: ignore[arg-type]
    assert after["dual"].tolist() == [[[1, 1]]] and after["x"].tolist() == [[[6, 6]]]
    assert after["kept"] is s["kept"] and attention is None


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint whose second encoder layer is linear, and a corpus."""
    model, args = built(
        "pre_ln", "--layers", "2", "--dim", "16", "--ffn-dim", "32", "--heads", "2", "--vocabulary", "34"
    )
    layer = model.encoder.layers[1]
    nn.init.zeros_(layer.self_attn.out_proj.weight)
    nn.init.zeros_(layer.fc2.weight)
    corpus(tmp_path, [([5 + i % 9, 6 + i % 4, 7 + i % 7], [7 + i % 7, 6 + i % 4, 5]) for i in range(24)])
    for file in list(tmp_path.glob("valid.*")):
        shutil.copy(file, file.with_name(file.name.replace("valid", "train")))
    args.task, args.source_lang, args.target_lang, args.data = "translation", "s", "t", str(tmp_path)
    return checkpoint(tmp_path / "checkpoint.pt", model, args), tmp_path


@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_the_command(
    metric: str, trained: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = trained
    limits, generate = set(), SequenceGenerator.generate

    def noting(self: SequenceGenerator, *args: Any, **kwargs: Any) -> Any:
        limits.add((self.max_len_a, self.max_len_b))
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(SequenceGenerator, "generate", noting)
    flags = ["--data", str(data), "--metric", metric, "--out", str(data / "out"), "--beam", "2"]
    assert main(["linearize", *[str(file)] * 2, *flags]) == 0  # as seeds of one wiring, whose files have one name
    out = capsys.readouterr().out
    with (data / "out" / "linearize.csv").open() as table:
        lines = [*csv.DictReader(table)]
    assert len({line["model"] for line in lines}) == 2
    rows = {(r["stack"], r["layer"]): r for r in lines}
    assert list(rows) == [("whole model", ""), ("encoder", "1"), ("encoder", "2"), ("decoder", "1"), ("decoder", "2")]
    whole, linear, other = (float(rows[k]["value"]) for k in (("whole model", ""), ("encoder", "2"), ("decoder", "1")))
    assert limits == ({(0, 200)} if metric == "bleu" else set())  # fairseq-generate's
    assert linear == pytest.approx(whole, abs=1e-4) and float(rows["encoder", "2"]["explained"]) == pytest.approx(1)
    if metric == "loss":
        assert other != pytest.approx(whole, abs=1e-4) and float(rows["encoder", "2"]["change_percent"]) < 0.01
        assert f"| whole model | - | loss | {whole:.4g} |" in re.sub(" +", " ", out)
    assert (data / "out" / "linearize.png").exists()


def test_bad_input(trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, data = trained
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, sentence in (
        ([tmp_path / "none.pt", "--data", data], "there is no checkpoint"),
        ([file, "--data", empty], "empty"),
        ([file, "--data", data, "--split", "test"], "--split test: "),
        ([file, "--data", data, "--fit", "0"], "--fit must be at least 1"),
    ):
        assert main(["linearize", *map(str, arguments), "--out", str(tmp_path / "out")]) == 2
        captured = capsys.readouterr()
        assert sentence in captured.err.splitlines()[-1] and captured.out == ""
    assert not (tmp_path / "out").exists()
