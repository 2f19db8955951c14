"""What scripts/demo.sh asks for, at toy scale: data from CLDR, BLEU, checkpoints that the documents name."""

from __future__ import annotations

import re
from pathlib import Path

from running import succeed
from sacrebleu.metrics import BLEU

from fairseq_residuals.lab.compare.cells import read_results

ROOT = Path(__file__).parents[2]
TOY = ["compare", "pre_ln", "b2t", "--task", "cldr", "--score"]
TOY += ["--rates", "0.001", "--seeds", "1", "--baseline-seeds", "1"]
TOY += ["--keep-checkpoints", "--jobs", "2", "--depth", "2", "--updates", "10", "--override", "recipe.variant=tiny"]


def test_the_demo_scores_and_leaves_models(tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = succeed("fairseq-residuals", *TOY, "--out", out, cwd=tmp_path).out
    assert "One seed decides nothing" in printed and "b2t: not decided" in printed
    (runs,) = out.glob("cldr-*/runs.csv")
    results = {result.entry: result for result in read_results(runs)}
    assert set(results) == {"pre_ln", "b2t"}
    check_bleu(out, results["b2t"].score, results["b2t"].signature)
    check_the_models_that_the_readme_names(out)


def check_bleu(out: Path, score: float | None, signature: str) -> None:
    """Against sacreBLEU, from fairseq's log and the raw references."""
    (generated,) = out.glob("cldr-*/runs/compare/cldr/b2t-*/seed1/evaluated/*.log")
    numbered = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", generated.read_text("utf-8"), re.MULTILINE))
    hypotheses = [numbered[str(i)] for i in range(len(numbered))]
    (references,) = out.glob("data/cldr_en_de/tiny/raw/test.de")
    metric = BLEU()
    expected = metric.corpus_score(hypotheses, [references.read_text("utf-8").splitlines()])
    assert len(hypotheses) == 10
    assert score == expected.score
    assert str(metric.get_signature()) in signature


def check_the_models_that_the_readme_names(out: Path) -> None:
    """The patterns in its commands."""
    commands = "DATA=demo_out/data/cldr_en_de/plain RUNS=$(echo demo_out/cldr-*/runs/compare/cldr)\n"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert commands in text
    block = text.split(commands)[1].split("```")[0]
    named = re.findall(r"\$DATA/([\w/-]+)|\$RUNS/((?:b2t|pre_ln)-[\w*/.-]+)", block)
    patterns = {f"data/cldr_en_de/tiny/{data}" if data else f"cldr-*/runs/compare/cldr/{run}" for data, run in named}
    assert len(patterns) == 4
    assert {pattern: len(list(out.glob(pattern))) for pattern in patterns} == dict.fromkeys(patterns, 1)
