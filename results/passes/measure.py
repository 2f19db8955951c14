"""What an update holds if the same nominal batch is made of fewer, larger passes: ``measure.py DATA SOURCE TARGET``.

Batches are fairseq's, by length, of a prepared corpus; ten epochs of shuffled batches are grouped into updates.
"""

import sys
from pathlib import Path

import numpy as np
from fairseq.data.data_utils import batch_by_size, load_indexed_dataset

RECIPES = {"B2T's": (3584, 128), "ResiDual's": (4096, 16)}
EPOCHS = 10


def main(data: str, source: str, target: str) -> None:
    """Print a line for each power of two of passes that are one."""
    prefix = Path(data) / f"train.{source}-{target}"
    sides = [
        np.asarray(load_indexed_dataset(f"{prefix}.{side}", combine=False).sizes, np.int64) for side in (source, target)
    ]
    longer, words = np.maximum(*sides), sides[1]
    # as LanguagePairDataset orders them: by source, then target, ties at random
    order = np.random.RandomState(1).permutation(len(words))
    order = order[np.lexsort((words[order], sides[0][order]))]
    print("| Batch | Tokens a pass | Passes | Updates an epoch | Target words | Sentences | Deviation of length |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, (tokens, passes) in RECIPES.items():
        at_once = 1
        while at_once <= min(passes, 64):
            report(name, order, longer, words, tokens * at_once, passes // at_once)
            at_once *= 4


def report(name: str, order: np.ndarray, longer: np.ndarray, words: np.ndarray, tokens: int, passes: int) -> None:
    """Print the means over updates, and the standard deviation over updates of the mean length of their sentences."""
    batches = batch_by_size(
        order,
        num_tokens_fn=lambda index: longer[index],
        num_tokens_vec=longer[order],
        max_tokens=tokens,
        required_batch_size_multiple=8,
    )
    found = []
    for epoch in range(EPOCHS):
        shuffled = np.random.RandomState(epoch).permutation(len(batches))
        for start in range(0, len(batches) - passes + 1, passes):
            chosen = np.concatenate([batches[i] for i in shuffled[start : start + passes]])
            found.append((words[chosen].sum(), len(chosen), words[chosen].mean()))
    total, sentences, length = np.array(found).T
    updates = -(-len(batches) // passes)
    print(
        f"| {name} | {tokens:,} | {passes} | {updates} | {total.mean():,.0f} | {sentences.mean():,.0f} |"
        f" {length.std():.1f} |"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
