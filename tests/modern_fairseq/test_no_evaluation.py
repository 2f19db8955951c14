"""Settings, manifests and archives are data: nothing in them is evaluated, opened, fetched or put on a command line."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, file_utils
from fairseq.data.fasta_dataset import FastaDataset
from fairseq.models.speech_to_text.hub_interface import S2THubInterface
from fairseq.utils import eval_bool, eval_str_dict, eval_str_list
from omegaconf import OmegaConf

from fairseq_residuals_errors import UserError
from modern_fairseq.loading import checkpoints

HISTORY = {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 1}


def code(trace: Path) -> str:
    return f"[__import__('os').mkdir({str(trace)!r})]"


@pytest.mark.parametrize(
    "read",
    [
        *("data.audio.raw_audio_dataset.eval", "data.codedataset.eval", "optim.adafactor.eval", "optim.adamax.eval"),
        *("optim.fused_lamb.eval", "models.wav2vec.wav2vec2.eval", "utils.eval_str_list", "utils.eval_str_dict"),
        "utils.eval_bool",
    ],
)
def test_text_is_read_and_not_run(read: str, tmp_path: Path) -> None:
    module, _, name = read.rpartition(".")
    with pytest.raises(UserError, match="is no value as Python writes it"):
        getattr(importlib.import_module(f"fairseq.{module}"), name)(code(tmp_path / "trace"))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[(512, 3)] * 10**9", "is no value as Python writes it"),
        ("[(512, 3)] * 1000000000", "stands for 1,000,000,000 items; at most 100,000 are built"),
        ("[0] * 1000 * 1000 * 1000", "stands for 1,000,000 items"),
        ("1000 * (1000 * [0] + 1000 * [0])", "stands for 2,000,000 items"),
        ("'ab' * 100000", "stands for 200,000 items"),
        ("[0] * 99999 + [0, 0]", "stands for 100,001 items"),
        ("[" + "0," * 60000 + "]", "text of 120,002 characters is not read"),
        ("[" * 3000 + "]" * 3000, "nested too deeply"),
        ("1" + "+1" * 40000, "nested too deeply"),
    ],
    ids=lambda text: str(text)[:30],
)
def test_what_is_written_out_is_bounded(text: str, says: str) -> None:
    # of the processor: others may use the machine too
    start = time.thread_time()
    with pytest.raises(UserError, match=says):
        eval_str_list(text)
    assert time.thread_time() - start < 2


def test_lists_of_fairseqs_size_are_read() -> None:
    assert eval_str_list("[(512, 3)] * 100 + [(1, 1)]", type=tuple) == [(512, 3)] * 100 + [(1, 1)]
    assert eval_str_list("1" + "+1" * 100, type=int) == [101]
    assert eval_str_list(" 10, 20", int) == [10, 20] and eval_str_list("0.5") == [0.5]
    assert eval_str_dict("{'a': 1}") == {"a": 1} and eval_bool("True") and eval_bool(3, True)


def write(folder: Path, **settings: Any) -> Path:
    state = {"model": {}, "optimizer_history": [HISTORY], "extra_state": {"train_iterator": None}}
    torch.save(state | {"args": None, "cfg": None} | settings, folder / "checkpoint.pt")
    return folder / "checkpoint.pt"


NAMED = {
    "encoder_embed_path": "/etc/passwd",
    "load_pretrained_encoder_from": "x.pt",
    "bpe_codes": "http://example.org/",
    "fixed_dictionary": "/etc/passwd",
    "config_yaml": "../../etc/passwd",
    "multitask_config_yaml": "${save_predictions}",
    "langs": "de,..",
    "lang_to_offline_shard_ratio": "/etc/passwd",
    "extra_data": "{'mined': '/home'}",
    "replace_unk": "/etc/passwd",
    "save_predictions": "precious.txt",
    "tensorboard_logdir": "/home",
}


@pytest.mark.parametrize("layout", ["args", "cfg", "namespace in cfg", "nested", "DictConfig"])
def test_files_that_a_checkpoint_names_are_left_out(layout: str, tmp_path: Path) -> None:
    settings = dict(NAMED, user_dir="plugin", dropout=0.5, decoder_embed_path=None)
    given: dict[str, Any] = {
        "args": {"args": argparse.Namespace(**settings)},
        "cfg": {"cfg": {"model": settings}},
        "namespace in cfg": {"cfg": {"model": argparse.Namespace(**settings)}},
        "nested": {"cfg": {"model": {"w2v_args": {"model": [settings]}}}},
        "DictConfig": {"cfg": OmegaConf.create({"model": settings})},
    }[layout]
    state = checkpoints.load_fairseq(write(tmp_path, **given))
    left = state["args"] if layout == "args" else state["cfg"]["model"]
    left = left["w2v_args"]["model"][0] if layout == "nested" else left
    left = vars(left) if isinstance(left, argparse.Namespace) else left
    assert {key: left.get(key) for key in (*settings, *NAMED)} == dict.fromkeys(settings) | {"dropout": 0.5}


def test_files_that_a_user_names_beside_are_used(tmp_path: Path) -> None:
    path = write(tmp_path, cfg={"model": dict(NAMED)})
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path), {"model": {"encoder_embed_path": "mine"}})
    assert dict(state["cfg"].model) == {"encoder_embed_path": "mine"}


def test_settings_that_refer_to_each_other_are_kept(tmp_path: Path) -> None:
    cfg = {"task": {"source_lang": "de"}, "model": {"lang": "${task.source_lang}", "note": "a: b"}}
    assert checkpoints.load_fairseq(write(tmp_path, cfg=cfg))["cfg"] == cfg


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for info, contents in members:
            info.size = len(contents)
            file.addfile(info, io.BytesIO(contents))
    return path


@pytest.fixture(params=["filter", "none"])
def filters(request: Any, monkeypatch: Any) -> None:
    """Python with tarfile's filters, and as it was before 3.11.4."""
    if request.param == "none":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        # Python 3.14 would take the filter that is gone
        monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(lambda member, _: member), raising=False)


@pytest.mark.usefixtures("filters")
def test_an_archive_is_unpacked_in_its_place(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tar.gz", (tarfile.TarInfo("m/model.pt"), b"1"), (tarfile.TarInfo("m/dict.txt"), b"2"))
    folder = Path(file_utils.load_archive_file(str(path)))
    assert sorted(p.name for p in folder.iterdir()) == ["dict.txt", "model.pt"]


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def device(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.CHRTYPE
    return info


@pytest.mark.usefixtures("filters")
@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("m/../../outside"),
        link("m/a", "/etc"),
        link("m/a", "../.."),
        device("d"),
    ],
    ids=lambda member: member.name,
)
def test_an_archive_that_leaves_its_folder_is_refused(
    member: tarfile.TarInfo, tmp_path: Path, monkeypatch: Any
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(work))
    path = archive(tmp_path / "x.tar.gz", (tarfile.TarInfo("m/model.pt"), b"1"), (member, b""))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"x\.tar\.gz is not unpacked"):
        file_utils.load_archive_file(str(path))
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["work", "x.tar.gz"] and not os.listdir(work)


@pytest.mark.parametrize("contents", [b"", b"hello", b"\x1f\x8b" + bytes(40)])
def test_what_is_no_archive_is_refused(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(contents)
    with pytest.raises(UserError, match=r"x\.tar\.gz is"):
        file_utils.load_archive_file(str(tmp_path / "x.tar.gz"))


def test_code_that_a_configuration_names_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "load", lambda *args, **kwargs: pytest.fail("fetched"))
    monkeypatch.setattr(S2THubInterface, "get_prefix_token", lambda *args: None)
    monkeypatch.setattr(S2THubInterface, "detokenize", lambda *args: "text")
    generator = SimpleNamespace(generate=lambda *args, **kwargs: [[{"tokens": None}]])
    task = SimpleNamespace(
        data_cfg=SimpleNamespace(hub={"tts_model_id": "me/repository:model"}, prepend_tgt_lang_tag=False)
    )
    with pytest.raises(UserError, match="names me/repository for speech synthesis"):
        S2THubInterface.get_prediction(task, None, generator, None, synthesize_speech=True)


def test_names_of_fasta_files_reach_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.s-t.s", "train.$(touch trace)-t.s"):
        Path(f"{name}.fasta").write_text(">one\nACGT\nAC\n>three\nA\n")
    data = FastaDataset("train.s-t.s")
    assert [data[i] for i in range(len(data))] == [(">one", "ACGTAC"), (">three", "A")]
    with pytest.raises(UserError, match="mean something to a shell"):
        FastaDataset("train.$(touch trace)-t.s")
    assert not Path("trace").exists()
    with pytest.raises(UserError, match=r"none\.fasta was not read: it is missing"):
        FastaDataset("none")
