"""What is read beside checkpoints: JSON, YAML, sgm and manifests."""

from __future__ import annotations

from collections.abc import Iterator

from pickle_cases import Case

DEEP = 100_000


def documents() -> Iterator[Case]:
    """JSON and YAML."""
    laughs = b"a: &a [x, x]\n" + b"".join(
        b"%c: &%c [*%c, *%c, *%c]\n" % (n, n, n - 1, n - 1, n - 1) for n in range(ord("b"), ord("z"))
    )
    deep = b"[" * DEEP + b"]" * DEEP
    json = {
        "deep": (deep, "not valid JSON"),
        "deep-objects": (b'{"a":' * DEEP, "not valid JSON"),
        "long-number": (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        "list": (b"[]", "it is no JSON object"),
        "latin-1": (b'{"a": "\xe4"}', "not valid JSON"),
        "binary": (bytes(range(256)), "not valid JSON"),
        "cut": (b'{"a": [1, 2', "not valid JSON"),
        "empty": (b"", "not valid JSON"),
    }
    for label, (contents, sentence) in json.items():
        yield Case(f"json-{label}", "json", contents, sentence)
    yaml = {
        "call": b"a: !!python/object/apply:os.system ['touch called']\n",
        "new": b"a: !!python/object/new:os.system ['touch called']\n",
        "module": b"a: !!python/module:os\n",
        "name": b"a: !!python/name:os.system\n",
        "tag": b"a: !x 1\n",
        "aliases": laughs,
        "itself": b"a: &a [*a]\n",
        "merges": b"a: &a {b: 1}\nc: {<<: *a}\n",
        "deep": deep,
        "tab": b"a:\n\tb: 1\n",
        "latin-1": b"a: \xe4\n",
        "control": b"a: \x01\n",
        "unhashable": b"? [a]\n: b\n",
        "list": b"- a\n",
        "date": b"a: 2020-99-99\n",
        "empty": b"",
    }
    for label, contents in yaml.items():
        yield Case(f"yaml-{label}", "yaml", contents, "is no YAML file|is no file of tables")


def texts() -> Iterator[Case]:
    """sgm and manifests."""
    sgm = {
        "never-closed": (b"<seg id=1>\n" + b"word\n" * 200_000, "not closed"),
        "opened-again": (b"<seg " * 100_000, "not closed|no <seg>"),
        "opened-and-begun": (b"<seg>" * 200_000 + b"\n", "not closed"),
        "spaces": (b"<seg>" + b" " * 500_000 + b"\n", "not closed"),
        "spaces-in-lines": (b"<seg>\n" + b" \n" * 200_000, "not closed"),
        "one-line": (b"<seg>" + b"a" * 5_000_000, "not closed"),
        "none": (b"<doc>\n" * 1000, "no <seg>"),
        "empty": (b"", "no <seg>"),
    }
    for label, (contents, sentence) in sgm.items():
        yield Case(f"sgm-{label}", "sgm", contents, sentence)
    head = b"id\taudio\tn_frames\ttgt_text\tspeaker\n"
    tsv = {
        "long-field": head + b"a" * 1_000_000 + b"\n",
        "other-columns": b"id\taudio\n1\t2\n",
        "short-row": head + b"1\t2\n",
        "latin-1": head + b"1\t2\t3\t\xe4\t5\n",
        "zero-bytes": head + bytes(100) + b"\n",
        "empty": b"",
    }
    for label, contents in tsv.items():
        yield Case(f"tsv-{label}", "tsv", contents, "")


def logs() -> Iterator[Case]:
    """Lines of which a pattern that begins anywhere takes the square."""
    heads = {
        "": "",
        "epoch": "epoch 001: ",
        "table": "epoch 001 | num_updates ",
        "score": "BLEU ",
    }
    for label, head in heads.items():
        for piece in ("a", "1a", "1.", " ", '{"', "[", "a=", "num. shared model params: "):
            contents = (head + piece * (1_000_000 // len(piece)) + "\n").encode()
            yield Case(f"log-{label}-of-{piece[:3]!r}", "log", contents, "has no record of")
    line = "2026-01-01 00:00:00 | INFO | train_inner | epoch 001 | loss=3, num_updates=%d\n"
    after_the_end = "INFO | done training in 1 seconds\n" + "".join(line % n for n in [*range(1, 20_000), 1])
    yield Case("log-many-after-the-end", "log", after_the_end.encode(), "has several runs")
