"""fairseq-generate and -interactive on models of translation and speech, wired by flags, on sound and on features."""

from __future__ import annotations

import dataclasses
import re

import pytest
import tiny_data
from running import load, succeed
from tiny_jobs import ADAM, SPEECH, TRANSLATION

ZIPPED = dataclasses.replace(
    SPEECH, name="zipped_features", arch="s2t_transformer_post_ln_s", prepare=tiny_data.write_zipped_features
)
TESTED = tiny_data.SIZES["test"]


def text_of(data):
    return (data / "text" / "test.s").read_text()


def sounds_of(data):
    return "".join(f"{data / 'wav' / f'test{i}.wav'}\n" for i in range(TESTED))


@pytest.mark.parametrize(
    ("job", "batch_size", "lines_of"), [(TRANSLATION, 4, text_of), (SPEECH, 1, sounds_of)], ids=["text", "sound"]
)
def test_interactive_finds_what_generate_does(job, batch_size, lines_of, data_of, trained):
    """Sentences or paths on standard input, one by one, so without padding: the same words and scores."""
    data, checkpoint = data_of(job), trained(job)[0] / "checkpoint_last.pt"
    search = ["--beam", 3, *(["--max-len-b", 8] if job is SPEECH else [])]
    flags = [*job.use_flags(data, checkpoint, batch_size), *search, "--gen-subset", "test"]
    expected = succeed("fairseq-generate", *flags).hypotheses()["H"]
    # as many processes as there are GPUs, unless told otherwise
    alone = [*job.use_flags(data, checkpoint, batch_size=None), "--distributed-world-size", 2]
    found = succeed("fairseq-interactive", *alone, *search, stdin=lines_of(data)).hypotheses()["H"]
    assert set(found) == set(expected)
    for i, (score, words) in expected.items():
        assert found[i][1] == words
        assert float(found[i][0]) == pytest.approx(float(score), abs=1e-5)


def test_another_wiring_of_the_decoder_by_flags(data_of, tmp_path):
    """--residual overrides the architecture's variant, --decoder-residual that of the decoder."""
    data = data_of(TRANSLATION)
    wiring = ["--residual", "pre_ln", "--decoder-residual", "b2t", "--decoder-residual-args", "init_scale=0.5"]
    flags = [*TRANSLATION.train_flags(data, tmp_path), *ADAM, "--max-update", 2, *wiring]
    run = succeed("fairseq-train", *flags)
    assert re.search(r"encoder: 2 layers wired by pre_ln \(init=fairseq,init_scale=1,\S+,final_norm=true\)", run.out)
    assert re.search(r"decoder: 2 layers wired by b2t \(init=fairseq,init_scale=0.5,\S+\)", run.out)
    use = TRANSLATION.use_flags(data, tmp_path / "checkpoint_last.pt")
    assert len(succeed("fairseq-generate", *use, "--beam", 2, "--max-len-b", 10).hypotheses()["H"]) == TESTED


def test_features_in_a_zip_train_a_post_ln_model(data_of, tmp_path):
    """Masked at random; no norm on top of either stack, although fairseq's own speech models force Pre-LN."""
    data = data_of(ZIPPED)
    run = succeed("fairseq-train", *ZIPPED.train_flags(data, tmp_path), *ADAM, "--max-update", 22)
    assert sum(run.losses[-4:]) < 0.9 * sum(run.losses[:4])
    assert "encoder: 2 layers wired by post_ln" in run.out
    names = load(tmp_path / "checkpoint_last.pt")["model"]
    assert not [name for name in names if name.startswith(("encoder.layer_norm", "decoder.layer_norm"))]
    use = ZIPPED.use_flags(data, tmp_path / "checkpoint_last.pt")
    found = succeed("fairseq-generate", *use, "--gen-subset", "test", "--beam", 1, "--max-len-b", 8).hypotheses()
    assert len(found["H"]) == TESTED
