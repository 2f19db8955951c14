"""Perplexities from what fairseq-eval-lm and fairseq-validate print; nothing is evaluated here.

A perplexity says little without three things: per what it is (words, or the dictionary's subwords), how much context
a word has at the start of a block (``--context-window``), and how long a block is. All three go into the signature.
"""

from __future__ import annotations

import math
import re

from fairseq_residuals.lab.scoring import Score
from fairseq_residuals.plugin.scoring.text import SKIPPED
from fairseq_residuals.wirings.core.errors import UserError

_NUMBER = r"(-?\d+\.?\d*|-?inf|nan)"
_EVAL_LM = re.compile(rf"Loss \(base 2\): {_NUMBER}, Perplexity: {_NUMBER}")
_LARGEST = 1000.0
"""Bits of a loss; 2 to the power of 1024 is more than a float can hold."""
_TOKENS = re.compile(r"Evaluated (\d[\d,]{0,17}) tokens in ")
_SETTING = r"'{}': (None|True|False|'[^']*'|[^,}}]+)"


def perplexity_of_eval_lm(log: str, *, words: int | None = None) -> Score:
    """Return the perplexity per word that one run of fairseq-eval-lm printed (give its whole log, stdout and stderr).

    Its name, such as ``ppl_context_960``, says how many words before a block its first word sees at least, as far as
    the text goes back.

    fairseq divides by the tokens of its dictionary, the end of each line among them. Where these are words (or
    ``--remove-bpe`` was given), that is per word. Where they are subwords, give ``words``: the words of the text
    plus one for the end of each line; the loss of the text is then divided by them instead.

    Raises:
        UserError: the log is not of exactly one complete run; its settings are missing; the run left out a part of the
            text; its loss is not a number.
    """
    loss, printed = map(float, _only(_EVAL_LM, log, "result of fairseq-eval-lm, 'Loss (base 2): ..., Perplexity: ...'"))
    _check_whole(log, "fairseq-eval-lm", "max_target_positions by --model-overrides")
    tokens = int(_only(_TOKENS, log, "count, 'Evaluated ... tokens'")[0].replace(",", ""))
    _check_agreement(loss, printed, "the log contradicts itself")
    window, block = (int(_setting(log, key)) for key in ("context_window", "tokens_per_sample"))
    post_process = _setting(log, "post_process")
    unit = "token of the dictionary" if post_process == "None" else f"word ({post_process} removed)"
    if words is not None:
        if post_process != "None":
            raise UserError("the loss is per word already: fairseq-eval-lm ran with --remove-bpe (--post-process)")
        loss, unit = loss * tokens / words, f"word ({words} in {tokens} tokens)"
    breaks = _setting(log, "sample_break_mode").strip("'")
    signature = f"PPL|per:{unit}|eos:counted|context:{window}|block:{block}|break:{breaks}|tokens:{tokens}"
    return Score(f"ppl_context_{window}", 2**loss, signature)


def perplexity_of_validate(log: str, subset: str = "valid") -> Score:
    """Return the perplexity of a translation model on a parallel text that fairseq-validate printed.

    It is per token of the target dictionary (subwords, the end of each sentence among them), given the reference
    before it.

    Raises:
        UserError: the log is not of exactly one complete run on ``subset``, the run left out sentences, or its loss is
            not a number or not the likelihood.
    """
    result = rf"valid on '{re.escape(subset)}' subset"
    # from the beginning of a line and once in it: a line of many would take the square of its length
    wanted = re.compile(rf"(?m)^(?:(?!{result})[^\n])*{result}( \|[^\n]*\| ppl [^\n]*)")
    (line,) = _only(wanted, log, f"result of fairseq-validate on {subset}, '... loss ... ppl ...'")
    values = dict(re.findall(r"\| (\w+) (\S+)", line))
    _check_whole(log, "fairseq-validate", "--max-tokens, --max-source-positions and --max-target-positions")
    # fairseq's cross_entropy has nothing but the likelihood in its loss, and does not say it twice
    loss, ppl = (float(values[name]) for name in ("nll_loss" if "nll_loss" in values else "loss", "ppl"))
    _check_agreement(loss, ppl, "the criterion is not the likelihood")
    return Score("ppl", 2**loss, "PPL|per:token of the dictionary|eos:counted|forced decoding")


def joeynmt_perplexity(loss: float, vocabulary: int, smoothing: float) -> float:
    """Return what JoeyNMT 2 calls perplexity, from the smoothed cross entropy, the ``loss`` that fairseq logs in bits.

    It is exp of the Kullback-Leibler divergence from the smoothed targets, so their entropy is subtracted:
    ``smoothing`` spread over all but the target word and the padding. (fairseq spreads it over the padding too, a
    difference of ``smoothing / vocabulary`` in one probability.)
    """
    others = vocabulary - 2
    spread = smoothing * math.log(smoothing / others) if smoothing else 0.0
    entropy = -(1 - smoothing) * math.log(1 - smoothing) - spread
    exponent = loss * math.log(2) - entropy
    return math.inf if exponent > _LARGEST * math.log(2) else math.exp(exponent)


def _check_whole(log: str, program: str, limits: str) -> None:
    skipped = SKIPPED.search(log)
    if skipped:
        raise UserError(
            f"{program} left out {skipped[1]} samples that are too long, so that this is not the perplexity of the"
            f" whole text: raise {limits}"
        )
    if "skipping tokens with inf scores" in log:
        raise UserError(f"{program} left out tokens of probability 0: the perplexity of the whole text is infinite")


def _check_agreement(loss: float, printed: float, why: str) -> None:
    """Check that the loss is the logarithm of the perplexity that was printed beside it.

    Raises:
        UserError: the loss is no number of bits, or ``printed`` is not its perplexity.
    """
    if not abs(loss) <= _LARGEST:
        raise UserError(f"the loss of the run is {loss}, which is no perplexity: the model has diverged")
    if not math.isclose(2**loss, printed, rel_tol=1e-3, abs_tol=0.01):
        raise UserError(f"{why}: a loss of {loss} bits is no perplexity of {printed}")


def _only(pattern: re.Pattern[str], log: str, what: str) -> tuple[str, ...]:
    found = pattern.findall(log)
    if len(found) != 1:
        raise UserError(f"the log has {len(found)} times a {what}: the whole log of one finished run is needed")
    return found[0] if isinstance(found[0], tuple) else (found[0],)


def _setting(log: str, key: str) -> str:
    found = re.findall(_SETTING.format(key), log)
    if not found:
        raise UserError(
            f"the log does not say {key}: the whole log is needed, with the settings that fairseq prints first"
        )
    return found[0]
