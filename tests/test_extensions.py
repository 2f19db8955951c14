"""Extensions and the trainer's hooks: registered from outside, in order, each model's for itself."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fairseq.models import build_model
from omegaconf import OmegaConf
from tiny import BOTH, build, build_stock, dimensions, make_task, settings
from tiny_trainer import SGD, Task, make_trainer, sample, update
from torch import nn

from fairseq_residuals.plugin.models import extensions
from fairseq_residuals.plugin.models.extensions import EXTENSIONS, Extension, register_extension
from fairseq_residuals.plugin.training.trainer_hooks import before_next_step, has_hooks, hooks_of
from fairseq_residuals.wirings.core.errors import UserError

NOWHERE = "no_such_checkpoint.pt"
ARCH = "transformer_b2t_6l"


@pytest.fixture(autouse=True)
def plugins_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(extensions, "EXTENSIONS", dict(EXTENSIONS))


class Recording(Extension):
    """Remembers what it was attached with."""

    def __init__(self) -> None:
        self.attached: list[tuple[nn.Module, Namespace]] = []

    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument("--my-rate", type=float, default=0.5)
        parser.add_argument("--my-number", type=int)
        parser.add_argument("--my-switch", action="store_true")

    def check(self, args: Namespace) -> None:
        if args.my_rate > 1:
            raise UserError(f"--my-rate must be at most 1, not {args.my_rate}")

    def attach(self, model: nn.Module, args: Namespace) -> None:
        self.attached.append((model, args))


def registered() -> Recording:
    register_extension("recording")(Recording)
    extension = extensions.EXTENSIONS["recording"]
    assert isinstance(extension, Recording)
    return extension


def from_yaml(**keys: Any) -> nn.Module:
    return build_model(OmegaConf.create({"_name": ARCH, **BOTH, **keys}), make_task())


def test_flags_on_the_command_line() -> None:
    extension = registered()
    args = settings(ARCH, *dimensions("translation"), "--my-number", "3")
    model = build_model(args, make_task())
    ((attached, given),) = extension.attached
    assert attached is model and (given.my_rate, given.my_number, given.my_switch) == (0.5, 3, False)
    # these are the settings that a checkpoint carries
    assert args.my_number == 3 and given.encoder_layers == 2


def test_keys_in_a_yaml_file() -> None:
    extension = registered()
    from_yaml(my_rate=1, my_switch=True)
    ((_, given),) = extension.attached
    assert (given.my_rate, given.my_number, given.my_switch) == (1, None, True)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"my_rate": 2}, "--my-rate must be at most 1, not 2"),
        ({"my_rate": "much"}, "model.my_rate must be a number, not 'much'"),
        ({"my_number": 1.5}, "model.my_number must be a whole number, not 1.5"),
        ({"my_number": True}, "model.my_number must be a whole number, not True"),
        ({"my_switch": "yes"}, "model.my_switch must be true or false, not 'yes'"),
        ({"my_rat": 1}, r"unknown key my_rat under model \(did you mean my_rate\?\)"),
    ],
)
def test_what_a_yaml_file_may_not_say(keys: dict[str, Any], says: str) -> None:
    extension = registered()
    with pytest.raises(UserError, match=says):
        from_yaml(**keys)
    assert not extension.attached


def test_settings_are_refused_when_the_command_line_is_read() -> None:
    registered()
    with pytest.raises(UserError, match="--my-rate must be at most 1"):
        settings(ARCH, "--my-rate", "1.5")


def test_names_and_flags_are_there_once() -> None:
    registered()
    with pytest.raises(ValueError, match="an extension named 'recording' is registered already"):
        register_extension("recording")(Recording)
    with pytest.raises(ValueError, match="'other' has flags of extension 'recording': my_number, my_rate, my_switch"):
        register_extension("other")(Recording)
    with pytest.raises(TypeError, match="'plain' must derive from Extension"):
        register_extension("plain")(nn.Module)  # type: ignore[arg-type]
    assert [*extensions.EXTENSIONS] == [*EXTENSIONS, "recording"]


def test_every_feature_of_the_plugin_is_one() -> None:
    flags = {dest for extension in EXTENSIONS.values() for dest in extensions.flags_of(extension)}
    assert flags == {
        *("encoder_word_dropout", "decoder_word_dropout", "log_residual_stats"),
        *("fast_on_cpu", "keep_freed_memory", "cuda_graphs", "packed"),
    }
    assert all(EXTENSIONS[name].name == name for name in EXTENSIONS)
    assert {"admin_profile", "update_scales"} < set(EXTENSIONS)


def trace(model: nn.Module, events: list[str], name: str) -> None:
    """Hooks that write down when they were called."""

    @contextmanager
    def around(trainer: Any) -> Iterator[None]:
        events.append(f"{name} step")
        yield
        events.append(f"{name} end")

    hooks = hooks_of(model)
    hooks.around_train_step.append(around)
    hooks.before_clip.append(lambda trainer: events.append(f"{name} clip"))
    hooks.on_log.append(lambda trainer: events.append(f"{name} log {trainer.get_num_updates()}"))
    hooks.after_load_checkpoint.append(lambda trainer: events.append(f"{name} loaded"))


def test_hooks_are_called_in_their_order() -> None:
    trainer, events = make_trainer(*SGD), []
    for name in ("a", "b"):
        trace(trainer.get_model(), events, name)
    trainer.load_checkpoint(NOWHERE)
    assert events == ["a loaded", "b loaded"]
    events.clear()
    update(trainer, sample(), sample())
    assert events == ["a step", "b step", "a clip", "b clip", "a log 1", "b log 1", "b end", "a end"]
    events.clear()
    trainer.valid_step(sample())
    assert not events


def test_what_runs_before_a_step_is_outside_of_all_contexts() -> None:
    """As Admin's profile, whichever extension attached first."""
    trainer, events = make_trainer(*SGD), []
    trace(trainer.get_model(), events, "a")
    before_next_step(trainer, lambda trainer, samples: events.append(f"first of {len(samples)}"))
    before_next_step(trainer, lambda trainer, samples: events.append("second"))
    for _ in range(2):
        update(trainer, sample(), sample())
    step = ["a step", "a clip", "a log 1", "a end"]
    assert events == ["first of 2", "second", *step, *(event.replace("1", "2") for event in step)]


def test_admin_is_profiled_outside_of_the_contexts_of_steps() -> None:
    """Products by oneDNN and recomputation are for steps: the profile is that of a model without --fast-on-cpu."""
    trainer, events = make_trainer(*SGD, variant="admin"), []
    trace(trainer.get_model(), events, "a")
    trainer.get_model().register_forward_hook(lambda *_: events.append("forward"))
    trainer.load_checkpoint(NOWHERE)
    update(trainer, sample())
    assert events == ["a loaded", "forward", "a step", "forward", "a clip", "a log 1", "a end"]


def test_two_models_share_no_hooks() -> None:
    events: list[str] = []
    one, other = make_trainer(*SGD, "--log-residual-stats", "1"), make_trainer(*SGD)
    trace(one.get_model(), events, "one")
    update(other, sample())
    other.load_checkpoint(NOWHERE)
    assert not events and not hooks_of(other.get_model()).on_log
    update(one, sample())
    assert events == ["one step", "one clip", "one log 1", "one end"]
    # a copy takes its hooks with it, and adds to its own alone
    twin = copy.deepcopy(one.get_model())
    hooks_of(twin).on_log.clear()
    assert len(hooks_of(one.get_model()).on_log) == 2


def test_a_model_without_extensions_has_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's own, or the plugin's where nothing is registered; its trainer asks for none."""
    from fairseq.criterions import build_criterion
    from fairseq.trainer import Trainer

    trainer = make_trainer(*SGD)
    model = build_stock("translation", normalize_before=False)
    plain = Trainer(trainer.cfg, Task(None), model, build_criterion(trainer.cfg.criterion, Task(None)))
    plain.load_checkpoint(NOWHERE)
    update(plain, sample())
    assert not has_hooks(model)
    monkeypatch.setattr(extensions, "EXTENSIONS", {})
    assert not has_hooks(build("translation", "admin"))


UNTOUCHED = """
import sys
import fairseq_cli.generate, fairseq_cli.interactive, fairseq_residuals
from tiny import build, batch
assert "fairseq.trainer" not in sys.modules

def patched():
    from fairseq.trainer import Trainer
    return sorted(name for name, f in vars(Trainer).items() if "trainer_hooks" in getattr(f, "__code__", f).__repr__())

if "model" in sys.argv:
    model = build("translation", "admin", "--log-residual-stats", "1", "--fast-on-cpu")
    model(**batch("translation"))
    assert "fairseq.trainer" not in sys.modules
print(patched())
"""


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("", []),
        ("model", ["_reduce_and_log_stats", "clip_grad_norm", "load_checkpoint", "train_step"]),
    ],
)
def test_the_trainer_is_patched_only_for_a_model_with_extensions(argument: str, expected: list[str]) -> None:
    """In a process with the modules of fairseq-generate: where a trainer is imported at all."""
    tests = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}"}
    command = [sys.executable, "-W", "ignore", "-c", UNTOUCHED, argument]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(expected)
