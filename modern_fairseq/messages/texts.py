"""The texts of fairseq-preprocess: refused before anything is written where they make no data set."""

import argparse
import os
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import replaces


def check_texts(module: types.ModuleType) -> None:
    """Read all texts once before fairseq-preprocess binarizes them (preprocess.py:272-380).

    It writes data sets of sides that do not belong together, or that are empty, without a word.
    Can go when fairseq > 0.12.2 refuses them.
    """

    @replaces(module, "main")
    def main(original: Any, args: argparse.Namespace) -> Any:
        check(args)
        return original(args)


def check(args: argparse.Namespace) -> None:
    """Check the texts that the arguments of fairseq-preprocess name.

    Raises:
        UserError: a language is missing, or both are one; a text is missing, empty or not UTF-8; texts that belong
            together have different numbers of lines.
    """
    languages = [args.source_lang]
    if not args.only_source:
        languages.append(args.target_lang)
        for flag, language in zip(("--source-lang", "--target-lang"), languages, strict=True):
            if language is None:
                raise UserError(f"{flag} is missing: name the language, or give --only-source for a text by itself")
        if args.source_lang == args.target_lang:
            raise UserError(
                f"--source-lang and --target-lang are both {args.source_lang}, one and the same text: name two"
                " languages, or give --only-source"
            )
    prefixes = [("--trainpref", args.trainpref)] if args.trainpref else []
    if not args.dict_only:
        for flag, several in (("--validpref", args.validpref), ("--testpref", args.testpref)):
            prefixes += [(flag, prefix) for prefix in several.split(",")] if several else []
    for flag, prefix in prefixes:
        texts = [f"{prefix}.{language}" if language else prefix for language in languages]
        lines = {path: count_lines(path, flag) for path in texts}
        if len(set(lines.values())) > 1:
            counts = ", ".join(f"{path} has {count:,}" for path, count in lines.items())
            raise UserError(f"the texts of {flag} must have as many lines as each other: {counts}")


def count_lines(path: str, flag: str) -> int:
    r"""Count lines as fairseq reads them, where ``\n``, ``\r\n`` and ``\r`` end one.

    Args:
        flag: that named the file, for the error.

    Raises:
        UserError: there is no such file, it has no words, or it is not UTF-8.
    """
    if not os.path.isfile(path):
        raise UserError(f"{flag}: there is no file {path}")
    try:
        with open(path, encoding="utf-8") as file:
            lines, words = 0, False
            for sentence in file:
                lines += 1
                words = words or not sentence.isspace()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}): convert it, as iconv does") from None
    if not lines:
        raise UserError(f"{path} is empty: one sentence a line is needed")
    if not words:
        raise UserError(f"{path} has no word in any of its {lines:,} lines: one sentence a line is needed")
    return lines
