"""Scores by the commands: generation and validation by the plugin's metrics, and ``fairseq-residuals score``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import execute, load, succeed
from tiny_jobs import ADAM, LANGUAGE_MODEL, SPEECH, TRANSLATION
from yaml_configs import config, hydra_argv

from fairseq_residuals.__main__ import main
from fairseq_residuals.plugin.scoring.metrics import score
from fairseq_residuals.plugin.scoring.text import read_generation
from fairseq_residuals.wirings.core.errors import UserError

SEARCH = ("--beam", "2", "--max-len-b", "20")
ARGUMENTS = '{"beam": 2, "max_len_b": 20}'


def generate(job, data: Path, checkpoint: Path, metric: str):
    flags = job.use_flags(data, checkpoint)
    return succeed("fairseq-generate", *flags, "--gen-subset", "valid", *SEARCH, "--scoring", metric)


def printed(run) -> dict[str, float]:
    """What the last line of fairseq-generate says."""
    last = run.out.strip().splitlines()[-1]
    assert last.startswith("Generate valid with beam=2: ")
    return {name.lower(): float(number) for name, number in re.findall(r"(\w+)(?: =|:) ([\d.]+)", last)}


def of_the_best(scores: list[float]) -> int:
    """Where the last of the highest scores is: fairseq keeps the later of two equal checkpoints."""
    return max(range(len(scores)), key=lambda i: (scores[i], i))


def logged(run, metric: str) -> list[float]:
    return [entry[f"valid_{metric}"] for entry in run.records("valid")]


@pytest.fixture(scope="module")
def translation(once, data_of):
    """A job of fairseq-hydra-train that keeps the checkpoint of the best ROUGE."""

    def train(folder):
        settings = config(TRANSLATION, data_of(TRANSLATION), folder / "save")
        settings["task"] |= {"_name": "scored_translation", "eval_scoring": "rouge", "eval_scoring_args": ARGUMENTS}
        settings["checkpoint"] |= {"best_checkpoint_metric": "rouge2", "maximize_best_checkpoint_metric": True}
        settings["optimization"]["max_update"] = 60
        run = execute(hydra_argv(settings, folder), cwd=folder)
        assert run.status == 0, run
        best = folder / "save" / "checkpoint_best.pt"
        return run, generate(TRANSLATION, data_of(TRANSLATION), best, "rouge")

    return once("scored_translation", train)


def test_validation_keeps_the_checkpoint_of_the_best_score(translation) -> None:
    folder, (run, _) = translation
    scores = logged(run, "rouge2")
    assert len(set(scores)) > 2
    best = load(folder / "save" / "checkpoint_best.pt")
    assert best["extra_state"]["best"] == max(scores)
    updates = best["optimizer_history"][-1]["num_updates"]
    assert updates == run.records("valid")[of_the_best(scores)]["valid_num_updates"]


def test_validation_scores_as_generation_does(translation) -> None:
    """fairseq-generate of the best checkpoint, by the plain translation task."""
    _, (run, generated) = translation
    at = of_the_best(logged(run, "rouge2"))
    names = ("rouge1", "rouge2", "rougeL", "rouge")
    assert printed(generated) == {name.lower(): logged(run, name)[at] for name in names}


def test_the_score_command_on_what_generation_printed(translation, tmp_path, capsys) -> None:
    _, (_, generated) = translation
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


def test_two_processes_validate_as_one_generation(data_of, tmp_path) -> None:
    """Three batches for two processes: one computes on a dummy batch that must not count. The value is that of the
    whole set, words counted, not a mean over batches or processes."""
    data = data_of(SPEECH)
    flags = SPEECH.train_flags(data, tmp_path)
    flags[flags.index("speech_to_text")] = "scored_speech_to_text"
    flags += ["--eval-scoring", "wer", "--eval-scoring-args", ARGUMENTS, "--best-checkpoint-metric", "wer"]
    more = ["--batch-size-valid", 3, "--max-epoch", 3, "--distributed-world-size", 2]
    run = succeed("fairseq-train", *flags, *ADAM, *more)
    last = generate(SPEECH, data, tmp_path / "checkpoint_last.pt", "wer")
    assert logged(run, "wer")[-1] == printed(last)["wer"]
    (tmp_path / "output").write_text(last.out)
    found = read_generation(tmp_path / "output")
    assert round(score("wer", found.detokenized, found.targets).value, 2) == printed(last)["wer"]
    assert run.records("valid")[-1]["valid_best_wer"] == min(logged(run, "wer"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--eval-scoring", "rogue"], "there is no metric 'rogue'; the metrics are"),
        (["--eval-scoring", "rouge", "--eval-scoring-args", "beam=4"], "'beam=4' is no JSON object"),
    ],
)
def test_mistakes_in_how_to_validate(flags, sentence, data_of) -> None:
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    arguments = TRANSLATION.train_flags(data_of(TRANSLATION), Path("nowhere"))
    arguments[arguments.index("translation")] = "scored_translation"
    args = options.parse_args_and_arch(options.get_training_parser(), [*arguments, *ADAM, *flags])
    settings = convert_namespace_to_omegaconf(args)
    with pytest.raises(UserError, match=re.escape(sentence)):
        tasks.setup_task(settings.task).build_model(settings.model)


def test_perplexity_from_the_logs_of_the_commands(data_of, trained, tmp_path, capsys) -> None:
    checkpoint = trained(LANGUAGE_MODEL)[0] / "checkpoint_last.pt"
    use = [*LANGUAGE_MODEL.use_flags(data_of(LANGUAGE_MODEL), checkpoint), "--gen-subset", "valid"]
    run = succeed("fairseq-eval-lm", *use, "--context-window", 5)
    words = sum(len(line.split()) + 1 for line in (data_of(LANGUAGE_MODEL) / "text" / "valid").read_text().splitlines())
    (tmp_path / "log").write_text(run.out + run.err)
    assert main(["score", "ppl", str(tmp_path / "log")]) == 0
    value = re.search(r"Perplexity: ([\d.]+)", run.out + run.err)[1]
    assert capsys.readouterr().out == (
        f"ppl_context_5 = {value}\n"
        f"PPL|per:token of the dictionary|eos:counted|context:5|block:12|break:none|tokens:{words}\n"
    )

    checkpoint = trained(TRANSLATION)[0] / "checkpoint_last.pt"
    run = succeed(
        "fairseq-validate", *TRANSLATION.use_flags(data_of(TRANSLATION), checkpoint), "--valid-subset", "test"
    )
    (tmp_path / "log").write_text(run.out + run.err)
    assert main(["score", "ppl", str(tmp_path / "log"), "--subset", "test"]) == 0
    value = float(re.search(r"ppl = ([\d.]+)", capsys.readouterr().out)[1])
    assert value == pytest.approx(float(re.search(r"\| ppl ([\d.]+)", run.out + run.err)[1]), rel=1e-3)
