"""The exported tokenizer: BPE as subword-nmt's, numbers as fairseq's dictionary has them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import tiny
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

pytest.importorskip("transformers", reason="the extra hf is not installed")

from fairseq_residuals.wirings.export.hf_tokenizer import ResidualTokenizer
from fairseq_residuals.wirings.export.pieces import apply_bpe, read_codes

TEXT = (
    "the lower tower shows the slow owner lower towers\nnew owners know the lowest tower\nwide newer towers shower\n"
    * 3
)


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codes") / "codes"
    with path.open("w") as file:
        learn_bpe(io.StringIO(TEXT), file, 40)
    return path


@given(word=st.text(st.sampled_from("aehlnorstw"), min_size=1, max_size=12))
def test_bpe_is_that_of_subword_nmt(word: str, codes: Path) -> None:
    expected = BPE(codes.open()).segment(word).split()
    assert apply_bpe(word, read_codes(codes)) == expected


def test_codes_that_repeat_a_merge(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\n" + "a b\n" * 5 + "c d</w>\n")
    assert apply_bpe("xcd", read_codes(path)) == BPE(path.open()).segment("xcd").split()


def test_of_words_that_are_there_twice_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_text("a 5\n<unk> 3 #fairseq:overwrite\na 2 #fairseq:overwrite\n")
    expected = Dictionary.load(str(path)).encode_line("a <unk> zebra", add_if_not_exist=False).tolist()
    assert ResidualTokenizer(str(path), str(path))("a <unk> zebra")["input_ids"] == expected


def test_text_to_numbers_and_back(codes: Path, tmp_path: Path) -> None:
    bpe, dictionary = BPE(codes.open()), Dictionary()
    for line in TEXT.splitlines():
        for piece in bpe.process_line(line).split():
            dictionary.add_symbol(piece)
    dictionary.finalize()
    dictionary.save(str(tmp_path / "dict.txt"))
    tokenizer = ResidualTokenizer(str(tmp_path / "dict.txt"), str(tmp_path / "dict.txt"), str(codes))
    for sentence in ("the lower tower shows", "new </s> owners", "zebra", "new\u00a0owners\u3000show", "\tnew"):
        expected = dictionary.encode_line(bpe.process_line(sentence), add_if_not_exist=False).tolist()
        # fairseq reads the sign of an end as one; here it is text
        if "</s>" not in sentence:
            assert tokenizer(sentence)["input_ids"] == expected
    numbers = tokenizer("the lower towers")["input_ids"]
    assert tokenizer.decode(numbers, skip_special_tokens=True) == "the lower towers"


def test_sentences_of_a_batch_are_padded(tmp_path: Path) -> None:
    tiny.make_dictionary().save(str(tmp_path / "dict.txt"))
    tokenizer = ResidualTokenizer(str(tmp_path / "dict.txt"), str(tmp_path / "dict.txt"))
    batch = tokenizer(["w1 w2 w3", "w4"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[5, 6, 7, 2], [8, 2, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_text_target_has_the_numbers_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "source.txt").write_text("a 1\nb 1\n")
    (tmp_path / "target.txt").write_text("c 1\nb 1\na 1\n")
    tokenizer = ResidualTokenizer(str(tmp_path / "source.txt"), str(tmp_path / "target.txt"))
    both = tokenizer(["a b c"], text_target=["a b c"])
    assert (both["input_ids"], both["labels"]) == ([[4, 5, 3, 2]], [[6, 5, 4, 2]])
    assert tokenizer.decode(both["labels"][0], skip_special_tokens=True) == "a b c"
    assert tokenizer(["a b c"])["input_ids"] == both["input_ids"]
    # of labels, -100 is where there is no loss: no word, however many the dictionary has
    assert tokenizer.decode([4, -1]) == tokenizer.decode([4, 99]) == "c <unk>"


@pytest.mark.parametrize("line", ["word", "word x", " "])
def test_a_damaged_dictionary_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text(f"good 1\n{line}\n")
    with pytest.raises(ValueError, match=r"line 2 of .* is no token with its count"):
        ResidualTokenizer(str(tmp_path / "dict.txt"), str(tmp_path / "dict.txt"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """What transformers hands over for it is None; words would be split otherwise than in training."""
    tiny.make_dictionary().save(str(tmp_path / "dict.txt"))
    dictionaries = str(tmp_path / "dict.txt"), str(tmp_path / "dict.txt")
    for splits_by, name in (("bpe_codes", r"bpe\.codes"), ("sentencepiece_model", r"sentencepiece\.model")):
        with pytest.raises(ValueError, match=f"needs {name}, and its folder has no such file"):
            ResidualTokenizer(*dictionaries, splits_by=splits_by)
    with pytest.raises(ValueError, match=r"needs target\.dict\.txt, and its folder"):
        ResidualTokenizer(dictionaries[0], None)
