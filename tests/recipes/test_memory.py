"""Passes that grow with the memory of a GPU: the estimate beside measurements, and what an update has afterwards."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fairseq.data.data_utils import batch_by_size
from fairseq.data.iterators import CountingIterator, GroupedIterator
from recipe_files import job_of

from fairseq_residuals import __main__ as cli
from fairseq_residuals.lab.recipes.effective_batch import USED, bytes_of_a_pass, passes_at_once
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.machine import AUTO, Machine
from fairseq_residuals.lab.recipes.model_size import Size, Stack
from fairseq_residuals.lab.utils.checkout import RESULTS

GIB = 2**30


def on(gib: float, name: str, gpus: int = 1, nodes: int = 1, **settings: object) -> Job:
    """The run of a configuration on made-up GPUs."""
    return job_of(name, machine=Machine(gpus, nodes, memory=int(gib * GIB)), **settings)


def encoder_decoder(layers: int) -> Size:
    """The model of the GPU's report."""
    return Size((Stack(layers, 512, 2048, 8, False), Stack(layers, 512, 2048, 8, True)), 32_768, 32_768 * 512)


@pytest.mark.parametrize(
    ("line", "layers"), [("| Post-LN, fp16 |", 18), ("| Post-LN, 100 + 100 layers, bf16, `fused_adam`", 100)]
)
def test_the_estimate_is_a_little_more_than_what_was_measured(line: str, layers: int) -> None:
    """Peaks in MiB of 112 x 32 tokens a side; the report's model ran with the same 5 bytes of scores of attention."""
    report = (RESULTS / "bench/h100-2026-11-22/README.md").read_text(encoding="utf-8")
    [measured] = re.findall(rf"^{re.escape(line)}.*\| ([\d,]+) \|$", report, re.M)
    estimate = bytes_of_a_pass(encoder_decoder(layers), 112 * 32, longest=32, half=True) / 2**20
    assert 1 <= estimate / int(measured.replace(",", "")) <= 1.25


def test_passes_of_a_language_model_grow_with_the_memory() -> None:
    found = []
    for gib in (4, 24, 80, 1e6):
        batch = on(gib, "b2t/table4/6l_b2t").batch
        assert batch.max_tokens == batch.at_once * 1024
        assert batch.tokens == batch.wanted == 131_072
        found.append(batch.at_once)
    assert found == sorted(found) and found[0] == 1 < found[1] < found[2] and found[-1] == 128
    assert str(on(1e6, "b2t/table4/6l_b2t").batch).endswith("= 131,072; a pass is 128 of the recipe's")


def test_one_more_doubling_would_not_fit() -> None:
    size, memory = encoder_decoder(18), 40 * GIB
    at_once = passes_at_once(size, 128, 3584, 100, True, memory)
    assert bytes_of_a_pass(size, at_once * 3584, 100, True) <= USED * memory
    assert bytes_of_a_pass(size, 2 * at_once * 3584, 100, True) > USED * memory
    # three passes are no power of two; of twelve, at most four are one
    assert passes_at_once(size, 3, 3584, 100, True, 10**6 * GIB) == 1
    assert passes_at_once(size, 12, 3584, 100, True, 10**6 * GIB) == 4


def test_single_precision_and_long_samples_need_more() -> None:
    size = encoder_decoder(6)
    assert bytes_of_a_pass(size, 4096, 100, half=False) > bytes_of_a_pass(size, 4096, 100, half=True)
    assert bytes_of_a_pass(size, 4096, 500, half=True) > bytes_of_a_pass(size, 4096, 100, half=True)


def test_sentences_are_batched_as_the_recipe_says_unless_it_is_asked_for() -> None:
    assert on(80, "b2t/table1/18l_b2t").batch.update_freq == 128
    asked = on(80, "b2t/table1/18l_b2t", max_tokens=AUTO).batch
    assert asked.at_once > 1
    assert (asked.max_tokens, asked.update_freq) == (3584 * asked.at_once, 128 // asked.at_once)
    shared = on(80, "b2t/table1/18l_b2t", gpus=4, max_tokens=AUTO).batch
    assert shared.update_freq * shared.at_once == 32 and shared.tokens == 458_752


def test_what_cannot_be_estimated_or_divided_stays() -> None:
    assert on(80, "b2t/table5/6l_b2t", max_tokens=AUTO).batch.at_once == 1  # speech
    assert on(80, "b2t/table4/6l_b2t", gpus=8, nodes=2).batch.at_once == 1
    assert on(80, "b2t/table4/6l_b2t", gpus=24).batch.at_once == 1  # 131,072 is no multiple
    assert job_of("b2t/table4/6l_b2t", gpus=1).batch.at_once == 1  # a device that is not here
    assert on(80, "b2t/table4/6l_b2t", max_tokens=2048).batch.at_once == 1


def blocks_of_updates(blocks: int, per_pass: int, passes: int) -> list[int]:
    """How many blocks of one length fairseq puts into each update of an epoch."""
    batches = batch_by_size(
        np.arange(blocks),
        lambda _: 1024,
        num_tokens_vec=np.full(blocks, 1024),
        max_tokens=per_pass * 1024,
        required_batch_size_multiple=8,
    )
    return [sum(map(len, update)) for update in GroupedIterator(CountingIterator(batches), passes)]


def test_updates_of_a_language_model_have_as_many_blocks_as_before() -> None:
    """An epoch whose blocks do not fill the last update."""
    before = blocks_of_updates(1000, 1, 128)
    assert before == [128] * 7 + [104]
    for at_once in (2, 8, 16, 128):
        assert blocks_of_updates(1000, at_once, 128 // at_once) == before


def test_a_name_is_before_what_cannot_be_shared_out() -> None:
    with pytest.raises(Exception, match=r"^b2t/table4/6l_b2t: .* choose a number of devices"):
        _ = job_of("b2t/table4/6l_b2t", gpus=200).batch


def test_memory_that_is_not_there_cannot_be_filled(capsys: pytest.CaptureFixture[str]) -> None:
    for machine in (["--gpus", "0"], ["--gpus", "2", "--nodes", "2"]):
        assert cli.main(["reproduce", "b2t/table4", *machine, "--max-tokens", "auto", "--dry-run"]) == 1
        assert "--max-tokens auto fills the memory of GPUs of one node" in capsys.readouterr().err


def test_tokens_are_a_number_or_auto(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["reproduce", "b2t/table4", "--max-tokens", "many"])
    assert "--max-tokens: 'many' is neither a number of tokens nor auto" in capsys.readouterr().err
