"""The treatment of hypotheses and references before the BLEU of the DLCL paper."""

from __future__ import annotations

from collections.abc import Iterable

from modern_fairseq.errors import UserError


def retokenize(lines: Iterable[str], language: str = "de") -> list[str]:
    """Detokenizes Moses tokens, replaces Unicode punctuation by ASCII, and tokenizes again, as wangqiangneu/dlcl does
    with both sides before compounds are split.

    Raises:
        UserError: sacremoses is not installed.
    """
    try:
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
    except ModuleNotFoundError:
        raise UserError("this needs the package sacremoses: pip install sacremoses") from None
    detokenizer, tokenizer = MosesDetokenizer(lang=language), MosesTokenizer(lang=language)
    punctuation = MosesPunctNormalizer(lang=language)
    return [
        tokenizer.tokenize(punctuation.replace_unicode_punct(detokenizer.detokenize(line.split())), return_str=True)
        for line in lines
    ]
