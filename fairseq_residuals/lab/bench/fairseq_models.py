"""Entries that fairseq builds, trains and searches with: its own model, and the plugin's.

Stock "as it ships" still runs by ``modern_fairseq``: without the patches of its dataclasses, of hydra's and NumPy's
names, and of half precision on CPU, fairseq 0.12.2 cannot be imported, or not be run, on current Python. What is undone
for it are the patches that change what its layers compute and hold (``modern_fairseq/fixes/layers.py``), and those
that spare launches of kernels (``modern_fairseq/fixes/at_once.py``).
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn

import torch
from fairseq import options, utils
from fairseq.criterions import build_criterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from fairseq.models.transformer import transformer_encoder
from fairseq.modules import transformer_layer
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer, build_optimizer
from fairseq.sequence_generator import SequenceGenerator

from fairseq_residuals.lab.bench.entries import PRECISIONS, Case, Entry
from fairseq_residuals.lab.look import batches
from fairseq_residuals.lab.look.models import architecture_of, size_flags
from fairseq_residuals.plugin.checkpoints.fairseq_config import task_of
from fairseq_residuals.plugin.search.beam_search import FasterSequenceGenerator, searchable
from fairseq_residuals.plugin.speed.cuda_graph_step import record_steps, refuse_unrecordable
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.speed.cpu import tuned

AS_USERS_GET_IT = (
    *("--share-all-embeddings", "--criterion=label_smoothed_cross_entropy", "--label-smoothing=0.1"),
    *("--optimizer=adam", "--adam-betas=(0.9, 0.98)", "--lr=1e-4", "--lr-scheduler=fixed"),
)
"""Dropout is the architecture's, 0.1. Nothing is learned here: the learning rate is small, so that all stays finite."""


class Network(NamedTuple):
    """A model in single precision on the CPU, its complete settings, and what it asks of a task."""

    model: Any
    settings: Namespace
    task: Any


def settings_of(entry: Entry, case: Case) -> Namespace:
    """Return what fairseq-train makes of the flags.

    Raises:
        UserError: fairseq refuses them, or they ask for what is not done here.
    """
    parser = options.get_training_parser()

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{entry}: {message}")

    parser.error = refuse
    flags = [*size_flags(case, "translation"), *AS_USERS_GET_IT]
    flags += [f"--{case.precision}"] if case.precision in ("fp16", "bf16") else []
    settings = options.parse_args_and_arch(
        parser, ["synthetic", "--task=translation", "--arch", entry.arch, *flags, *entry.flags]
    )
    if settings.amp or case.precision != ("fp16" if settings.fp16 else "bf16" if settings.bf16 else "fp32"):
        refuse("--precision alone says in which precision it is measured, not --fp16, --bf16 or --amp")
    for flag, off in (("update_freq", [1]), ("packed", None), ("log_residual_stats", 0)):
        if getattr(settings, flag, None) not in (None, off):
            refuse(f"--{flag.replace('_', '-')} is for fairseq's trainer, which does not run here")
    return settings


def network(entry: Entry, case: Case) -> Network:
    """Return the model of ``entry.arch``: the plugin's, or fairseq's own without its dead parameters."""
    settings = settings_of(entry, case)
    task = task_of(settings, {"source": case.vocabulary, "target": case.vocabulary})
    torch.manual_seed(case.seed)
    return Network(build_model(settings, task), settings, task)


def stock(entry: Entry, case: Case) -> Network:
    """Return fairseq's model as version 0.12.2 ships it, for the rest of this process.

    Every encoder layer has the second copy of its weights that no gradient reaches, and the fused kernel that reads it
    in evaluation.
    """
    assert transformer_layer.__spec__ is not None and transformer_layer.__spec__.loader is not None
    transformer_layer.__spec__.loader.exec_module(transformer_layer)
    transformer_encoder.torch = torch
    for name in ("_sync_fp16_grads_to_fp32", "_sync_fp32_params_to_fp16"):
        method = inspect.unwrap(getattr(FP16Optimizer, name))
        setattr(FP16Optimizer, name, method)
    utils.multi_tensor_l2norm_available = False
    return network(entry, case)


class Training:
    """Steps as fairseq's trainer makes them: the same criterion, optimizer and half precision."""

    def __init__(self, made: Network, case: Case) -> None:
        device = torch.device(case.device)
        config = convert_namespace_to_omegaconf(made.settings)
        half = config.common.fp16 or config.common.bf16
        self.model = made.model.to(device, PRECISIONS[case.precision] if half else torch.float32).train()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.criterion = build_criterion(config.criterion, made.task)
        if getattr(made.settings, "cuda_graphs", None):
            refuse_unrecordable(self.model, device)
            record_steps(self.criterion)
        sparing = config.common.memory_efficient_fp16 or config.common.memory_efficient_bf16
        if half:
            kind = MemoryEfficientFP16Optimizer if sparing else FP16Optimizer
            self.optimizer = kind.build_optimizer(config, self.parameters)
        else:
            self.optimizer = build_optimizer(config.optimizer, self.parameters)
        self.on_cpu = device.type == "cpu"
        self.clip_norm = config.optimization.clip_norm
        batch = batches.make_up(case, made.settings, made.task, Namespace(encoder=None))
        self.sample = batch.to(device, torch.float32).sample | {"ntokens": case.target_tokens}

    def forward(self) -> torch.Tensor:
        """Return the summed loss, ()."""
        with self._tuned():
            return self.criterion(self.model, self.sample)[0]

    def backward(self, loss: torch.Tensor) -> None:
        with self._tuned():
            self.optimizer.backward(loss)

    def _tuned(self) -> AbstractContextManager[None]:
        """Tune the model as fairseq's trainer does for models of this plugin."""
        return tuned(self.model) if self.on_cpu and searchable([self.model]) else nullcontext()

    def update(self) -> None:
        """Update the parameters as fairseq's trainer does.

        Raises:
            OverflowError: the gradients overflowed in fp16; the loss scale is halved, as in fairseq's trainer.
        """
        try:
            self.optimizer.multiply_grads(1 / self.sample["ntokens"])
            self.optimizer.clip_grad_norm(self.clip_norm)
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad()


def search(entry: Entry, case: Case) -> Callable[[], int]:
    """Search as fairseq-generate does; every hypothesis has ``case.tokens`` tokens and its end."""
    return _search(network(entry, case), case)


def search_stock(entry: Entry, case: Case) -> Callable[[], int]:
    made = stock(entry, case)
    # its layers choose the fused kernel once their weights have been loaded from a checkpoint
    made.model.load_state_dict(made.model.state_dict())
    return _search(made, case)


def _search(made: Network, case: Case) -> Callable[[], int]:
    """Return a function that searches once, and gives how many tokens the best hypotheses have, ends included.

    Raises:
        UserError: the decoder has too few positions.
    """
    device, dtype = torch.device(case.device), PRECISIONS[case.precision]
    model = made.model.to(device, dtype).eval()
    # as fairseq-generate does before it begins
    model.make_generation_fast_(need_attn=False)
    if case.tokens >= model.max_decoder_positions():
        raise UserError(
            f"hypotheses of {case.tokens} tokens and the end of a sentence do not fit into the model, which has"
            f" {model.max_decoder_positions()} positions"
        )
    kind = FasterSequenceGenerator if searchable([model]) else SequenceGenerator
    length = {"max_len_a": 0, "max_len_b": case.tokens, "min_len": case.tokens}
    generator = kind([model], made.task.target_dictionary, beam_size=case.beam, **length)
    batch = batches.make_up(case, made.settings, made.task, model).to(device, dtype)
    inputs = {k: v for k, v in batch.sample["net_input"].items() if k != "prev_output_tokens"}

    @torch.no_grad()
    def run() -> int:
        found = generator.generate([model], {"net_input": inputs})
        return sum(len(hypotheses[0]["tokens"]) for hypotheses in found)

    return run


STOCK = Entry(
    "stock",
    stock,
    search_stock,
    about="fairseq 0.12.2's Post-LN as it ships, with a second, dead copy of its encoder layers' weights, and in"
    " evaluation their fused kernel",
)
ENTRIES = {
    entry.name: entry
    for entry in (
        STOCK,
        Entry("stock-lean", network, search, about="stock without the copy and the kernel"),
    )
}


def parse(text: str) -> Entry:
    """Return the entry that ``text`` names: one of :data:`ENTRIES`, or a wiring, NAME or NAME/k=v,...

    Raises:
        UserError: it is none; the message says what is valid.
    """
    if text in ENTRIES:
        return ENTRIES[text]
    try:
        arch, flags = architecture_of(text, "translation")
    except UserError as error:
        raise UserError(f"{error}; beside wirings there are {', '.join(ENTRIES)}") from error
    return Entry(text, network, search, arch, flags)
