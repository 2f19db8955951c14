"""What the dry run says that a table costs: from measured steps, by arithmetic that is checked by hand here."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from recipe_files import job_of, read_job, read_table

from fairseq_residuals.lab.recipes.costs import DEVICES, devices, summary
from fairseq_residuals.lab.recipes.model_size import Matrices, matrices_of
from fairseq_residuals.lab.utils.checkout import ROOT
from modern_fairseq.plain_yaml import read_yaml

GRAPHS = next(device for device in devices() if "--cuda-graphs" in device.name)
PLAIN = next(device for device in devices() if device.name == "H100, fp16")
CPU, NARROW = (device for device in devices() if "EPYC" in device.name)
MEASURED = PLAIN.model


def test_steps_are_those_of_the_reports() -> None:
    """Milliseconds in the tables of the GPU's report, seconds in the CSV of the CPU's."""
    for name, entry in read_yaml(DEVICES).items():
        report = ROOT / entry["report"]
        if report.suffix == ".csv":
            with report.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if row["precision"] == "fp32"]
            steps = {row["contestant"]: float(row["step s"]) for row in rows if row["step s"]}
            assert [steps[entry["contestant"]]] * 2 == pytest.approx(entry["seconds"], abs=5e-5)
            continue
        # | contestant | machine | step | in a row | GPU | ...
        lines = re.findall(r"^\|.*\| [abc] \| ([\d.]+)(?: ms)? \|.*?\| ([\d.]*)(?: ms)? \|", report.read_text(), re.M)
        assert {f"{1000 * seconds:.1f}" for seconds in entry["seconds"]} <= {step for step, _ in lines}, name
        assert f"{1000 * entry['busy']:.1f}" in {busy for _, busy in lines}, name


def test_a_step_of_the_narrow_recipe_is_the_difference_of_two_runs() -> None:
    """So that starting, validating and saving are not in it."""
    with (ROOT / read_yaml(DEVICES)[NARROW.name]["report"]).open(newline="") as file:
        short, long = csv.DictReader(file)
    updates = int(long["updates"]) - int(short["updates"])
    assert (float(long["cpu seconds"]) - float(short["cpu seconds"])) / updates == pytest.approx(
        float(long["step s"]), abs=5e-4
    )


def test_matrices_of_the_model_that_was_measured() -> None:
    """Its parameters are 148.9 million, norms and biases but few of them; Table 1's 18L-18L is that model."""
    assert MEASURED.multiplied == MEASURED.stored == 148_897_792
    assert matrices_of(read_job("b2t/table1/18l_b2t")) == MEASURED


def test_a_language_model_has_no_attention_to_an_encoder() -> None:
    found = matrices_of(read_job("debian/language_model/16l_pre_ln"))
    assert (found.layers, found.multiplied) == (16, 16 * (4 + 8) * 512**2 + 8_400 * 512)
    assert found.stored == found.multiplied  # its one table is projection too


def test_adaptive_softmax_compares_few_of_the_words() -> None:
    """Their embeddings get narrower by a factor of four from cluster to cluster; they are the projection too."""
    found = matrices_of(read_job("b2t/table4/6l_b2t"))
    layers = 6 * (4 * 1024**2 + 2 * 1024 * 4096)
    assert found.stored == layers + 20_000 * 1024 + 40_000 * 256 + 207_744 * 64
    assert found.multiplied == layers + (20_000 + 12_387) * 1024


def test_the_vocabulary_of_a_prepared_corpus_is_read(tmp_path: Path) -> None:
    job = job_of("debian/translation/18l_b2t", data=tmp_path)
    unprepared = matrices_of(job)
    job.data.mkdir(parents=True)
    (job.data / "dict.en.txt").write_text("word 1\n" * 5)
    assert unprepared.stored - matrices_of(job).stored == (8_400 - 5) * 512


def test_hours_of_the_measured_model_are_its_steps() -> None:
    """50,000 updates of 128 passes: 6.4 million steps of 34 ms, or of 93 to 182."""
    steps = 50_000 * 128
    assert GRAPHS.hours(MEASURED, steps, 3584) == pytest.approx((60.4, 60.4), abs=0.1)
    assert PLAIN.hours(MEASURED, steps, 3584) == pytest.approx((165.0, 323.6), abs=0.1)


def test_a_narrow_model_costs_what_python_takes_for_its_layers() -> None:
    narrow = Matrices(36, 128, MEASURED.multiplied // 16, 0)
    assert PLAIN.hours(narrow, 1000, 3584) == PLAIN.hours(MEASURED, 1000, 3584)
    assert GRAPHS.hours(narrow, 1000, 3584)[0] == pytest.approx(GRAPHS.hours(MEASURED, 1000, 3584)[0] / 16)


def test_a_wide_model_costs_what_the_device_computes() -> None:
    wide = Matrices(36, 4096, MEASURED.multiplied * 20, 0)
    assert PLAIN.hours(wide, 3600, 3584) == pytest.approx((20 * 0.0317,) * 2, rel=1e-3)


def test_the_summary_of_a_row() -> None:
    lines = list(summary([read_job("b2t/table1/18l_b2t")]))
    assert lines[0] == "1 run, at most 50,000 updates, 6,400,000 passes in all on each device"
    assert "about 165 to 324 hours of one device (H100, fp16; derived from results/bench/devices.yaml)" in lines
    assert "about 60 hours of one device (H100, fp16, --cuda-graphs; derived from results/bench/devices.yaml)" in lines
    # 12 checkpoints of 148.9 million weights in half precision and two moments
    assert f"about {12 * 10 * MEASURED.multiplied / 2**30:.0f} GiB of checkpoints, corpora not counted" in lines
    europarl, crawl, commentary = 197_785_698, 918_311_367, 75_178_032  # and four archives of test sets
    megabytes = f"{round((europarl + crawl + commentary) / 1e6):,} MB"
    files = f"7 files to download or supply ({megabytes} and 4 of unknown size), 0 are here; "
    assert f"{files}`fairseq-residuals prepare wmt14_en_de --sources` lists them" in lines


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("b2t/table1", "18L-18L/B2T"),
        ("debian/translation", "18L-18L/512/*"),
        ("debian/translation", "18L-18L/128/*"),
        ("debian/translation", "6L-6L/128/*"),
    ],
)
def test_the_documents_have_the_costs_of_today(name: str, rows: str) -> None:
    """Runs, updates, passes, and hours of the devices: a row of results/recipes/costs.md."""
    table = (ROOT / "results/recipes/costs.md").read_text()
    [line] = re.findall(rf"^\| `{name}`, {re.escape(rows)} \| (.*) \|$", table, re.M)
    runs, updates, passes, plain, graphs, cpu, disk, files = line.replace("*", "").split(" | ")
    jobs = [read_job(config) for config in dict.fromkeys(cell.config for cell in read_table(name).select([rows]))]
    found = list(summary(jobs))
    runs = f"{runs} run{'s' * (runs != '1')}"
    assert found[0] == f"{runs}, at most {updates} updates, {passes} passes in all on each device"
    hours = {device: hour for hour, device in re.findall(r"about (.*) hours of one device \((.*);", "\n".join(found))}
    assert hours.pop(PLAIN.name) == plain
    assert hours.pop(GRAPHS.name, "-") == graphs
    assert list(hours.values()) == [cpu]
    assert f"about {disk} of checkpoints, corpora not counted" in found
    if files != "the same":
        told = re.findall(r"\d[\d,]*", found[-1].partition(" are here")[0])
        assert re.findall(r"\d[\d,]*", files) == told[:-1]


def test_the_size_of_a_download_is_said_where_it_is_known(tmp_path: Path) -> None:
    """The signed list of Debian 12.15 has the sizes of its files; two rows take the same ones."""
    rows = ["debian/translation/6l_b2t_128", "debian/translation/18l_b2t_128"]
    english, italian, packages, listed = 6_107_304, 5_291_861, 8_790_396, 151_075
    *_, files = summary([job_of(name, data=tmp_path / "data") for name in rows])
    megabytes = round((english + italian + packages + listed) / 1e6)
    assert files.startswith(f"4 files of {megabytes} MB together to download or supply, 0 are here; ")
    here = tmp_path / "data/downloads/dists/bookworm/main/i18n/Translation-it.bz2"
    here.parent.mkdir(parents=True)
    here.touch()
    *_, files = summary([job_of(name, data=tmp_path / "data") for name in rows])
    assert files.startswith("3 files of 15 MB together to download or supply, 1 are here; ")
    *_, files = summary([job_of("b2t/table3/6l_b2t", data=tmp_path)])
    assert files.startswith("1 file to download or supply, ")
    *_, files = summary([job_of("b2t/table4/6l_b2t", data=tmp_path)])
    assert files.startswith("1 file of 190 MB to download or supply, ")


def test_speech_is_reckoned_by_its_frames() -> None:
    """The encoder has a position for four frames, the decoder one for thirty; 40,000 frames a pass, 32 passes."""
    found = matrices_of(read_job("b2t/table5/6l_b2t"))
    convolutions = 5 * 80 * 1024 + 5 * 512 * 1024
    encoder, decoder = 6 * (4 + 8) * 512**2, 6 * (8 + 8) * 512**2
    vocabulary = 10_000 * 512
    assert found.multiplied == (convolutions + encoder) // 4 + (decoder + vocabulary) // 30
    assert found.stored == convolutions + encoder + decoder + vocabulary
    lines = list(summary([read_job("b2t/table5/6l_b2t")]))
    share = found.multiplied / MEASURED.multiplied * 40_000 / 3584
    hours = 150_000 * 32 * 0.034 * share / 3600
    assert any(line.startswith(f"about {hours:.0f} hours of one device (H100, fp16, --cuda-graphs; ") for line in lines)


def test_a_cpu_is_reckoned_by_the_step_of_a_model_as_wide() -> None:
    wide, narrow = (read_job(f"debian/translation/18l_b2t{end}") for end in ("", "_128"))
    assert [device.serves(matrices_of(wide)) for device in (PLAIN, CPU, NARROW)] == [True, True, False]
    assert [device.serves(matrices_of(narrow)) for device in (PLAIN, CPU, NARROW)] == [True, False, True]
    said = [line for line in summary([wide, narrow]) if "EPYC" in line]
    assert len(said) == 2 and all("hours of one device for 1 of the runs (" in line for line in said)
    assert not [line for line in summary([narrow]) if "of the runs" in line]
