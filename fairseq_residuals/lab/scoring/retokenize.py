"""The treatment of hypotheses and references before the BLEU of the DLCL paper."""

from __future__ import annotations

from collections.abc import Iterable

from fairseq_residuals.wirings.core.errors import UserError


def retokenize(lines: Iterable[str], language: str = "de") -> list[str]:
    """Detokenize Moses tokens, replace Unicode punctuation by ASCII, and tokenize again.

    wangqiangneu/dlcl does so with both sides before compounds are split.

    Raises:
        UserError: sacremoses is not installed, or does not know the language and would take it for English.
    """
    try:
        from fairseq_residuals.lab.data.moses import LANGUAGES, Chain, Detokenize, ReplaceUnicodePunctuation, Tokenize
    except ModuleNotFoundError as missing:
        raise UserError(f"this needs the package {missing.name}: pip install {missing.name}") from None
    if language not in LANGUAGES:
        raise UserError(f"no language to tokenize is called {language!r}; valid: {', '.join(LANGUAGES)}")
    treat = Chain((Detokenize(language), ReplaceUnicodePunctuation(), Tokenize(language)))
    return [treat(line) for line in lines]
