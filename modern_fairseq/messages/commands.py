"""The fairseq commands: a user's mistake is one sentence on stderr and exit status 1."""

import argparse
import contextlib
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

from fairseq_residuals_errors import UserError, did_you_mean
from modern_fairseq import mistakes
from modern_fairseq.proxies import replaces


@contextlib.contextmanager
def _reported(name: str) -> Iterator[None]:
    program = f"fairseq-{name.removeprefix('fairseq_cli.').replace('_', '-')}"
    try:
        yield
    except Exception as error:
        mistake = mistakes.explain(error)
        if mistake is None:
            raise
        print(f"{program}: error: {mistake}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def one_sentence_errors(module: types.ModuleType) -> None:
    """Print a UserError without a traceback, in every ``fairseq_cli.*.cli_main``.

    fairseq_cli/train.py:538-557 and its like catch nothing. Anything else that goes wrong keeps its traceback.
    Can stay as long as fairseq's commands let exceptions through.
    """
    module.cli_main = _reported(module.__name__)(module.cli_main)  # type: ignore[attr-defined]


def errors_in_hydra_job(module: types.ModuleType) -> None:
    """Print a UserError without its traceback in hydra's job (hydra_train.py:30), whose errors hydra reports itself.

    Can stay as long as hydra_train.hydra_main calls ``_hydra_main``.
    """
    module._hydra_main = _reported(module.__name__)(module._hydra_main)  # type: ignore[attr-defined]


def choices_first(module: types.ModuleType) -> None:
    """Say that ``--arch`` or ``--task`` is missing, and list the flags of what they name in ``--help``.

    options.py:153 says ``RuntimeError`` and :158 ``KeyError: None``; :136 prints its help before it adds these flags.
    Can go when fairseq > 0.12.2 names what is missing, and adds them first.
    """

    @replaces(module, "parse_args_and_arch")
    def parse_args_and_arch(
        original: Any, parser: argparse.ArgumentParser, input_args: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = sys.argv[1:] if input_args is None else input_args
        chosen = [arg for arg in given if arg not in ("-h", "--help")]
        if chosen != given and any(arg.partition("=")[0] in ("--arch", "-a") for arg in given):
            # the first pass only asks what is chosen
            def choose(args: Any = None, namespace: Any = None) -> Any:
                del parser.parse_known_args
                return parser.parse_known_args(chosen, namespace)

            parser.parse_known_args = choose  # type: ignore[method-assign]
        try:
            return original(parser, input_args, *args, **kwargs)
        except RuntimeError as error:
            if error.args:
                raise
            raise UserError("--arch is missing: name the architecture of the model") from error
        except KeyError as error:
            if error.args != (None,):
                raise
            raise UserError("--task is missing: name the task, such as translation or language_modeling") from error


def short_refusals(module: types.ModuleType) -> None:
    """Name, of hundreds of valid choices (--arch), the one that is near, not all (options.py:228, argparse).

    Can stay as long as fairseq's choices are argparse's.
    """

    @replaces(module, "get_parser")
    def get_parser(original: Any, *args: Any, **kwargs: Any) -> argparse.ArgumentParser:
        parser: Any = original(*args, **kwargs)
        refuse = parser.error
        parser.error = lambda message: refuse(_shortened(message))
        return parser  # type: ignore[no-any-return]


def _shortened(message: str) -> str:
    # Python 3.15 suggests one of them, too
    refusal = r"(?s)(argument \S+: invalid choice: '(.*?)')(?:, maybe you meant '.*'\?)? \(choose from (.{1000,})\)"
    found = re.fullmatch(refusal, message)
    return found[1] + did_you_mean(found[2], re.findall(r"[^', ]+", found[3])) if found else message


def name_unknown_architectures(module: types.ModuleType) -> None:
    """Say that an architecture is unknown (models/__init__.py:100-104 trips over the braces in its own message).

    The commonest cause is a checkpoint of a plugin's model without ``--user-dir``.
    Can go when fairseq > 0.12.2 names the architecture and the way out.
    """

    @replaces(module, "build_model")
    def build_model(original: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
        known = {*module.ARCH_MODEL_REGISTRY, *module.MODEL_DATACLASS_REGISTRY}
        if name and name not in known:
            close = did_you_mean(name, known)
            raise UserError(
                f"unknown architecture {name!r}{close}; if a plugin defines it, name the plugin's folder by --user-dir,"
                " or common.user_dir in YAML, or in Python import it first, as by `import fairseq_residuals`"
            )
        return original(cfg, *args, **kwargs)
