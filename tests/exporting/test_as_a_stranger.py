"""Exported folders in a process that has torch and transformers, and neither fairseq nor this package."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from torch import Tensor, nn

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.compare.entries import load

pytest.importorskip("transformers", reason="the extra hf is not installed")
sentencepiece = pytest.importorskip("sentencepiece", reason="the package sentencepiece is not installed")

TEXT = "the lower tower shows the slow owner lower towers\nnew owners know the lowest tower\nwide newer towers shower\n"
SENTENCES = ["the lower tower shows", "new owners", "wide towers know the lowest owner"]
BEAM, LONGEST = 4, 12
OPTIONS = {"bpe": ("--residual-args", "norm_type=largest")}
STRANGER = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_residuals", "fairseq_residuals_errors", "modern_fairseq"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

sentences, beam, longest = json.loads(sys.argv[1])
found = {}
for folder in ("bpe", "sentencepiece", "lm"):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    auto = AutoModelForCausalLM if folder == "lm" else AutoModelForSeq2SeqLM
    model = auto.from_pretrained(folder, trust_remote_code=True)
    inputs = tokenizer(sentences, return_tensors="pt", padding=True)
    # fairseq divides by the prompt's length too, transformers does not: of equal lengths both find the same
    limits = {"num_beams": beam, "max_new_tokens": longest + 1, "min_new_tokens": longest if folder == "lm" else 1}
    tokens = model.generate(**inputs, **limits)
    found[folder] = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    again = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    again.save_pretrained(folder + "_again"), model.save_pretrained(folder + "_again")
    copy = auto.from_pretrained(folder + "_again", trust_remote_code=True)
    assert torch.equal(copy.generate(**inputs, **limits), tokens)
print(json.dumps(found))
"""


OWN_NORM = """
from torch import nn

from fairseq_residuals import register_norm


class Largest(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.RMSNorm(dim).weight

    def forward(self, x):
        return self.weight * x / x.abs().amax(-1, keepdim=True).clamp(min=1e-6)


register_norm("largest", Largest)
"""


def build(task: str, variant: str, dictionary: Dictionary, folder: Path, *flags: str) -> tuple[nn.Module, Path]:
    """Write a checkpoint of a model with these words; returns the model too."""
    args = tiny.settings(f"{tiny.PREFIX[task]}_{variant}", *tiny.dimensions(task), *flags)
    args.task, args.source_lang, args.target_lang = task, "de", "en"
    torch.manual_seed(1)
    model = tiny.perturb(tiny.build_model(args, tiny.TinyTask(dictionary, dictionary, tiny.make_task().args))).eval()
    path = folder / f"{task}_{len(dictionary)}.pt"
    torch.save({"model": model.state_dict(), "args": args}, path)
    return model, path


def search(model: Any, dictionary: Dictionary, sentence: Tensor) -> Tensor:
    """The best hypothesis of fairseq; of a language model, a prompt and as many tokens as there may be."""
    alone = not hasattr(model, "encoder")
    longest = LONGEST + len(sentence) if alone else LONGEST
    generator = SequenceGenerator(
        [model], dictionary, beam_size=BEAM, max_len_b=longest, min_len=longest if alone else 1
    )
    sample = {"net_input": {"src_tokens": sentence[None], "src_lengths": torch.tensor([len(sentence)])}}
    best = generator.generate([model], sample, prefix_tokens=sentence[None] if alone else None)
    return best[0][0]["tokens"]  # type: ignore[no-any-return]


def dictionary_of(lines: list[str], folder: Path) -> Dictionary:
    """A dictionary of pieces, in a folder as fairseq-preprocess leaves it."""
    dictionary = Dictionary()
    for piece in " ".join(lines).split():
        dictionary.add_symbol(piece)
    dictionary.finalize()
    folder.mkdir()
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        dictionary.save(str(folder / name))
    return dictionary


@pytest.fixture(scope="module")
def found_and_expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What transformers makes of the sentences in each folder, and what fairseq makes of them here."""
    root = tmp_path_factory.mktemp("stranger")
    expected: dict[str, list[str]] = {}
    codes = root / "bpe.codes"
    with codes.open("w") as file:
        learn_bpe(io.StringIO(TEXT * 3), file, 40)
    bpe = BPE(codes.open())
    (root / "text").write_text(TEXT * 3)
    sentencepiece.SentencePieceTrainer.train(
        input=str(root / "text"), model_prefix=str(root / "spm"), vocab_size=26, minloglevel=2
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(root / "spm.model"))

    def split(line: str, kind: str) -> str:
        return " ".join(pieces.encode(line, out_type=str)) if kind == "sentencepiece" else bpe.process_line(line)

    (root / "own_norm.py").write_text(OWN_NORM)
    load(root / "own_norm.py", wirings=False)
    for kind, task, variant, flag, file in (
        ("bpe", "translation", "b2t", "--codes", codes),
        # its layers share parameters, which transformers saves where it knows of that
        ("sentencepiece", "translation", "depthwise_lstm", "--sentencepiece", root / "spm.model"),
        ("lm", "language_modeling", "mhc", "--codes", codes),
    ):
        dictionary = dictionary_of([split(line, kind) for line in TEXT.splitlines()], root / f"{kind}_data")
        model, path = build(task, variant, dictionary, root, *OPTIONS.get(kind, ()))
        export = ["export", "--to", "hf", "--data", str(root / f"{kind}_data"), flag, str(file), str(path)]
        assert main([*export, str(root / kind)]) == 0
        expected[kind] = []
        for line in SENTENCES:
            sentence = dictionary.encode_line(split(line, kind), add_if_not_exist=False, append_eos=kind != "lm")
            tokens = search(model, dictionary, sentence.long())
            symbol = "sentencepiece" if kind == "sentencepiece" else "@@ "
            expected[kind].append(dictionary.string(tokens, symbol, unk_string=""))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STRANGER, json.dumps([SENTENCES, BEAM, LONGEST])],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), expected


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece", "lm"])
def test_a_stranger_gets_what_fairseq_finds(
    kind: str, found_and_expected: tuple[dict[str, list[str]], dict[str, list[str]]]
) -> None:
    """With ``generate(num_beams=...)`` in one batch; of a language model, after prompts of different lengths."""
    found, expected = found_and_expected
    assert [" ".join(line.split()) for line in found[kind]] == [" ".join(line.split()) for line in expected[kind]]
