"""What harmless files hold comes back as it was saved, and no changed byte of a file goes unnoticed."""

import argparse
import collections
import pathlib
import random

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.serialization import config

from fairseq_residuals.plugin.checkpoints.safetensors_file import digest
from fairseq_residuals_errors import UserError
from modern_fairseq.loading import checkpoints

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])


def through_a_file(value, path, zipped=True):
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return checkpoints.load(path, map_location="cpu")


@pytest.mark.parametrize("code", ["?", "i1", "u1", "<i2", ">i2", "<u4", "<i8", "<f2", ">f4", "<f8", "<c8", "<c16"])
@FORMATS
def test_arrays_of_numbers_come_back(tmp_path, code, zipped):
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(code)
    for saved in (array, np.asfortranarray(array), array[:0], array[0, 0].reshape(())):
        loaded = through_a_file(saved, tmp_path / "x.pt", zipped)
        assert loaded.dtype == saved.dtype and loaded.shape == saved.shape
        np.testing.assert_array_equal(loaded, saved)
    scalar = array[0, 1]
    loaded = through_a_file(scalar, tmp_path / "x.pt", zipped)
    assert type(loaded) is type(scalar) and loaded == scalar


def test_arrays_of_text_come_back(tmp_path):
    for saved in (np.array(["de", "französisch", "\U0001f600"]), np.array([b"a", b"bcd"])):
        loaded = through_a_file(saved, tmp_path / "x.pt")
        assert loaded.dtype == saved.dtype
        np.testing.assert_array_equal(loaded, saved)


def test_an_array_that_occurs_twice_is_one_array(tmp_path):
    array = np.arange(3)
    first, second = through_a_file([array, array], tmp_path / "x.pt")
    assert first is second


@pytest.mark.parametrize(
    "value",
    [
        collections.defaultdict(int, a=1),
        collections.defaultdict(list, {3: [1]}),
        collections.OrderedDict(a=1),
        b"\x00\xff",
        torch.float16,
        argparse.Namespace(arch="x", of=argparse.Namespace(lr=[0.1])),
        argparse.Namespace(file=pathlib.Path("a/b.txt"), tags={"x", 2, None}),
        (1, (2.5, None, True), -(2**70)),
        int,
    ],
    ids=lambda value: type(value).__name__,
)
@FORMATS
def test_plain_objects_come_back(tmp_path, value, zipped):
    loaded = through_a_file({"x": value}, tmp_path / "x.pt", zipped)["x"]
    assert type(loaded) is type(value) and loaded == value


def test_tensors_keep_layout_sharing_and_gradient(tmp_path):
    base = torch.arange(24.0).view(4, 6)
    saved = {
        "base": base,
        "transposed": base.t(),
        "part": base[1:3, ::2],
        "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "number": torch.tensor(3),
        "empty": torch.empty(0, 5),
        "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    }
    loaded = through_a_file(saved, tmp_path / "x.pt")
    for name, tensor in saved.items():
        assert loaded[name].stride() == tensor.stride() and loaded[name].dtype == tensor.dtype
        assert loaded[name].requires_grad == tensor.requires_grad and torch.equal(loaded[name], tensor), name
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    loaded["base"][0, 0] = 7
    assert loaded["transposed"][0, 0] == 7


def test_a_state_dict_keeps_the_versions_of_its_modules(tmp_path):
    state = torch.nn.BatchNorm1d(3).state_dict()
    loaded = through_a_file(state, tmp_path / "x.pt")
    assert loaded._metadata == state._metadata and loaded._metadata[""]["version"] == 2


def test_a_configuration_keeps_its_references(tmp_path):
    saved = OmegaConf.create({"a": {"b": "${c}", "d": ["x", None, {"e": 1}]}, "c": 3, "none": None})
    loaded = through_a_file(argparse.Namespace(cfg=saved), tmp_path / "x.pt").cfg
    assert loaded == OmegaConf.to_container(saved) and loaded["a"]["b"] == "${c}"


def checkpoint():
    generator = torch.Generator().manual_seed(0)
    model = {f"layers.{n}.weight": torch.randn(40, 40, generator=generator) for n in range(4)}
    return {"model": model, "args": None, "cfg": {"model": {"layers": 4}}, "extra_state": {"epoch": 1}}


def test_no_changed_byte_of_a_checkpoint_goes_unnoticed(tmp_path):
    """At 300 places; a byte between two records, which says nothing, may change nothing."""
    path = tmp_path / "x.pt"
    torch.save(checkpoint(), path)
    good = path.read_bytes()
    unharmed = 0
    for place in random.Random(0).sample(range(len(good)), 300):
        changed = bytearray(good)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            loaded = checkpoints.load_fairseq(path)
        except UserError:
            continue
        unharmed += 1
        assert digest(loaded["model"]) == digest(checkpoint()["model"]) and loaded["cfg"] == checkpoint()["cfg"], place
    assert unharmed < 60


@pytest.fixture
def without_checksums():
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(True)


@pytest.mark.usefixtures("without_checksums")
def test_an_archive_without_checksums_is_read(tmp_path):
    loaded = through_a_file(checkpoint(), tmp_path / "x.pt")
    assert digest(loaded["model"]) == digest(checkpoint()["model"])


def test_the_digest_is_of_names_shapes_types_and_values():
    parameters = {"a": torch.zeros(2, 3), "b": torch.zeros(1)}
    others = [
        {"b": torch.zeros(2, 3), "a": torch.zeros(1)},
        {"a": torch.zeros(3, 2), "b": torch.zeros(1)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(1, dtype=torch.int32)},
        {"a": torch.zeros(2, 3), "b": -torch.zeros(1)},
        {"a": torch.zeros(2, 3)},
    ]
    assert len({digest(parameters), *map(digest, others)}) == 6
    assert digest({"b": torch.zeros(1), "a": torch.zeros(3, 2).t()}) == digest(parameters)


def test_settings_of_torch_for_loading_change_nothing(tmp_path, monkeypatch):
    torch.save(checkpoint(), tmp_path / "x.pt")
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with config.patch("load.mmap", True):
        assert digest(checkpoints.load_fairseq(tmp_path / "x.pt")["model"]) == digest(checkpoint()["model"])
