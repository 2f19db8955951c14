"""Checkpoints that do not fit a model or an optimizer are named, with what does not fit."""

import contextlib
import types

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from fairseq_residuals_errors import UserError
from modern_fairseq.fixes import checkpoint_loading


def misfit(saved, wanted):
    """The sentence for loading the weights of ``saved`` into ``wanted``."""
    with pytest.raises(RuntimeError) as caught:
        wanted.load_state_dict(saved.state_dict())
    return str(checkpoint_loading.misfit(caught.value, "a.pt"))


def test_parameters_that_do_not_fit_are_named():
    linear = torch.nn.Linear
    two, five = torch.nn.Sequential(linear(2, 2)), torch.nn.Sequential(*[linear(2, 2) for _ in range(5)])
    assert misfit(two, five) == "a.pt does not fit the model: it lacks 1.weight, 1.bias, 2.weight and 5 more"
    assert misfit(five, two) == "a.pt does not fit the model: it has in excess 1.weight, 1.bias, 2.weight and 5 more"
    wide = torch.nn.Sequential(linear(2, 3))
    assert misfit(two, wide) == "a.pt does not fit the model: it has another shape of 0.weight, 0.bias"


def test_other_runtime_errors_are_not_taken_for_misfits():
    assert checkpoint_loading.misfit(RuntimeError("out of memory"), "a.pt") is None
    assert checkpoint_loading.misfit(None, "a.pt") is None


class Model(torch.nn.Linear):
    """A model as fairseq's loaders see one."""

    def load_state_dict(self, state, strict=True, model_cfg=None):
        if "bug" in state:
            raise KeyError("a bug")
        if "mistake" in state:
            raise UserError("said by the model")
        return super().load_state_dict(state, strict)

    def set_num_updates(self, num_updates):
        self.num_updates = num_updates


def save(path, model):
    state = {
        "args": None,
        "cfg": {"model": {"_name": "x"}, "task": {"_name": "y"}},
        "model": model,
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 3}],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)
    return str(path)


def test_of_several_checkpoints_the_one_that_does_not_fit_is_named(tmp_path):
    task = types.SimpleNamespace(build_model=lambda cfg: Model(2, 2))
    weights = [Model(2, 2).state_dict() for _ in range(2)]
    good = [save(tmp_path / f"{i}.pt", state) for i, state in enumerate(weights)]
    bad = save(tmp_path / "bad.pt", Model(3, 2).state_dict())
    models, cfg, returned = load_model_ensemble_and_task(good, task=task)
    assert returned is task
    assert cfg.model._name == "x"
    for model, state in zip(models, weights, strict=True):
        torch.testing.assert_close(model.weight, state["weight"], rtol=0, atol=0)
        assert model.num_updates == 3
    with pytest.raises(UserError) as caught:
        load_model_ensemble_and_task([good[0], bad], task=task)
    assert str(caught.value) == f"{bad} does not fit the model: it has another shape of weight"


def resume(path, model, restore_file="checkpoint_last.pt"):
    """Call fairseq's Trainer.load_checkpoint with as much of a trainer as it looks at up to the weights."""
    checkpoint = {"load_checkpoint_on_all_dp_ranks": False, "restore_file": restore_file}
    cfg = OmegaConf.create({"checkpoint": checkpoint, "model": {}, "ema": {"store_ema": False}})
    cfg.distributed_training = {"zero_sharding": "none"}
    trainer = types.SimpleNamespace(
        cfg=cfg,
        model=model,
        data_parallel_world_size=1,
        data_parallel_rank=0,
        tpu=False,
        is_fsdp=False,
        _optimizer=None,
        get_model=lambda: model,
    )
    return Trainer.load_checkpoint(trainer, path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"weight": torch.zeros(2, 2), "b": torch.zeros(2)},
            "does not fit the model: it lacks bias; it has in excess b",
        ),
        ({"mistake": torch.zeros(1)}, "said by the model"),
    ],
)
def test_the_trainer_names_the_reason_that_it_hides(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence):
        resume(save(tmp_path / "a.pt", content), Model(2, 2))


def test_a_checkpoint_that_was_asked_for_must_be_there(tmp_path):
    path = str(tmp_path / "a.pt")
    with pytest.raises(UserError, match="there is no checkpoint"):
        resume(path, Model(2, 2), restore_file=path)
    assert resume(path, Model(2, 2), restore_file="checkpoint_last.pt") is None


def test_the_trainer_keeps_bugs_apart(tmp_path):
    with pytest.raises(Exception, match="Cannot load model parameters") as caught:
        resume(save(tmp_path / "a.pt", {"bug": torch.zeros(1)}), Model(2, 2))
    assert not isinstance(caught.value, UserError)
    assert isinstance(caught.value.__context__, KeyError)


@pytest.mark.parametrize("size", [7, 9])
def test_a_flat_optimizer_state_of_another_size_is_refused_before_the_first_update(size):
    flat = torch.nn.Parameter(torch.zeros(7))

    class Trainer:
        _optimizer = types.SimpleNamespace(optimizer=torch.optim.Adam([flat]))
        cfg = OmegaConf.create({"checkpoint": {}})

        def load_checkpoint(self, filename, reset_optimizer):
            self._optimizer.optimizer.state[flat] = {"exp_avg": torch.zeros(size)}
            return "extra state"

    module = types.ModuleType("fairseq.trainer")
    module.Trainer = Trainer
    checkpoint_loading.check_what_is_resumed(module)
    if size == 7:
        assert module.Trainer().load_checkpoint("a.pt") == "extra state"
    else:
        with pytest.raises(UserError, match=r"a\.pt .* --reset-optimizer"):
            module.Trainer().load_checkpoint("a.pt")


@pytest.mark.parametrize("asked", [("en", "de_AT"), ("de", "en"), ("en", "fr"), ("fr", "de")], ids=str)
def test_a_side_may_have_a_longer_name_and_no_other(asked):
    task, wanted = ({"source_lang": source, "target_lang": target} for source, target in (("en", "de"), asked))
    loaded = checkpoint_loading.Loaded("a.pt", {"cfg": {"task": task}}, None, checkpoint_loading.Request(wanted))
    refusal = pytest.raises(UserError, match=f"translates from en to de, and not from {asked[0]} to {asked[1]}")
    with contextlib.nullcontext() if asked == ("en", "de_AT") else refusal:
        checkpoint_loading.check_direction(loaded)


@pytest.mark.parametrize(
    ("trained", "asked", "said"), [(True, False, "give it here too"), (False, True, "leave it out")]
)
def test_a_language_model_of_texts_that_begin_otherwise(trained, asked, said):
    state = {"cfg": {"task": {"_name": "language_modeling", "add_bos_token": trained}}}
    for wanted in (trained, asked, None):
        task = {"_name": "language_modeling", "add_bos_token": wanted}
        loaded = checkpoint_loading.Loaded("a.pt", state, None, checkpoint_loading.Request(task))
        if wanted in (trained, None):
            checkpoint_loading.check_beginning(loaded)
        else:
            with pytest.raises(UserError, match=said):
                checkpoint_loading.check_beginning(loaded)
