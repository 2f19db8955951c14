"""The patches reach fairseq in every kind of process, and nothing but fairseq."""

import importlib
import subprocess
import sys
import types

import pytest
import torch

from modern_fairseq import table
from modern_fairseq.proxies import ModuleProxy, override

PATCHED = sorted({name for name, _ in table.entries()})


@pytest.mark.parametrize("name", PATCHED)
def test_each_patched_module_exists_and_keeps_its_own_loader(name):
    module = importlib.import_module(name)
    for loader in (module.__loader__, module.__spec__.loader):
        assert type(loader).__module__ == "_frozen_importlib_external"


GLOBALS = """
import dataclasses, sys
import numpy, torch, omegaconf, hydra
watched = [dataclasses, numpy, torch, torch.serialization, torch.cuda, torch.multiprocessing, hydra]
before = [dict(vars(module)) for module in watched]
import fairseq, fairseq_cli.train, fairseq_cli.hydra_train
import fairseq.data.audio.audio_utils, fairseq.models.text_to_speech.vocoder
for module, names in zip(watched, before):
    for name, value in names.items():
        if callable(value):
            assert getattr(module, name) is value, (module, name)
from fairseq import checkpoint_utils
assert checkpoint_utils.torch.load.__module__ == "modern_fairseq.loading.checkpoints"
print(sum(callable(value) for names in before for value in names.values()), "untouched")
"""


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, **options)


def test_importing_fairseq_changes_no_other_library():
    result = python("-c", GLOBALS)
    assert result.stdout.endswith("untouched\n"), result.stderr
    assert int(result.stdout.split()[-2]) > 1000


WORKERS = """
import multiprocessing

def version(_):
    from fairseq.modules import transformer_layer
    return transformer_layer.torch.__version__

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, *pool.map(version, [0]))
"""


def test_spawned_and_forked_workers_are_patched(tmp_path):
    (tmp_path / "workers.py").write_text(WORKERS)
    result = python(str(tmp_path / "workers.py"))
    assert result.stdout.split() == ["spawn", "1.11.0", "fork", "1.11.0"], result.stderr


def test_python_m_runs_the_patched_command(tmp_path):
    options = ["--arch", "transformer", "--optimizer", "adam", "--max-tokens", "9"]
    result = python("-m", "fairseq_cli.train", "no-such-folder", *options, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "fairseq-train: error: no-such-folder: No such file or directory"
    assert "Traceback" not in result.stderr


USER_DIR = """
from dataclasses import dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase

@dataclass
class MyConfig(TransformerConfig):
    my_option: float = 0.5

@register_model("my_transformer", dataclass=MyConfig)
class MyTransformer(TransformerModelBase):
    pass
"""


def test_hydra_train_finds_models_of_the_user_dir_and_says_mistakes_in_one_line(tmp_path):
    models = tmp_path / "of mine, é" / "my_models"
    models.mkdir(parents=True)
    (models / "__init__.py").write_text(USER_DIR)
    flags = [f"common.user_dir='{models}'", "model=my_transformer", "model.my_option=0.25", "task=translation"]
    flags += ["task.data=/no/such/folder", "dataset.max_tokens=9", "criterion=cross_entropy", "optimizer=adam"]
    result = python("-m", "fairseq_cli.hydra_train", *flags, "lr_scheduler=fixed", cwd=tmp_path)
    assert result.returncode == 1
    assert "'my_option': 0.25" in result.stdout + result.stderr
    assert result.stderr.splitlines()[-1] == "fairseq-hydra-train: error: /no/such/folder: No such file or directory"
    assert "Traceback" not in result.stderr
    assert "Warning" not in result.stderr


def test_starting_an_interpreter_loads_nothing_more():
    code = "import sys; print([m for m in sys.modules if m.split('.')[0] in ('modern_fairseq', 'torch')])"
    assert python("-c", code).stdout == "['modern_fairseq']\n"


def test_install_can_be_called_again():
    code = (
        "import modern_fairseq, sys; modern_fairseq.install(); modern_fairseq.install(); "
        "print([type(f).__module__ for f in sys.meta_path].count('modern_fairseq.finder'), "
        "modern_fairseq._Trigger in sys.meta_path)"
    )
    assert python("-c", code).stdout == "1 False\n"


def test_a_proxy_shows_the_overrides_and_passes_on_the_rest():
    module = types.ModuleType("somewhere")
    module.torch = torch
    override(module, "torch", load="first")
    override(module, "torch", __version__="9.9")
    assert (module.torch.load, module.torch.__version__) == ("first", "9.9")
    assert module.torch.nn is torch.nn
    assert isinstance(module.torch, ModuleProxy)
    with pytest.raises(AttributeError):
        _ = module.torch.no_such_name
    assert torch.load is not module.torch.load


def test_only_known_warnings_are_silenced():
    code = (
        "import warnings, modern_fairseq; modern_fairseq.install()\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.warn('`torch.cuda.amp.autocast(args...)` is deprecated. Please', FutureWarning)\n"
        "    warnings.warn('something else is deprecated', FutureWarning)\n"
        "print(*[warning.message for warning in caught])"
    )
    assert python("-c", code).stdout == "something else is deprecated\n"
