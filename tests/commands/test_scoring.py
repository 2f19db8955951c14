"""Scores by the commands: generation by the plugin's metrics, and ``fairseq-residuals score``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import succeed
from tiny_jobs import LANGUAGE_MODEL, SPEECH, TRANSLATION

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.scoring.perplexity import perplexity_of_eval_lm, perplexity_of_validate
from fairseq_residuals.plugin.scoring.metrics import score
from fairseq_residuals.plugin.scoring.text import read_generation

SEARCH = ("--beam", "2", "--max-len-b", "20")


def generate(job, data: Path, checkpoint: Path, metric: str):
    flags = job.use_flags(data, checkpoint)
    return succeed("fairseq-generate", *flags, "--gen-subset", "valid", *SEARCH, "--scoring", metric)


def printed(run) -> dict[str, float]:
    """What the last line of fairseq-generate says."""
    last = run.out.strip().splitlines()[-1]
    assert last.startswith("Generate valid with beam=2: ")
    return {name.lower(): float(number) for name, number in re.findall(r"(\w+)(?: =|:) ([\d.]+)", last)}


@pytest.fixture(scope="module")
def generated(trained, data_of):
    """What fairseq-generate prints of a translation model, scored by ROUGE."""
    checkpoint = trained(TRANSLATION)[0] / "checkpoint_last.pt"
    return generate(TRANSLATION, data_of(TRANSLATION), checkpoint, "rouge")


def test_the_score_command_on_what_generation_printed(generated, tmp_path, capsys) -> None:
    output, hypotheses, references = (tmp_path / name for name in ("output", "hypotheses", "references"))
    output.write_text(generated.out)
    found = read_generation(output)
    hypotheses.write_text("".join(f"{line}\n" for line in found.hypotheses))
    references.write_text("".join(f"{line}\n" for line in found.targets))

    assert main(["score", "rouge", str(output)]) == 0
    text = capsys.readouterr().out
    assert {k.lower(): float(v) for k, v in re.findall(r"(\w+) = ([\d.]+)", text)} == printed(generated)
    for metric in ("sacrebleu", "compound_bleu", "wer"):
        scores = score(metric, found.hypotheses, found.targets)
        for files in ([output], [output, references], [hypotheses, references]):
            assert main(["score", metric, *map(str, files)]) == 0
            assert capsys.readouterr().out == f"{metric} = {scores.value:.2f}\n{scores.signature}\n"
    texts = tmp_path / "texts"
    texts.write_text(re.sub(r"^(D-\d+\t\S+\t)(.*)", r"\1A \2.", output.read_text(), flags=re.MULTILINE))
    assert main(["score", "tokenized_bleu", str(texts), str(references)]) == 0
    capsys.readouterr()
    for wrong, sentence in (
        (["score", "tokenized_bleu", str(texts)], "are tokens, its T- lines are not"),
        (["score", "rouge", str(hypotheses)], "name the references"),
        (["score", "wer", str(hypotheses), str(tmp_path / "none")], "there is no file"),
    ):
        assert main(wrong) == 1
        assert sentence in capsys.readouterr().err


def test_the_word_error_rate_is_fairseqs(data_of, trained, tmp_path) -> None:
    """fairseq counts words over all batches, and prints what our metric finds in its output."""
    checkpoint = trained(SPEECH)[0] / "checkpoint_last.pt"
    run = generate(SPEECH, data_of(SPEECH), checkpoint, "wer")
    (tmp_path / "output").write_text(run.out)
    found = read_generation(tmp_path / "output")
    assert round(score("wer", found.detokenized, found.targets).value, 2) == printed(run)["wer"]


def test_perplexity_from_the_logs_of_the_commands(data_of, trained) -> None:
    checkpoint = trained(LANGUAGE_MODEL)[0] / "checkpoint_last.pt"
    use = [*LANGUAGE_MODEL.use_flags(data_of(LANGUAGE_MODEL), checkpoint), "--gen-subset", "valid"]
    run = succeed("fairseq-eval-lm", *use, "--context-window", 5)
    words = sum(len(line.split()) + 1 for line in (data_of(LANGUAGE_MODEL) / "text" / "valid").read_text().splitlines())
    found = perplexity_of_eval_lm(run.out + run.err)
    value = re.search(r"Perplexity: ([\d.]+)", run.out + run.err)[1]
    assert (f"{found.value:.2f}", found.metric) == (value, "ppl_context_5")
    assert found.signature == (
        f"PPL|per:token of the dictionary|eos:counted|context:5|block:12|break:none|tokens:{words}"
    )

    checkpoint = trained(TRANSLATION)[0] / "checkpoint_last.pt"
    run = succeed(
        "fairseq-validate", *TRANSLATION.use_flags(data_of(TRANSLATION), checkpoint), "--valid-subset", "test"
    )
    value = perplexity_of_validate(run.out + run.err, "test").value
    assert value == pytest.approx(float(re.search(r"\| ppl ([\d.]+)", run.out + run.err)[1]), rel=1e-3)
