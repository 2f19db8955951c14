"""From the output of fairseq's tools to scores, on outputs written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_files import job_of

from fairseq_residuals.__main__ import build_parser
from fairseq_residuals.lab.recipes.evaluate import Score, check_references, mean_of, measure
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.recipe import Recipe
from fairseq_residuals.plugin.scoring.metrics import score
from fairseq_residuals.wirings.core.errors import UserError

ENGLISH = ["The cat sat on the mat today .", "A well-known dog ran over there ."]


def in_folder(name: str, folder: Path) -> Job:
    return job_of(name, gpus=0, data=folder / "data", out=folder / "out")


def generated(lines: list[str], targets: list[str]) -> str:
    """As fairseq-generate prints it, the longest sentence first."""
    out = []
    for i, (line, target) in reversed(list(enumerate(zip(lines, targets, strict=True)))):
        out += [f"S-{i}\tsource", f"T-{i}\t{target}", f"H-{i}\t-0.5\t{line}", f"D-{i}\t-0.5\t{line}", f"P-{i}\t-0.5"]
    speed = "Translated 2 sentences (1,234 tokens) in 5.0s (0.40 sentences/s, 246.80 tokens/s)"
    return "\n".join([*out, f"2026-01-01 | INFO | fairseq_cli.generate | {speed}", ""])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_dlcl_scores_text_without_bpe_after_splitting_compounds(tmp_path: Path) -> None:
    job = in_folder("dlcl/table5/decoder_4l", tmp_path)
    bleu, speed = (job.recipe.measurements[name][0] for name in ("BLEU", "speed_target_tok_per_s"))
    hypotheses = ["The cat sat on the mat .", ENGLISH[1]]
    for measurement in (bleu, speed):
        [evaluation] = job.evaluate(measurement)
        write(evaluation.log, generated(hypotheses, ["<<unk>>"] * 2))
    [reference] = [job.corpus / "text" / "test.de"]
    write(reference, "The c@@ at s@@ at on the mat to@@ day .\nA well-@@ known dog ran over there .\n")
    [found] = measure(job, bleu)
    # retokenizing leaves these sentences as they are; well-known counts as three tokens
    assert found.value == pytest.approx(score("compound_bleu", hypotheses, ENGLISH).value)
    assert found.value != pytest.approx(score("tokenized_bleu", hypotheses, ENGLISH).value)
    [found] = measure(job, speed)
    assert (found.metric, found.value) == ("target_tokens_per_second", 246.8)
    assert "batch_size 32" in found.signature
    reference.unlink()
    with pytest.raises(UserError, match=r"there are no references .*test\.de"):
        measure(job, bleu)


def test_layers_that_are_made_linear_are_a_curve_over_the_layers(tmp_path: Path) -> None:
    """One run of linearize has both stacks; its flags are its own, not those of fairseq-generate."""
    job = in_folder("depthwise_lstm/table1/base_lstm_en_de", tmp_path)
    [encoder], [decoder] = (job.recipe.measurements[f"linear_{stack}"] for stack in ("encoder", "decoder"))
    [evaluation], [same] = (list(job.evaluate(measurement)) for measurement in (encoder, decoder))
    assert evaluation == same
    assert evaluation.command[:4] == ["fairseq-residuals", "linearize", str(job.checkpoint), "--data"]
    args = build_parser().parse_args(evaluation.command[1:])
    assert (args.metric, args.beam, args.lenpen, args.updates, args.split) == ("bleu", 4, 0.0, 1000, "test")
    assert evaluation.log.with_suffix(".csv") == args.out / f"{args.name}.csv"
    rows = ["model,wiring,stack,layer,metric,value,change_percent,explained", "m,w,whole model,,bleu,28.4,0,"]
    rows += ["m,w,encoder,1,bleu,27.5,-3,0.9", "m,w,encoder,2,bleu,26.6,-6,0.9", "m,w,decoder,1,bleu,28.3,-0.4,0.9"]
    write(evaluation.log.with_suffix(".csv"), "\n".join(rows) + "\n")
    [score] = measure(job, encoder)
    assert (score.metric, score.value) == ("tokenized_bleu", {"None": 28.4, "1": 27.5, "2": 26.6})
    [score] = measure(job, decoder)
    assert score.value == {"None": 28.4, "1": 28.3}


def test_nist_is_scored_against_all_references(tmp_path: Path) -> None:
    job = in_folder("dlcl/table3/base", tmp_path)
    [measurement] = job.recipe.measurements["MT04"]
    [evaluation] = job.evaluate(measurement)
    write(evaluation.log, generated(ENGLISH, ENGLISH))
    others = [["Another one entirely here .", "And that ."], [ENGLISH[0].upper(), "Nothing ."], ["No .", ENGLISH[1]]]
    for number, lines in enumerate(others):
        write(job.corpus / "raw" / f"mt04.en{number or ''}", "\n".join(lines) + "\n")
    [found] = measure(job, measurement)
    # each sentence equals one of its references, but for case
    assert (found.metric, found.value) == ("tokenized_bleu_lc", pytest.approx(100))


def test_opus_is_the_mean_over_the_directions_that_the_corpus_has(tmp_path: Path) -> None:
    job = in_folder("resi_dual/table4/18l_resi_dual", tmp_path)
    write(job.data / "lang_pairs.txt", "en-de,en-fr,de-en,fr-en\n")
    from_english, to_english = (job.recipe.measurements[name][0] for name in ("EX", "XE"))
    evaluations = list(job.evaluate(from_english))
    flags = [" ".join(evaluation.command) for evaluation in evaluations]
    assert all(f"--source-lang en --target-lang {x}" in flag for x, flag in zip(("de", "fr"), flags, strict=True))
    assert all("--lang-pairs en-de,en-fr,de-en,fr-en" in flag for flag in flags)
    assert len(list(job.evaluate(to_english))) == 2
    assert "task.lang_pairs='en-de,en-fr,de-en,fr-en'" in job.train
    other = ["Nothing at all .", "A dog ran over there ."]
    write(evaluations[0].log, generated(ENGLISH, other))
    write(evaluations[1].log, generated(other, other))
    write(job.corpus / "raw/de-en/test.de", "".join(f"{line}\n" for line in ENGLISH))
    with pytest.raises(UserError, match=r"there are no references .*raw/en-fr/test\.fr"):
        check_references(job, [from_english])
    write(job.corpus / "raw/en-fr/test.fr", "".join(f"{line}\n" for line in ENGLISH))
    check_references(job, [from_english])
    worse = score("sacrebleu", other, ENGLISH).value
    [found] = measure(job, from_english)
    assert found.value == pytest.approx((100 + worse) / 2)
    assert found.signature.endswith("|mean:2 directions en-*")


def test_means_are_of_one_metric() -> None:
    parts = [[Score("sacrebleu", 20.0, "s")], [Score("sacrebleu", 30.0, "s")]]
    assert mean_of(parts, "|mean") == Score("sacrebleu", 25.0, "s|mean")
    with pytest.raises(UserError, match="only numbers of one metric have a mean"):
        mean_of([*parts, [Score("wer", 1.0, "w")]], "|mean")


def test_average_of_the_years_is_without_the_other_score_of_2014() -> None:
    recipe = job_of("b2t/table1/6l_b2t").recipe
    assert list(recipe.needed(["Average"])) == [str(year) for year in range(2010, 2017)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"corpus": None}, "names no corpus"),
        ({"scores": {"A": {"set": "test", "metrc": "wer"}}}, "has unknown keys metrc; valid: "),
        ({"evaluate": {"tool": "fairseq-generate"}}, "has no metric"),
        ({"scores": {"A": {"mean": ["B"]}}}, "is a mean of B, which is no score"),
        ({"evaluate": {"tool": "fairseq-genrate", "metric": "wer"}}, "tool is 'fairseq-genrate'; valid: fairseq-gen"),
        ({"evaluate": {"tool": "fairseq-generate", "metric": "blue"}}, "metric is 'blue'; valid of .*, wer, "),
        ({"evaluate": {"tool": "train-log", "metric": ["wer"]}}, "metric is 'wer'; valid of train-log: joeynmt_ppl"),
        ({"evaluate": {"metric": "wer"}}, "tool is None; valid: fairseq-gen"),
        ({"evaluate": {"tool": "fairseq-generate", "metric": "wer", "retokenize": "deutsch"}}, "is called 'deutsch'"),
        ({"average": {"last": 3, "unit": "month"}}, "average is .*'month'}; valid: null, or {last: N, unit: epoch or"),
        ({"average": {"last": 3}}, "average is {'last': 3}; valid: null, or"),
        ({"average": {"last": 0, "unit": "epoch"}}, "valid: null, or"),
        ({"average": 5}, "average is 5; valid: null, or"),
    ],
)
def test_mistakes_in_a_recipe_are_refused(change: dict[str, object], said: str) -> None:
    section: dict[str, object] = {"corpus": "c", "variant": None, "average": None, "checkpoint": "checkpoint_best.pt"}
    section |= {"evaluate": {"tool": "fairseq-generate", "metric": "wer"}, "scores": {"A": {"set": "test"}}}
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        Recipe.parse("x", section | change)
