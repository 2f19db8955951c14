"""What a CPU cannot show: the authors' numbers, every variant, and the ways to be faster, on a CUDA device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import optim
from fairseq.criterions import build_criterion
from fairseq.sequence_generator import SequenceGenerator
from golden_files import VERIFIED
from test_contract import every_variant, gradients, loss_of
from test_fused_adam import FLAGS as ADAM
from test_packed import Gradients, shape_of, step
from tiny import EOS, PAD, batch, build, logits, make_dictionary, perturb, target_tokens
from tiny_trainer import SGD, Task, make_config, sample
from torch import Tensor, nn

from fairseq_residuals.plugin.search.beam_search import FasterSequenceGenerator
from fairseq_residuals.plugin.speed import varlen_attention
from fairseq_residuals.plugin.speed.cuda_graph_step import record_steps
from fairseq_residuals.plugin.training.chunked_cross_entropy import chunked_cross_entropy
from fairseq_residuals.plugin.training.packed_batches import pack_batch
from fairseq_residuals.wirings.core.registry import VARIANTS
from tests.golden_check.parity import compare_file

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
GPU = torch.device("cuda")


def there(inputs: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {k: v.to(GPU, dtype if v.is_floating_point() else None) for k, v in inputs.items()}


@pytest.mark.parametrize("path", VERIFIED, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    parity = compare_file(path, GPU)[1]
    assert parity.activations and parity.failures() == {}


@every_variant
def test_a_step_is_that_of_a_cpu(task: str, variant: str) -> None:
    model, inputs = perturb(build(task, variant)).train(), batch(task)
    expected, loss = gradients(model, task, inputs), loss_of(logits(model, task, inputs))
    found = gradients(model.to(GPU), task, there(inputs))
    torch.testing.assert_close(loss_of(logits(model, task, there(inputs))).cpu(), loss, rtol=1e-5, atol=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().item() + expected[name.replace("k_proj.bias", "k_proj.weight")].abs().max().item()
        torch.testing.assert_close(found[name].cpu(), gradient, rtol=0, atol=1e-3 * scale, msg=name)


@every_variant
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_half_precision(task: str, variant: str, dtype: torch.dtype) -> None:
    model, inputs = perturb(build(task, variant)).to(GPU), batch(task)
    full = logits(model, task, there(inputs))
    out = logits(model.to(dtype), task, there(inputs, dtype))
    assert out.dtype == dtype and out.isfinite().all()
    assert (out.float() - full).abs().max() < {torch.bfloat16: 0.2, torch.float16: 0.03}[dtype] * full.std()
    assert all(g.isfinite().all() for g in gradients(model, task, there(inputs, dtype)).values())


@every_variant
def test_search(task: str, variant: str) -> None:
    model, inputs = perturb(build(task, variant), scale=0.3 if variant != "b2t_no_ln" else 0.1).to(GPU), batch(task)
    prefix = target_tokens(task, inputs)[:, 1:3].to(GPU) if task == "language_modeling" else None
    sample = {"net_input": {k: v for k, v in there(inputs).items() if k != "prev_output_tokens"}}
    hypotheses = [
        [
            h["tokens"].tolist()
            for of_one in kind([model], make_dictionary(), beam_size=4, max_len_b=12).generate(
                [model], sample, prefix_tokens=prefix, bos_token=EOS
            )
            for h in of_one
        ]
        for kind in (SequenceGenerator, FasterSequenceGenerator)
    ]
    assert hypotheses[0] == hypotheses[1]


def on_gpu(batch_of_one_update: dict[str, Any]) -> dict[str, Any]:
    inputs = {name: x.to(GPU) if isinstance(x, Tensor) else x for name, x in batch_of_one_update["net_input"].items()}
    return batch_of_one_update | {"net_input": inputs, "target": batch_of_one_update["target"].to(GPU)}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
def test_cuda_graphs(variant: str, dtype: torch.dtype) -> None:
    """Losses and gradients of batches of three shapes, the first twice, with those of a batch without graphs."""
    flags = ("--criterion", "chunked_label_smoothed_cross_entropy", "--label-smoothing", "0.1", *SGD)
    plain, graphs = (build_criterion(make_config(*flags).criterion, Task(None)) for _ in range(2))
    record_steps(graphs)
    model: Any = perturb(build("translation", variant)).to(GPU, dtype).train()
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for seed, sentences in ((1, 3), (2, 5), (3, 4), (4, 3)):
        one = on_gpu(sample(seed, sentences))
        results = []
        for criterion in (plain, graphs):
            model.zero_grad()
            loss, _, logged = criterion(model, one)
            (8 * loss).backward()
            results.append(
                (logged, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
            )
        (expected, gradients_expected), (found, gradients_found) = results
        assert found["loss"].item() == pytest.approx(expected["loss"].item(), rel=tolerance / 10)
        assert gradients_found.keys() == gradients_expected.keys()
        for name, gradient in gradients_expected.items():
            scale = gradient.abs().max() + gradients_expected[name.replace("k_proj.bias", "k_proj.weight")].abs().max()
            assert (gradients_found[name] - gradient).abs().max() <= tolerance * scale, name
    assert len(graphs.sums.steps[model].steps) == 3


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_packed(variant: str) -> None:
    """In single precision by blocks, in half precision by varlen_attn, about as far from the former as padded ones."""
    padded = sample()
    rows = pack_batch(padded, PAD, shape_of(padded))
    model: Any = perturb(build("translation", variant, "--packed")).to(GPU).train()
    expected = step(model, on_gpu(padded))
    found = step(model, on_gpu(pack_batch(padded, PAD)))
    assert found[0] == pytest.approx(expected[0], rel=1e-5) and error_of(found, expected) < 1e-4
    model.bfloat16()
    attention = model.decoder.layers[0].self_attn
    assert varlen_attention.why_not(attention, torch.bfloat16, GPU) == ""
    of_padded, of_rows = step(model, on_gpu(padded)), step(model, on_gpu(rows))
    assert of_rows[0] == pytest.approx(expected[0], rel=2e-2)
    assert error_of(of_rows, expected) < 2 * error_of(of_padded, expected)


def error_of(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> float:
    """Of all gradients, relative to their norm."""
    assert found[1].keys() == expected[1].keys()
    differences = torch.stack([(found[1][name].float() - gradient).norm() for name, gradient in expected[1].items()])
    return float(differences.norm() / torch.stack([gradient.norm() for gradient in expected[1].values()]).norm())


@pytest.mark.parametrize("variant", ("post_ln", "resi_dual", "mhc", "mudd"))
def test_one_graph_for_packed_batches(variant: str) -> None:
    flags = ("--criterion", "chunked_label_smoothed_cross_entropy", "--label-smoothing", "0.1", *SGD)
    plain, graphs = (build_criterion(make_config(*flags).criterion, Task(None)) for _ in range(2))
    record_steps(graphs)
    model: Any = perturb(build("translation", variant, "--packed")).to(GPU, torch.bfloat16).train()
    samples = [sample(sentences=sentences) for sentences in (3, 5, 4)]
    shape = shape_of(*samples)
    for one in samples:
        results = []
        for criterion, inputs in ((plain, one), (graphs, pack_batch(one, PAD, shape))):
            model.zero_grad()
            loss, _, logged = criterion(model, on_gpu(inputs))
            loss.backward()
            named = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            results.append((logged["loss"].item(), named))
        assert results[1][0] == pytest.approx(results[0][0], rel=1e-2)
        assert error_of(results[1], results[0]) < 3e-2
    assert len(graphs.sums.steps[model].steps) == 1


def test_a_longer_batch_between_those_of_a_graph() -> None:
    """For which fairseq's decoder makes its causal mask anew; what was the old one's memory is used by others."""
    flags = ("--criterion", "chunked_label_smoothed_cross_entropy", *SGD)
    criterion = build_criterion(make_config(*flags).criterion, Task(None))
    record_steps(criterion)
    model: Any = perturb(build("translation", "pre_ln")).to(GPU).train()
    one, longer = on_gpu(sample()), on_gpu(sample())
    longer["target"] = longer["target"].repeat(1, 3)
    longer["net_input"]["prev_output_tokens"] = longer["net_input"]["prev_output_tokens"].repeat(1, 3)
    losses = []
    for between in (one, longer, one):
        losses.append(criterion(model, one)[0].item())
        criterion(model, between)
        torch.cuda.empty_cache()
        junk = [torch.full((6, 6), 7.0, device=GPU) for _ in range(100)]
    assert len(junk) == 100 and losses[1:] == losses[:1] * 2


def test_memory_of_many_searches() -> None:
    model: Any = perturb(build("translation", "pre_ln"), scale=0.3).to(GPU)
    generator = FasterSequenceGenerator([model], make_dictionary(), beam_size=4, max_len_b=40, min_len=35)
    reserved = []
    for seed in range(30):
        inputs = {k: v for k, v in there(batch("translation", 3 + seed % 3)).items() if k != "prev_output_tokens"}
        generator.generate([model], {"net_input": inputs})
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[9]


def test_dropout_by_cuda_graphs() -> None:
    """Other random numbers in every step, the same ones from the same seed, and about as many zeros as asked for."""
    flags = ("--criterion", "chunked_label_smoothed_cross_entropy", *SGD)
    criterion = build_criterion(make_config(*flags).criterion, Task(None))
    record_steps(criterion)
    model: Any = build("translation", "pre_ln", "--dropout", "0.3").to(GPU).train()
    one, losses = on_gpu(sample()), []
    for seed in (1, 2, 1):
        torch.cuda.manual_seed(seed)
        losses.append([criterion(model, one)[0].item() for _ in range(3)])
    assert losses[0] == losses[2] and len({*losses[0], *losses[1]}) == 6


def test_fused_adam() -> None:
    ends: list[list[nn.Parameter]] = []
    for name in ("adam", "fused_adam"):
        draw = torch.Generator().manual_seed(1)
        parameters = [nn.Parameter(torch.randn(*shape, generator=draw).to(GPU)) for shape in ((3, 5), (7,))]
        optimizer: Any = optim.build_optimizer(make_config("--optimizer", name, *ADAM).optimizer, parameters)
        for _ in range(50):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=draw).to(GPU)
            optimizer.step()
        ends.append(parameters)
    for theirs, ours in zip(*ends, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)), ids=str
)
def test_chunked_cross_entropy(dtype: torch.dtype, tolerance: float) -> None:
    draw = torch.Generator().manual_seed(2)
    features, weight = ((torch.randn(n, 64, generator=draw) / 4).to(GPU, dtype).requires_grad_() for n in (3000, 5000))
    target = torch.randint(5000, (3000,), generator=draw).to(GPU)
    found = torch.autograd.grad(128 * chunked_cross_entropy(features, weight, target, 0.1).loss, (features, weight))
    scores = features.double() @ weight.double().t()
    log_probs, spread = scores.log_softmax(-1), 0.1 / 4999
    loss = -(0.9 - spread) * log_probs.gather(1, target[:, None]).sum() - spread * log_probs.sum()
    for ours, exact in zip(found, torch.autograd.grad(128 * loss, (features, weight)), strict=True):
        assert (ours.double() - exact.double()).abs().max() < tolerance * exact.abs().max()
