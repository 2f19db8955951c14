"""The faster beam search finds the hypotheses of fairseq's, over every variant, task and setting."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.tasks import FairseqTask
from test_generation_parts import needs_onednn
from tiny import ARCH_MODEL_REGISTRY, EOS, PAD, PREFIX, TASKS, batch, build, build_stock, make_dictionary, perturb
from torch import Tensor, nn

from fairseq_residuals.plugin.search import beam_search, packed_linear
from fairseq_residuals.plugin.search.beam_search import FasterSequenceGenerator
from fairseq_residuals.plugin.search.kv_cache import GROWTH
from tests.rotation import SHAPES_OF_CODE, rotated

Found = list[list[dict[str, Tensor]]]
PERTURBATION = {"b2t_no_ln": 0.1, "re_zero": 0.2, "t_fixup": 0.1}
"""Of what has no norms: perturbed by 0.3, as the others, logits are in the hundreds, and rounding is more than 1e-5."""


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per batch that was not left to fairseq."""
    entries: list[int] = []
    original = FasterSequenceGenerator._search

    def counted(self: Any, *args: Any) -> Any:
        entries.append(1)
        return original(self, *args)

    monkeypatch.setattr(FasterSequenceGenerator, "_search", counted)
    return entries


def net_input(task: str, sentences: int = 3) -> dict[str, Tensor]:
    return {name: value for name, value in batch(task, sentences).items() if name != "prev_output_tokens"}


def model_of(task: str, variant: str, *flags: str) -> nn.Module:
    return perturb(build(task, variant, *flags), scale=PERTURBATION.get(variant, 0.3))


def both(
    models: list[nn.Module], inputs: dict[str, Tensor], prefix: Tensor | None = None, **settings: Any
) -> tuple[Found, Found]:
    """fairseq's hypotheses, and the faster search's."""
    settings = {"beam_size": 4, "max_len_b": 12} | settings
    sample = {"net_input": inputs}
    expected, found = (
        kind(models, make_dictionary(), **settings).generate(models, sample, prefix_tokens=prefix, bos_token=EOS)
        for kind in (SequenceGenerator, FasterSequenceGenerator)
    )
    return expected, found


@pytest.fixture(autouse=True)
def _small_matrices_are_packed_and_all_beams_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "LEAST_SIZE", 0)
    monkeypatch.setattr(beam_search, "WIDEST_BEAM", 100)


def assert_same(expected: Found, found: Found, *, attention: bool = True) -> None:
    assert len(found) == len(expected)
    for theirs, ours in zip(expected, found, strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(theirs, ours, strict=True):
            assert b["tokens"].tolist() == a["tokens"].tolist()
            for name in ("score", "positional_scores", *(["attention"] if attention else []), "alignment"):
                # sums of a dozen numbers: the last digit of 40 is 4e-6, and processors add up in different orders
                torch.testing.assert_close(b[name], a[name], rtol=1e-6, atol=1e-5, msg=name)
    # a model that says the same whatever it is given would agree as well
    distinct = {tuple(hypothesis["tokens"].tolist()) for one in found for hypothesis in one}
    assert len(distinct) > max(len({tuple(hypothesis["tokens"].tolist()) for hypothesis in one}) for one in found)


def registered() -> list[tuple[str, str]]:
    """A wiring of each shape in one of the tasks that it is registered in, in turn: a search sees the decoder alone."""
    tasks = {v: [t for t in TASKS if f"{PREFIX[t]}_{v}" in ARCH_MODEL_REGISTRY] for v in SHAPES_OF_CODE}
    return [(found[i % len(found)], v) for i, (v, found) in enumerate(tasks.items())]


@pytest.mark.parametrize(("task", "variant"), registered())
def test_a_wiring_of_each_shape(task: str, variant: str, searched: list[int]) -> None:
    inputs = net_input(task)
    # a language model goes on from the first words of each sentence
    prefix = inputs["src_tokens"][:, 1:3] if task == "language_modeling" else None
    assert_same(*both([model_of(task, variant)], inputs, prefix))
    assert searched


WIRINGS = {
    "values of the first layer": ("pre_ln", ("--residual-args", "value_residual=constant")),
    "values of the first layer, normalised": ("hybrid_norm", ("--residual-args", "value_residual=identity")),
    "heads' gains before their projection": ("normformer", ("--residual-args", "heads=before_projection")),
    "scores of the layers below": ("realformer", ("--residual-args", "mean=true,norm=pre")),
    "a list": ("pre_ln", ("--residual", "post_ln:0,realformer:1")),
    "a memory per layer": ("transparent_attention", ("--decoder-residual", "resi_dual")),
    "learned positions": ("pre_ln", ("--decoder-learned-pos", "--encoder-learned-pos")),
    "shared embeddings": ("pre_ln", ("--share-all-embeddings", "--layernorm-embedding")),
    "adaptive softmax": ("pre_ln", ("--adaptive-softmax-cutoff", "10,20")),
}


@pytest.mark.parametrize("name", WIRINGS)
def test_other_wirings(name: str, searched: list[int]) -> None:
    variant, flags = WIRINGS[name]
    assert_same(*both([model_of("translation", variant, *flags)], net_input("translation")))
    assert searched


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam 5": {"beam_size": 5},
    "beam wider than the vocabulary": {"beam_size": 60, "max_len_b": 4},
    "short preferred": {"len_penalty": 0.3},
    "long preferred": {"len_penalty": 2.0},
    "sums": {"normalize_scores": False},
    "at least 6": {"min_len": 6},
    "as long as the source": {"max_len_a": 0.5, "max_len_b": 1},
    "one word": {"max_len_b": 1},
    "at most 7 in all": {"max_len": 7},
    "no unknown words": {"unk_penalty": 100.0},
    "unknown words": {"unk_penalty": -3.0},
    "soft": {"temperature": 2.5},
    "sharp": {"temperature": 0.4},
    "no repeated pair": {"no_repeat_ngram_size": 2},
    "no repeated word": {"no_repeat_ngram_size": 1},
    "words that are not said": {"tokens_to_suppress": ("w3", "w17", "w20")},
    "another end": {"eos": 9},
    "more positions than there is room for at first": {"min_len": GROWTH + 5, "max_len_b": GROWTH + 8},
}


@pytest.mark.parametrize(
    ("name", "task", "variant"),
    [(n, *m) for n, m in rotated([*SETTINGS], [("translation", "realformer"), ("language_modeling", "pre_ln")])],
)
def test_settings(name: str, task: str, variant: str, searched: list[int]) -> None:
    inputs = net_input(task)
    prefix = inputs["src_tokens"][:, 1:2] if task == "language_modeling" else None
    assert_same(*both([model_of(task, variant)], inputs, prefix, **SETTINGS[name]))
    assert searched


PREFIXES = {
    "of one length": [[5, 6], [7, 8], [9, 5]],
    "of several lengths": [[5, 6, 7], [8, PAD, PAD], [9, 10, PAD]],
    "one of which is a sentence": [[5, EOS, PAD], [8, 9, 10], [9, 10, PAD]],
    "with none at all": [[PAD, PAD], [8, 9], [7, PAD]],
}


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize(("task", "beam"), [("translation", 4), ("language_modeling", 1)])
def test_prefixes(task: str, beam: int, name: str) -> None:
    prefix = torch.tensor(PREFIXES[name])
    expected, found = both(
        [model_of(task, "resi_dual")], net_input(task), prefix, beam_size=beam, normalize_scores=False
    )
    # a prefix that is a sentence ends all hypotheses at once, those too that say it by decree; their attention is that
    # of whatever words they had, which is arbitrary in fairseq
    assert_same(expected, found, attention=EOS not in prefix)
    for forced, hypotheses in zip(prefix.tolist(), found, strict=True):
        words = [word for word in forced if word != PAD]
        assert all(hypothesis["tokens"].tolist()[: len(words)] == words for hypothesis in hypotheses)


def test_padding_on_the_left() -> None:
    inputs = net_input("translation")
    rolled = [row.roll(int(row.eq(PAD).sum())) for row in inputs["src_tokens"]]
    assert rolled[-1][0] == PAD
    assert_same(*both([model_of("translation", "deepnet")], inputs | {"src_tokens": torch.stack(rolled)}))


@pytest.mark.parametrize(("task", "factor"), [("translation", -0.5), ("speech", -4)])
def test_sentences_that_end_early_leave_the_rest_alone(task: str, factor: float) -> None:
    model: Any = model_of(task, "pre_ln")
    with torch.no_grad():
        # the end is then likely, of some sentences more than of others
        model.decoder.output_projection.weight[EOS] *= factor
    expected, found = both([model], net_input(task, 6), max_len_b=40)
    assert_same(expected, found)
    assert len({max(len(hypothesis["tokens"]) for hypothesis in one) for one in found}) > 2


@pytest.mark.parametrize(("task", "dtype"), rotated(TASKS, (torch.bfloat16, torch.float16)))
def test_half_precision(task: str, dtype: torch.dtype) -> None:
    """Rounding may choose between two that are as good; what is found is as good as what fairseq finds."""
    model = model_of(task, "normformer").to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in net_input(task).items()}
    expected, found = both([model], inputs, beam_size=5)
    for theirs, ours in zip(expected, found, strict=True):
        for a, b in zip(theirs, ours, strict=True):
            assert b["score"].dtype == a["score"].dtype
            torch.testing.assert_close(b["score"], a["score"], rtol=0, atol=0.05)
    # the numbers are those of a model in this precision, not of another
    assert any(hypothesis["score"] != found[0][0]["score"] for one in found for hypothesis in one)


def test_sound_in_single_precision_reaches_a_model_in_half() -> None:
    model = model_of("speech", "pre_ln").bfloat16()
    inputs = net_input("speech")
    in_half = inputs | {"src_tokens": inputs["src_tokens"].bfloat16()}
    for found in zip(both([model], in_half), both([model], inputs), strict=True):
        assert_same(*found)


def both_of_ours(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[FasterSequenceGenerator, Found]:
    generator = FasterSequenceGenerator([model], make_dictionary(), beam_size=4, max_len_b=12)
    return generator, generator.generate([model], {"net_input": inputs})


class Task(FairseqTask):
    @property
    def target_dictionary(self) -> Any:
        return make_dictionary()


def test_tasks_build_it_for_one_model_of_this_plugin() -> None:
    ours, stock = build("translation", "pre_ln"), build_stock("translation", normalize_before=True)
    task = Task(Namespace())
    for models, settings, asked, kind in (
        ([ours], {}, None, FasterSequenceGenerator),
        ([stock], {}, None, SequenceGenerator),
        (EnsembleModel([ours]), {}, None, FasterSequenceGenerator),
        ([ours, ours], {}, None, SequenceGenerator),
        ([ours], {"print_alignment": "hard"}, None, SequenceGeneratorWithAlignment),
        ([ours], {}, SequenceGenerator, SequenceGenerator),
    ):
        assert type(task.build_generator(models, Namespace(**settings), asked)) is kind
    generator = task.build_generator([ours], Namespace(beam=3, lenpen=0.6, unkpen=1))
    assert (generator.beam_size, generator.len_penalty, generator.unk_penalty) == (3, 0.6, 1)


@pytest.mark.parametrize(("ours", "flag", "path", "dtype"), [
    (True, True, "a.pt", torch.bfloat16), (True, False, "a.pt", torch.float32), (False, True, "a.pt", torch.float32),
    (True, True, None, torch.float32)])  # fmt: skip
def test_bf16_is_a_precision_of_generation(ours: bool, flag: bool, path: str | None, dtype: torch.dtype) -> None:
    """And not of a model that was trained in it and comes from ``from_pretrained``, by the settings of its training."""
    model: Any = build("translation", "pre_ln") if ours else build_stock("translation", normalize_before=True)
    assert isinstance(model, BaseFairseqModel)
    common, common_eval = Namespace(bf16=flag, fp16=False), Namespace(path=path)
    model.prepare_for_inference_(Namespace(generation=Namespace(), common=common, common_eval=common_eval))
    assert {p.dtype for p in model.parameters()} == {dtype}


@needs_onednn
def test_a_model_in_training_is_searched_with_the_weights_that_it_has() -> None:
    """fairseq's optimizers write to ``p.data``, which leaves no trace."""
    model, inputs = model_of("translation", "pre_ln"), net_input("translation")
    generator, before = both_of_ours(model, inputs)
    assert generator.packed is None
    torch._foreach_mul_([p.data for p in model.parameters()], 1.5)
    after = generator.generate([model], {"net_input": inputs})
    expected, _ = both([model], inputs)
    assert_same(expected, after)
    assert [h["tokens"].tolist() for h in before[0]] != [h["tokens"].tolist() for h in after[0]]


@needs_onednn
def test_a_model_that_is_done_with_training_is_packed_once() -> None:
    model: Any = model_of("translation", "pre_ln")
    model.make_generation_fast_()
    generator, _ = both_of_ours(model, net_input("translation"))
    packed_linear = dict(generator.packed.packed)
    assert model.decoder.output_projection.weight in packed_linear
    generator.generate([model], {"net_input": net_input("translation")})
    assert all(generator.packed.packed[weight] is kept for weight, kept in packed_linear.items())


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_search, "packs_matrices", lambda: False)
    assert_same(*both([model_of("translation", "post_ln")], net_input("translation")))
