"""The corpus that the fuzzer changes: good inputs of each kind, and pieces of text that programs trip over."""

from __future__ import annotations

import functools
from pathlib import Path

from archive_cases import tar_of, zip_of
from command_lines import SIZES
from object_cases import pid, rebuilt
from pickle_cases import checkpoint, legacy, text

from fairseq_residuals.lab.compare.cells import HEADER

ROOT = Path(__file__).parents[2]
TEXTS = (
    *" \n\t\0,:=()[]{}'\"#%&*|-",
    *("", "0", "-1", "1e999", "nan", "-inf", "1_0", "0x10", "1" * 5000, "99999999999999999999", "2147483648", "1e-320"),
    *("true", "null", "None", "auto", "\u00b2", "\u0661", "\ufeff", "\u2028", "\U0001f600", "e\u0301", "../../x"),
    *("/dev/null", "a" * 70_000, "[" * 300, "${a}", "${oc.env:HOME}", "%(x)s", "{0}", "!!python/name:os.system", "&a"),
)
PIECES = (*(text.encode() for text in TEXTS), b"\xff", b"\xc3", b"\x80\x02", b"\r")
LOG = b"".join(
    b"%s\n" % line.encode()
    for line in (
        "2026-01-02 03:04:05 | INFO | fairseq_cli.train | {'_name': None, 'common': {'seed': 1}}",
        "encoder: 18 layers wired by b2t (init=fairseq,init_scale=1), B2T connection: x = LN(x + F(x))",
        '2026-01-02 03:04:05 | INFO | train_inner | {"epoch": 1, "loss": "9.5", "num_updates": "100", "gnorm": "1.8",'
        ' "gnorm/encoder.layers.0": "0.25", "loss_scale": "128", "wps": null}',
        "epoch 001:  1 / 9 loss=8, num_updates=110, gnorm=1.1, gnorm/decoder.layers.0=0.5, gnorm/decoder.layers.5=nan",
        "2026-01-02 03:04:05 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting"
        " loss scale to: 64.0",
        '2026-01-02 03:04:05 | INFO | valid | {"epoch": 1, "valid_loss": "7.5", "valid_ppl": "181.02",'
        ' "valid_num_updates": "200"}',
        "2026-01-02 03:04:05 | INFO | train | epoch 001 | loss 8.375 | ppl 332 | num_updates 200 | lr 0.001",
        "2026-01-02 03:04:05 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 7.5 | num_updates 200",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        "2026-01-02 03:04:05 | INFO | fairseq_cli.train | done training in 9.5 seconds",
    )
)
JOEYNMT = (
    b"Steps: 1000\tLoss: 61.5\tPPL: 9.1\tbleu: 12.3\tLR: 0.0001\t*\nSteps: 2000\tLoss: 51.5\tPPL: 7.1\tbleu: 13.3\t\n"
)
LONG = LOG + b"".join(
    b"%s%s\n" % (head, piece * 70_000)
    for head in (b"epoch 001: ", b"epoch 001 | num_updates ", b"Steps: 1 ", b"Generate test with beam=5: ", b"")
    for piece in (b"a", b"1a", b" ", b'{"', b"[")
)
"""Lines of which some patterns took the square of their length."""
EVAL_LM = (
    b"2026 | INFO | fairseq_cli.eval_lm | {'common_eval': {'post_process': None}, 'eval_lm': {'context_window': 400,"
    b" 'softmax_batch': 9}, 'dataset': {'num_workers': 0}, 'task': {'tokens_per_sample': 512, 'sample_break_mode':"
    b" 'complete', 'add_bos_token': False}}\n2026 | INFO | x | Evaluated 1,000 tokens in 1.0s (1 tokens/s)\n"
    b"2026 | INFO | x | Loss (base 2): 3.0000, Perplexity: 8.00\n"
)
VALIDATE = b"2026 | INFO | valid | valid on 'valid' subset | loss 3.5 | nll_loss 3 | ppl 8 | wps 0 | wpb 1 | bsz 1\n"
GENERATED = (
    b"S-1\tein Satz\nT-1\ta sentence\nH-1\t-0.5\ta sentence\nD-1\t-0.5\ta sentence\nP-1\t-0.5 -0.25\n"
    b"S-0\tzwei\nT-0\ttwo\nH-0\t-1.5\ttoo\nD-0\t-1.5\ttoo\nP-0\t-1.5\nGenerate test with beam=5: BLEU4 = 50.00\n"
)
RUN = b"""task: {_name: translation, source_lang: s, target_lang: t}
criterion: {_name: cross_entropy}
model: {_name: transformer_b2t_6l, residual: b2t, residual_args: init_scale=1, encoder_layers: 1, decoder_layers: 1}
common: {cpu: true, seed: 1}
checkpoint: {save_dir: save}
dataset: {num_workers: 0, batch_size: 4}
optimization: {lr: [0.001], max_update: 1}
optimizer: {_name: adam, adam_betas: "(0.9, 0.98)"}
lr_scheduler: {_name: fixed}
"""
PUBLISHED = b"""b2t:
  source: someone
  tables:
    table1:
      where: page 1
      title: a title
      metrics: [BLEU]
      columns: [en-de, de-en, avg]
      averages: {avg: [en-de, de-en]}
      rows: {b2t: {en-de: 27.1, de-en: failed, avg: null}, "18": {en-de: 0.5, de-en: 30, avg: 15.25}}
"""
WIRINGS = (
    b"b2t",
    b"post_ln:0-3,pre_ln:4-5",
    b"pre_ln(final_norm=false)",
    b"post_ln:0,b2t:1-5\nb2t.init_scale=2,post_ln.init=fairseq",
    b"hyper_connections\nn=4,dynamic=true",
    b"layer_scale\ninit_scale=0.5,norm_type=rms",
    b"admin\nprofile=auto",
)
FAIRSEQ_RESIDUALS = (
    b"list\n--tasks",
    b"show\nb2t",
    b"table\n--format\nmarkdown\nb2t/table1",
    b"explain\ntransformer_b2t_6l\n--layers\n2\n--dim\n8\n--ffn-dim\n8\n--heads\n1",
    b"gradients\n--variants\npost_ln\nb2t/init_scale=2\n--layers\n2\n--dim\n8\n--ffn-dim\n8\n--heads\n1\n--tokens\n4\n--svg",
    b"curves\nLABEL=train.log\n--metric\nppl\n--subset\nvalid\n--log-y",
    b"diagnose\ntrain.log",
    b"score\nsacrebleu\ngenerated.txt\n--lines\nD",
    b"score\nppl\neval_lm.txt\n--words\n1000",
    b"average\n--inputs\nsave\n--num-epoch-checkpoints\n3\n--output\naverage.pt",
    b"import\n--from\nfairseq\ncheckpoint.pt\nout.pt",
    b"prepare\niwslt14_de_en\nout\n--mirror\nmirror\n--workers\n1",
    b"reproduce\nb2t/table1\n--dry-run\n--override\noptimization.max_update=3\n--seeds\n1\n2",
    b"condition\n--sigmas\n0\n1e-8\n--steps\n3\n--dim\n4",
)
FAIRSEQ = (
    "\n".join(
        ["fairseq-train", "data", "--arch", "transformer_b2t_6l", "--residual", "b2t", "--lr", "0.1", *SIZES]
    ).encode(),
    b"fairseq-train\nPAIR\n--arch\ntransformer_b2t_6l\n--residual-args\ninit_scale=2\n--optimizer\nadam\n--lr\n0.001\n--cpu"
    b"\n--max-update\n1\n--batch-size\n4\n--encoder-layers\n1\n--decoder-layers\n1\n--num-workers\n0\n--max-epoch\n1",
    b"fairseq-generate\nPAIR\n--path\ncheckpoint.pt\n--beam\n2\n--nbest\n1\n--cpu\n--model-overrides\n{'dropout': 0.1}",
    b"fairseq-eval-lm\nPAIR\n--path\ncheckpoint.pt\n--context-window\n3\n--cpu\n--batch-size\n4",
)
ARCHIVE = {"wanted.txt": b"text\n" * 40, "a/other.txt": b"x" * 2000}


def _table(*lines: tuple[str, ...], separator: str) -> bytes:
    return "".join(f"{separator.join(line)}\n" for line in lines).encode()


@functools.cache
def corpus() -> dict[str, tuple[bytes, ...]]:
    """Good inputs by kind."""
    old = checkpoint(b"}" + text("w") + rebuilt(pid("0", 16, view=b"N"), 0, (4, 4), (4, 1)) + b"s")
    state = checkpoint(b"}" + text("w") + rebuilt(pid("0", 16), 0, (4, 4), (4, 1)) + b"s")
    files = tuple(ARCHIVE.items())
    reproduced = (ROOT / "results/reproduced.csv").read_text().splitlines()[0].split(",")
    result = dict.fromkeys(HEADER, "1") | {"ended": "learned", "curve": "10:2.5 20:nan"}
    manifest = _table(
        ("id", "audio", "n_frames", "tgt_text", "speaker"),
        ("1", "a.npy", "12", "a b", "x"),
        ("2", "f.zip:10:20", "13", "c", "y"),
        separator="\t",
    )
    return {
        "wiring": WIRINGS,
        "log": (LOG, JOEYNMT, LONG),
        "perplexity": (EVAL_LM, VALIDATE),
        "generation": (GENERATED,),
        "pickle": (state,),
        "legacy": (legacy(old, {"0": bytes(64)}),),
        "archive": (tar_of(*files), zip_of(*files), zip_of(*files, method=8)),
        "record": (b'{"key": "a", "lines": {"train": 3}}',),
        "published": (PUBLISHED,),
        "reproduced": (_table(tuple(reproduced), ("b2t", "table1", *["1"] * (len(reproduced) - 2)), separator=","),),
        "runs": (_table(HEADER, tuple(result.values()), separator=","),),
        "dictionary": (b"a 10\nb 7 #fairseq:overwrite\nc 1\n", b"madeupword0000 0\n"),
        "sgm": (b'<doc>\n<seg id="1"> a b </seg> <seg id="2"> c\nd </seg>\n</doc>\n',),
        "table of words": (manifest,),
        "speech config": (
            b"vocab_filename: dict.txt\ninput_channels: 1\ntransforms: {'*': [utterance_cmvn]}\nshuffle: no\n",
        ),
        "merges": (b"#version: 0.2\nk a\nka n\ni n\nin g</w>\n",),
        "command": FAIRSEQ_RESIDUALS,
        "fairseq command": FAIRSEQ,
        "run.yaml": (RUN,),
    }
