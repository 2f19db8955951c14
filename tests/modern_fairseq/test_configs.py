"""Dataclass instances as defaults work for fairseq's dataclasses, and nothing changes for others."""

import argparse
import dataclasses
import pickle
import warnings
from typing import Optional

import pytest
from fairseq.dataclass import FairseqDataclass, configs
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, gen_parser_from_dataclass


@dataclasses.dataclass
class Inner(FairseqDataclass):
    depth: int = 6


@dataclasses.dataclass
class Outer(FairseqDataclass):
    inner: Inner = Inner()  # noqa: RUF009


def test_a_users_dataclass_may_have_a_config_as_default():
    assert Outer().inner.depth == 6
    assert Outer.__dataclass_fields__["inner"].default == Inner()
    assert Inner(1) != Inner(2)
    assert pickle.loads(pickle.dumps(Outer())) == Outer()


def test_fairseqs_config_has_its_defaults_where_hydra_init_reads_them():
    defaults = {name: field.default for name, field in configs.FairseqConfig.__dataclass_fields__.items()}
    assert isinstance(defaults["common"], configs.CommonConfig)
    assert defaults["checkpoint"].save_dir == "checkpoints"


def test_other_classes_are_judged_as_python_does():
    assert dataclasses.dataclass.__module__ == "dataclasses"

    @dataclasses.dataclass
    class Plain:
        x: int = 0

    assert Plain.__hash__ is None
    with pytest.raises(ValueError, match="mutable default"):

        @dataclasses.dataclass
        class Holder:
            plain: Plain = Plain()  # noqa: RUF009


def test_a_config_is_composed_without_a_warning():
    from fairseq import options

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parser = options.get_training_parser()
        args = options.parse_args_and_arch(
            parser,
            [
                "data",
                "--arch",
                "transformer_lm",
                "--task",
                "language_modeling",
                "--max-tokens",
                "7",
                "--lr",
                "0.5",
            ],
        )
        cfg = convert_namespace_to_omegaconf(args)
    assert cfg.dataset.max_tokens == 7
    assert cfg.optimization.lr == [0.5]
    assert cfg.task.data == "data"
    assert cfg.model._name == "transformer_lm"
    assert cfg.checkpoint.save_dir == "checkpoints"


def test_an_optional_setting_may_be_written_with_a_bar():
    """Python 3.14 writes each of them so."""

    @dataclasses.dataclass
    class Settings(FairseqDataclass):
        path: str | None = None
        depth: Optional[int] = None  # noqa: UP045

    parser = argparse.ArgumentParser()
    gen_parser_from_dataclass(parser, Settings())
    parsed = parser.parse_args(["--path", "a", "--depth", "3"])
    assert (parsed.path, parsed.depth) == ("a", 3)
