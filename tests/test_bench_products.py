"""The limit of matrix products: which ones are counted, and that those are the ones that are timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bench_cases import TINY, train

from fairseq_residuals.lab.bench.contestants import parse
from fairseq_residuals.lab.bench.products import Product, Recorder, _factor, seconds_of


def flops_by_hand(layers: int, d: int, f: int, vocabulary: int, sentences: int, tokens: int) -> int:
    """Of a step of an encoder-decoder: each product of the forward pass has two in the backward pass, and a
    multiplication and an addition are two operations."""
    positions = sentences * tokens
    attention = 2 * sentences * tokens**2 * d  # scores and values, over all heads
    encoder = 4 * positions * d * d + attention + 2 * positions * d * f
    decoder = 8 * positions * d * d + 2 * attention + 2 * positions * d * f
    return 3 * 2 * (layers * (encoder + decoder) + positions * d * vocabulary)


# dropout of the weights makes fairseq's attention leave the fused kernel
@pytest.mark.parametrize("flags", [(), ("--attention-dropout=0.1",)], ids=["fused", "in steps"])
@pytest.mark.parametrize("name", ["stock-lean", "pre_ln", "dlcl_pre"])
def test_the_products_of_a_step(name: str, flags: tuple[str, ...]) -> None:
    found = train(replace(parse(name), flags=(*parse(name).flags, *flags)))["products"]
    assert sum(product.flops * count for product, count in found) == flops_by_hand(2, 16, 32, 40, 3, 5)
    assert (1, 15, 16, 40) in {product[:4] for product, _ in found}  # the output's projection
    assert (6, 5, 8, 5) in {product[:4] for product, _ in found}  # scores of 3 sentences in 2 heads


def test_recomputing_makes_the_products_of_the_layers_again() -> None:
    plain, again = (
        sum(product.flops * count for product, count in train("b2t", case)["products"])
        for case in (TINY, replace(TINY, checkpoint_activations=True))
    )
    output = 2 * 15 * 16 * 40
    assert again - plain == plain // 3 - output


def test_precision() -> None:
    found = train("post_ln", replace(TINY, precision="bf16"))["products"]
    assert {product.dtype for product, _ in found} == {"bfloat16"}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_what_is_timed_is_what_was_recorded(batch: int, transposed: tuple[bool, bool]) -> None:
    product = Product(batch, 4, 5, 6, *transposed, "float32")
    device = torch.device("cpu")
    left = _factor(batch, 4, 5, transposed[0], torch.float32, device)
    right = _factor(batch, 5, 6, transposed[1], torch.float32, device)
    with Recorder() as recorder:
        torch.matmul(left, right)
    assert recorder.counts == {product: 1} and recorder.complete
    assert product.flops == 2 * batch * 4 * 5 * 6
    (seconds,) = seconds_of([product], device)
    assert seconds > 0
