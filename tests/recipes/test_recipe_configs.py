"""Every configuration is valid for fairseq, and has the settings that the papers' tables of settings give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fairseq.dataclass.initialize import add_defaults
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf
from recipe_files import CONFIGS, TABLES, job_of, kinds, published, read_job, read_table, rows_of_all

from fairseq_residuals.lab.data.corpora import CORPORA, find_corpus
from fairseq_residuals.lab.recipes.compose import as_command_line, compose, effective_batch, plain
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.wiring import Wiring


def resolved(config: DictConfig) -> tuple[DictConfig, dict[str, Wiring]]:
    """The model's settings, complete, and its wiring."""
    model = OmegaConf.create(plain(config)["model"])
    return model, ARCHITECTURES[model._name](model)


def test_every_row_has_a_base_a_schedule_and_an_architecture_that_exist() -> None:
    for name, row in rows_of_all().items():
        assert (CONFIGS / f"{row['base']}.yaml").is_file(), name
        assert "schedule" not in row or (CONFIGS / f"schedule/{row['schedule']}.yaml").is_file(), name
        assert row.get("model", {}).get("_name", "transformer_b2t") in ARCHITECTURES, name


def test_null_in_a_row_is_no_word(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/rows.yaml").write_text("row: {base: base, recipe: {average: null}}")
    assert as_command_line(tmp_path, "mine/row") == ("base", ["++recipe.average=null"])


@pytest.mark.parametrize("config", kinds())
def test_is_valid_for_fairseq(config: str) -> None:
    """Unknown keys and values of the wrong kind are refused where fairseq would refuse them: in its dataclasses, and
    in the settings of this plugin's models. The corpus and its test sets exist."""
    job = read_job(config)
    settings = OmegaConf.create(plain(job.config))
    add_defaults(settings)
    _, wirings = resolved(job.config)
    assert set(wirings) <= {"encoder", "decoder"}
    assert settings.task._name in TASK_REGISTRY
    for kind in ("optimizer", "lr_scheduler", "criterion"):
        assert settings[kind]._name in REGISTRIES[kind]["dataclass_registry"]
    assert settings.optimization.max_update > 0
    assert settings.distributed_training.distributed_world_size == 1
    corpus, measured = job.recipe.corpus, job.recipe.measurements.values()
    assert corpus in CORPORA
    known = set(find_corpus(corpus).variant(job.recipe.variant)[1].test_sets) | {"valid"}
    # those of several languages have a subset of that name for each direction, and name none
    known |= {"test"} if corpus == "opus100" else set()
    assert {m.set for found in measured for m in found if m.tool != "train-log"} <= known


def test_settings_of_b2t() -> None:
    """Tables 6 and 7 of the paper: dimensions, training, and the GPUs, of which each has the tokens of Table 6."""
    settings, compute = published()["b2t/table6"].rows, published()["b2t/table7"].rows["num_gpu"]
    tasks = {"MT": ("table1", ""), "Summarization": ("table3", ""), "LM": ("table4", ""), "ASR": ("table5", "")}
    for task, (table, _) in tasks.items():
        for cell in read_table(f"b2t/{table}").cells:
            config = read_job(cell.config).asked
            model, _ = resolved(config)
            said = {key: row[task] for key, row in settings.items()}
            assert model.decoder_embed_dim == said["hidden_dim"]
            assert model.decoder_ffn_embed_dim == said["ffn_dim"]
            assert model.decoder_attention_heads == said["attention_heads"]
            assert config.optimization.max_update == said["max_updates"]
            assert config.dataset.max_tokens == said["max_tokens_per_gpu"]
            assert config.optimizer.adam_betas == said["adam_betas"]
            if "T-Fixup" not in cell.row:
                assert config.optimization.lr == [said["learning_rate"]]
                assert config.lr_scheduler._name == said["scheduler"]
                assert config.lr_scheduler.warmup_updates == said["warmup_updates"]
            size = cell.row.partition("/")[0]
            assert effective_batch(config) == compute[f"{task}/{size}"] * said["max_tokens_per_gpu"]


def test_settings_of_dlcl() -> None:
    """Table 1 gives batch (x 4096, on 8 GPUs) and updates, Table 7 lr and warm-up too; rows give the depth."""
    for name in ("dlcl/table1", "dlcl/table7"):
        table = read_table(name)
        for cell in table.cells:
            config, said = read_job(cell.config).asked, table.published.rows[cell.row]
            if name == "dlcl/table7":
                batch, updates = said["batch"], said["updates"]
                assert config.optimization.lr == [said["lr"]]
                assert config.lr_scheduler.warmup_updates == said["warmup"]
            else:
                batch, updates = said["batch_x4096"] * 4096, said["updates_x100k"] * 100_000
            assert effective_batch(config) == 8 * batch, cell
            assert config.optimization.max_update == updates, cell


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith("dlcl")])
def test_wiring_and_depth_of_dlcl(name: str) -> None:
    for cell in read_table(name).cells:
        model, wirings = resolved(read_job(cell.config).asked)
        row = cell.row
        post = row.startswith("post")
        dlcl = "DLCL" in row
        variant = ("dlcl_post" if post else "dlcl_pre") if dlcl else ("post_ln" if post else "pre_ln")
        assert {wiring.name for wiring in wirings.values()} == {variant}, cell
        depth = re.search(r"(\d+)L|(\d+)-layer", row)
        deep = 16 if name == "dlcl/table2" else 6
        assert model.encoder_layers == (int(depth[1] or depth[2]) if depth else deep), cell
        decoder = re.search(r"dec(\d)", row)
        assert model.decoder_layers == (int(decoder[1]) if decoder else 6), cell
        assert model.decoder_embed_dim == (1024 if "Big" in row else 512), cell
        assert model.encoder_embed_dim == (1024 if "Big" in row or "big encoder" in row else 512), cell
        for key, value in (("fix 1)", "fixed_one"), ("fix 1/N)", "fixed_average")):
            assert (wirings["encoder"].value("weights") == value) == (key in row), cell
        assert (wirings["encoder"].value("norm") is False) == ("- layer norm" in row), cell


def test_settings_of_resi_dual_by_both_sources() -> None:
    """Tables 9 to 11 are the paper's settings; the repository's are the default, and differ where the recipes say."""
    said = published()["resi_dual/tables9-11"].rows
    chosen = {
        "IWSLT(t9)": ("resi_dual/table2/12l_resi_dual", "resi_dual/iwslt_source=paper"),
        "WMT(t10)": ("resi_dual/table3/18l_resi_dual", "resi_dual/wmt_source=paper"),
        "OPUS-100(t11)": ("resi_dual/table4/18l_resi_dual", "resi_dual/opus_source=paper"),
    }
    for column, (config, override) in chosen.items():
        settings = compose(CONFIGS, config, [override])
        model, _ = resolved(settings)
        found = {
            "dropout": model.dropout,
            "embed_dim": model.encoder_embed_dim,
            "ffn_dim": model.encoder_ffn_embed_dim,
            "heads": model.encoder_attention_heads,
            "lr": settings.optimization.lr[0],
            "scheduler": settings.lr_scheduler._name,
            "warmup": settings.lr_scheduler.warmup_updates,
            "label_smoothing": settings.criterion.label_smoothing,
            "weight_decay": settings.optimizer.weight_decay,
            "clip": settings.optimization.clip_norm,
            "max_update": settings.optimization.max_update,
        }
        assert found == {key: said[key][column] for key in found}
        assert str(model.encoder_layers) in str(said["enc_layers"][column]).split("/")
        assert settings.optimizer.adam_betas.strip("()").replace(" ", "") == said["adam_betas"][column]
    assert read_job(chosen["WMT(t10)"][0]).asked.optimization.max_update == 50_000
    opus = read_job(chosen["OPUS-100(t11)"][0]).asked
    assert (opus.optimization.lr[0], opus.lr_scheduler.warmup_updates, opus.optimization.clip_norm) == (0.004, 8000, 1)


def test_readme_recipe_of_b2t_differs_from_table_1s() -> None:
    """Section 0 of what is known: the README's later recipe is not the paper's."""
    paper, readme = (read_job(f"b2t/{name}/18l_b2t").asked for name in ("table1", "readme"))
    assert (paper.model.dropout, paper.optimization.clip_norm) == (0.3, 0.0)
    assert (readme.model.dropout, readme.optimization.clip_norm) == (0.5, 0.1)
    assert resolved(paper)[1]["encoder"].value("init_scale") == 1.0
    assert resolved(readme)[1]["encoder"].value("init_scale") == "depth"
    assert (readme.model.encoder_word_dropout, readme.model.decoder_word_dropout) == (0.1, 0.1)


def test_noam_schedule_of_the_lstm_peaks_where_vaswanis_does() -> None:
    for size, dim in (("base", 512), ("big", 1024)):
        config = read_job(f"depthwise_lstm/table1/{size}_lstm_en_de").asked
        assert config.optimization.lr[0] == pytest.approx((8000 * dim) ** -0.5, rel=1e-5)
        assert config.lr_scheduler.warmup_updates == 8000


def test_runs_of_one_recipe_have_one_name_and_other_recipes_another() -> None:
    """Whatever the machine; so a run is found again, and never taken for another."""
    job = read_job("b2t/table1/18l_b2t")
    many = job_of(job.name, gpus=8, max_tokens=1000)
    assert many.folder == job.folder
    assert many.config_hash == job.config_hash
    assert job_of(job.name, overrides=("model.dropout=0.1",)).folder != job.folder
    assert job_of(job.name, overrides=("recipe.variant=dlcl",)).folder != job.folder
    beam = job_of(job.name, overrides=("recipe.evaluate.flags.beam=1",))
    assert beam.folder == job.folder
    assert beam.config_hash != job.config_hash
