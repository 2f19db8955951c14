"""What NumPy removed is there for fairseq, and only for fairseq."""

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset, TokenBlockDataset, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder
from fairseq.modules.dynamic_crf_layer import DynamicCRF


class Tokens(torch.utils.data.Dataset):
    def __init__(self, *sentences):
        self.sentences = [torch.tensor(s) for s in sentences]
        self.sizes = [len(s) for s in sentences]

    def __getitem__(self, index):
        return self.sentences[index]

    def __len__(self):
        return len(self.sentences)


@pytest.mark.parametrize(
    ("mode", "blocks"),
    [
        ("none", [[3, 4, 2], [5, 2, 6], [2]]),
        ("complete", [[3, 4, 2], [5, 2], [6, 2]]),
        ("eos", [[3, 4, 2], [5, 2], [6, 2]]),
    ],
)
def test_block_datasets_of_language_models(mode, blocks):
    sentences = Tokens([3, 4, 2], [5, 2], [6, 2])
    dataset = TokenBlockDataset(sentences, sentences.sizes, block_size=3, pad=1, eos=2, break_mode=mode)
    assert [block.tolist() for block in dataset] == blocks


def test_data_sets_of_several_workers_may_have_more_than_2_gib(tmp_path):
    sizes = [400_000_000, 300_000_000, 5]
    with MMapIndexedDataset.Index.writer(tmp_path / "part.idx", np.int32) as index:
        index.write(sizes)
    (tmp_path / "part.bin").touch()  # its text takes no part in this
    builder = MMapIndexedDatasetBuilder(tmp_path / "whole.bin", dtype=np.int32)
    builder.merge_file_(str(tmp_path / "part"))
    builder.finalize(tmp_path / "whole.idx")
    assert MMapIndexedDataset.Index(tmp_path / "whole.idx")._pointers.tolist() == [0, 1_600_000_000, 2_800_000_000]


def test_sentence_pairs_in_buckets_of_length():
    lengths = [1, 2, 3, 4, 5, 6, 7, 8]
    sentences = Tokens(*([3] * (length - 1) + [2] for length in lengths))
    data = LanguagePairDataset(sentences, np.array(lengths), Dictionary(), num_buckets=2)
    padded = data.bucketed_num_tokens.tolist()
    assert len(set(padded)) == 2
    assert all(length <= bucket for length, bucket in zip(lengths, padded, strict=True))
    assert data.get_batch_shapes() == [(None, size) for size in sorted(set(padded))]


def test_spans_without_overlap():
    np.random.seed(0)
    mask = data_utils.compute_mask_indices((4, 100), None, mask_prob=0.5, mask_length=5, no_overlap=True, min_space=1)
    assert mask.shape == (4, 100)
    for row in mask:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(int), [0]])))
        lengths = edges[1::2] - edges[::2]
        assert len(lengths) > 0
        assert (lengths == 5).all()


def test_conditional_random_field():
    torch.manual_seed(0)
    crf = DynamicCRF(num_embedding=6, low_rank=2, beam_size=4)
    targets, masks = torch.randint(6, (2, 3)), torch.ones(2, 3, dtype=torch.bool)
    assert torch.isfinite(crf(torch.randn(2, 3, 6), targets, masks)).all()


def test_numpy_itself_is_untouched():
    assert data_utils.np is not np
    assert data_utils.np.float32 is np.float32
    for name in ("int", "float", "object", "compat"):
        assert not hasattr(np, name)
