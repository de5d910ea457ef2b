"""``toptheta calibrate`` as a user types it."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.calibration.parts import seen_in
from tests.cli.command import toptheta
from tests.cli.folders import save_model
from tests.full_disk import full_disk
from tests.tiers import full
from toptheta_npu._files import held
from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama
from toptheta_npu.calibration import CalibrationSettings
from toptheta_npu.cli.calibrate import command
from toptheta_npu.cli.calibrate import report as calibration_report
from toptheta_npu.cli.calibrate.report import Kept
from toptheta_npu.models import calibrate_cache_scales, model_fingerprint
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.thresholds.summary import told_dense

#: Python sources with enough tokens for some windows.
BOOKS = Path(unittest.__file__).parent
OTHER_BOOKS = Path(email.__file__).parent
QUICK = ("--device", "cpu", "--length", "96", "--sequences", "4", "--row-fraction", "1", "--k", "8")
#: With so many windows the state is written once before the end.
LONG = (*QUICK, "--sequences", "20")

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-random")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text((BOOKS / "case.py").read_text())
    return tmp_path


def main(*arguments: str) -> int | str | None:
    return toptheta("calibrate", *arguments)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_model_folder_becomes_a_table(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = save_model(folder / f"tiny-{kind}", kind)
    assert main(str(where), "--text", "book.txt", *QUICK, "-o", "table.theta") == 0, capsys.readouterr().err
    network = transformers.AutoModelForCausalLM.from_pretrained(where)
    table = ThresholdTable.load("table.theta", fingerprint=model_fingerprint(network))
    assert (table.k.tolist(), table.estimator, table.placement) == ([8], "pooled", "post_softmax")
    assert table.layer_k == (24, 24, 0)
    assert int(table.lengths[-1]) == 96
    assert sorted(path.name for path in folder.iterdir()) == ["book.txt", "table.theta", f"tiny-{kind}"]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The command without arguments but for a size that suits a test, in a process of its own."""
    folder = tmp_path_factory.mktemp("embedded")
    arguments = ["--sequences", "3", "--length", "512", "--row-fraction", "0.5"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "toptheta_npu", "calibrate", *arguments], capture_output=True, text=True, cwd=folder,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0
    # in place of bars
    lines = [f"calibrating: {done} of 3 windows" for done in range(1, 4)]
    assert done.stderr.splitlines() == lines + [
        f"checking on held-out text: {done} of 8 windows" for done in range(1, 9)
    ]
    return folder, done.stdout


@full
def test_the_embedded_model_needs_no_arguments_and_keeps_about_k(embedded: tuple[Path, str]) -> None:
    folder, text = embedded
    table = ThresholdTable.load(folder / "thresholds.theta", fingerprint=model_fingerprint(load_tiny_llama()[0]))
    assert table.k.tolist() == [64, 128]
    assert table.layer_k == (128, 128, 0, 0, 0, 0)
    ratios = [float(ratio) for ratio in re.findall(r" (\d\.\d\d) ", text.split("V rows per row")[1].split(".theta")[0])]
    assert len(ratios) == 2 * 6
    assert all(0.6 < ratio < 1.6 for ratio in ratios)


def test_the_summary_says_what_was_made_and_what_comes_next(embedded: tuple[Path, str]) -> None:
    text = embedded[1]
    assert "\x1b" not in text
    assert "8 held out.\n" in text  # a program reads it: nothing is broken into lines
    for part in (
        r"^tiny_llama: 6 layers x 8 heads, on cpu\. pooled, post_softmax, k = 64, 128, on 3 windows of 512 tokens; 8",
        r"On 8 held-out windows, means over heads and rows; V rows per row and KV group layer k=64: k̃/k V rows",
        r"thresholds\.theta: 0\.\d\d MB, after \d+ s\.",
        r"Next: with toptheta_npu\.sparsify\(model, toptheta_npu\.ThresholdTable\.load\('thresholds\.theta'\), k=128\)",
        r"toptheta inspect thresholds\.theta",
    ):
        assert re.search(part, words(text)), (part, text)


def test_the_line_of_python_runs(embedded: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(embedded[0])
    (line,) = [line for line in embedded[1].splitlines() if line.startswith("Next: ")]
    network, tokenizer = load_tiny_llama()
    tokens = tokenizer("import os\n" * 60, return_tensors="pt")
    source = line.removeprefix("Next: ").replace("...", "**tokens, max_new_tokens=2, do_sample=False")
    exec(f"import toptheta_npu\n{source}", {"model": network, "tokens": tokens})


def test_the_same_command_gives_the_same_bytes_wherever_it_runs(model: Path, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy("book.txt", elsewhere)
    shutil.copytree(model, elsewhere / model.name)
    assert main(str(model), "--text", "book.txt", *QUICK) == 0
    assert main(str(elsewhere / model.name), "--text", str(elsewhere / "book.txt"), *QUICK, "-o", "again.theta") == 0
    assert Path("thresholds.theta").read_bytes() == Path("again.theta").read_bytes()
    provenance = ThresholdTable.load("again.theta").provenance
    assert not [value for value in provenance.values() if str(folder) in value or str(model.parent) in value]


def test_the_provenance_holds_the_settings_in_force_and_the_texts(model: Path, folder: Path) -> None:
    assert main(str(model), "--text", "book.txt", *QUICK, "--seed", "3") == 0
    provenance = ThresholdTable.load("thresholds.theta").provenance
    settings = yaml.safe_load(provenance["configuration"])
    assert settings["model"] == provenance["model"] == "tiny-random"
    assert (settings["text"], settings["k"], settings["layer_k"]) == (["book.txt"], [8], "24,24,0")
    assert (settings["seed"], settings["dtype"], settings["top_k_at_calibration"]) == (3, "auto", False)
    assert re.fullmatch(r"[0-9a-f]{64}", provenance["windows_sha256"])
    assert provenance["texts"] == "book.txt"
    assert provenance["windows"] == "<|endoftext|> after every document"
    assert provenance["sequences"] == "4"
    # and they are a file for --config
    Path("again.yaml").write_text(provenance["configuration"])
    shutil.copytree(model, folder / "tiny-random")
    assert main("--config", "again.yaml", "--device", "cpu", "-o", "again.theta") == 0
    assert Path("again.theta").read_bytes() == Path("thresholds.theta").read_bytes()


def test_one_number_is_the_least_k_of_all_layers(model: Path, folder: Path) -> None:
    assert main(str(model), "--text", "book.txt", *QUICK, "--layer-k", "0") == 0
    assert ThresholdTable.load("thresholds.theta").layer_k == (0, 0, 0)


def test_many_files_are_counted_in_the_provenance(model: Path, folder: Path) -> None:
    parts = Path("book.txt").read_text().split("\n    def ")[:60]
    (folder / "many").mkdir()
    for number, part in enumerate(parts):
        (folder / "many" / f"{number:02}.txt").write_text(part)
    assert main(str(model), "--text", "many", *QUICK, "--sequences", "0") == 0
    texts = ThresholdTable.load("thresholds.theta").provenance["texts"].split(", ")
    assert (len(texts), texts[0], texts[-1]) == (51, "many/00.txt", f"{len(parts) - 50} more")


def test_the_command_line_wins_over_the_file(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"model: {model}", "text: book.txt", "k: [4, 8]", "length: 64", "sequences: 3", "layer_k: '0:16'"]
    Path("settings.yaml").write_text("\n".join([*lines, "placement: post_softmax", "device: cpu"]))
    assert main("--config", "settings.yaml", "--length", "80", "--placement", "pre_softmax") == 0
    table = ThresholdTable.load("thresholds.theta")
    assert (table.k.tolist(), table.layer_k, table.placement) == ([4, 8], (16, 0, 0), "pre_softmax")
    assert int(table.lengths[-1]) == 80
    Path("settings.yaml").write_text("\n".join([*lines, "placment: post_softmax"]))
    assert main("--config", "settings.yaml") == 2
    assert "settings.yaml: placment: expected the name of a setting, got another; did you mean placement?" in words(
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "top_k"),
    [
        (["--estimator", "algorithm1"], "True"),
        (["--estimator", "algorithm1", "--k", "16"], "False"),
    ],
)
def test_top_k_at_calibration_is_that_of_the_paper_where_it_can_be(
    options: list[str], top_k: str, model: Path, folder: Path
) -> None:
    assert main(str(model), "--text", "book.txt", *QUICK, *options) == 0
    assert ThresholdTable.load("thresholds.theta").provenance["top_k_at_calibration"] == top_k


def test_texts_to_judge_by(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = partial(main, str(model), "--text", "book.txt", *QUICK, "--force", "--evaluation")
    assert arguments(str(OTHER_BOOKS / "message.py")) == 0
    assert "8 held out." in words(capsys.readouterr().out)
    Path("link.txt").symlink_to("book.txt")
    assert arguments("link.txt") == 2
    message = words(capsys.readouterr().err)
    assert re.search(r"--evaluation: expected texts that are not calibrated on, got \S+book\.txt; name other", message)


def test_less_text_than_asked_for_is_told(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("book.txt").write_text(Path("book.txt").read_text()[:3000])
    (folder / "texts").mkdir()
    shutil.move("book.txt", "texts")
    (folder / "texts" / "picture.png").write_bytes(b"\0")
    assert main(str(model), "--text", "texts", *QUICK, "--sequences", "500") == 0
    out = words(capsys.readouterr().out)
    assert re.search(r"note: The texts hold \d+ windows of 96 tokens to calibrate on, and not 500\.", out)
    assert "note: Left out: 1 binary file, such as texts/picture.png." in out


def broken_models(folder: Path, model: Path) -> None:
    """Copies of the model, each with one fault."""
    ignored = {
        "no-config": "config.json", "no-weights": "model.safetensors", "no-tokenizer": "tokenizer*",
        "damaged": "model.safetensors", "unknown": "config.json", "not-causal": "config.json",
        "own-code": "config.json", "sliding": "config.json",
    }  # fmt: skip
    for name, pattern in ignored.items():
        shutil.copytree(model, folder / name, ignore=shutil.ignore_patterns(pattern))
    (folder / "damaged" / "model.safetensors").write_bytes(b"abc")
    own = {"model_type": "foo", "auto_map": {"AutoConfig": "configuration_foo.Foo"}}
    window = {**json.loads((model / "config.json").read_text()), "model_type": "mistral", "sliding_window": 64}
    for name, content in {
        "unknown": '{"model_type": "foo"}', "not-causal": '{"model_type": "t5"}', "own-code": json.dumps(own),
        "sliding": json.dumps(window),
    }.items():  # fmt: skip
        (folder / name / "config.json").write_text(content)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "MODEL: expected the folder of a model, or its name on the Hub, got nowhere, which is not there"),
        (
            "no-config",
            "MODEL: expected a folder with config.json, got no-config without it; give the folder that save_",
        ),
        ("no-weights", "MODEL: expected weights that transformers can load, got no-weights ("),
        ("no-tokenizer", "MODEL: expected a tokenizer that transformers can load, got no-tokenizer ("),
        ("damaged", "MODEL: expected weights that transformers can load, got damaged ("),
        ("unknown", "MODEL: expected a configuration that transformers can load, got unknown (The checkpoint you are"),
        ("not-causal", "MODEL: expected a causal language model, got not-causal (model type t5); use a decoder-only"),
        ("own-code", "got own-code, which brings code of its own; add --trust-remote-code if you trust it"),
        ("sliding", "sliding_window: expected None, got 64"),
    ],
)
def test_models_that_cannot_be_calibrated(
    name: str, message: str, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_models(folder, model)
    assert main(name, "--text", "book.txt", *QUICK) == 2
    said = words(capsys.readouterr().err)
    assert message in said
    assert said.count("error:") == 1
    assert not Path("thresholds.theta").exists()


@full
def test_a_name_that_is_not_on_this_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a network, as tests are: set before transformers is imported, so in a process of its own."""
    arguments = [sys.executable, "-m", "toptheta_npu", "calibrate", "nobody/nothing", "--text", "book.txt", *QUICK]
    done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2
    said = words(done.stderr)
    assert said.startswith("error: MODEL: expected a configuration here or on the Hub, got nobody/nothing (")
    assert said.endswith("give a folder, or download the model first: hf download NAME ")


def no_weights(*_: object) -> None:
    raise AssertionError("the weights were loaded before the options were looked at")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "0"], "--k: expected an int from 1"),
        (["--k", "96"], "--k: expected less than 96, the keys of the longest row, got 96; lower it, or raise --length"),
        (["--length", "1"], "--length: expected an int of at least 2, got 1"),
        (["--length", "300"], "--length: expected at most 256 tokens, for which the model has positions, got 300; use"),
        (["--sequences", "-1"], "--sequences: expected an int of at least 0, got -1"),
        (["--layer-k", "1,2"], "--layer-k: expected 3 numbers, one per layer, got 2; such as 0 for all layers"),
        (["--layer-k", "0:1,9:1"], "--layer-k: expected layers 0 to 2, got layer 9; name layers that the model has"),
        (["--layer-k", "99,99,99"], "in some layer, got at least 99 in every layer; lower it in a layer, or raise"),
        (["--layer-k", "0:1,0:2"], "--layer-k: expected each layer at most once, got layer 0 twice; leave"),
        (["--placement", "middle"], "--placement: expected one of pre_softmax, post_softmax, got 'middle'"),
        (["--k", "4", "--top-k-at-calibration"], "--top-k-at-calibration needs one --k, which decides what"),
        (["--row-fraction", "1e-6"], "--row-fraction: expected a share that picks some row of more than 8 keys, got "
         "1e-06, with which there is none; raise it, or feed more sequences"),
        (["--device", "tpu"], "--device: expected one of cpu, cuda, npu, auto, got 'tpu'"),
        (["--evaluation", "short.txt"], "--evaluation: expected at least 96 tokens for 1 window of 96, got 7; name"),
        (["-o", "there.theta"], "--output: expected a new file, got there.theta, which is there already; add --force"),
        (["-o", "copy/t.safetensors"], "--output: expected a name that does not end in .safetensors in the folder of a "
         "model, got copy/t.safetensors, which engines such as vLLM would load as weights; use t.theta"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_before_any_work(
    options: list[str], message: str, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "load_weights", no_weights)
    (folder / "short.txt").write_text("too short a text")
    (folder / "there.theta").write_text("there")
    (folder / "copy").mkdir()
    (folder / "copy" / "config.json").write_text("{}")
    assert main(str(model), "--text", "book.txt", *QUICK, *options) == 2
    said = words(capsys.readouterr().err)
    assert message in said
    assert (folder / "there.theta").read_text() == "there"
    assert not list(folder.glob("thresholds.theta*"))


@pytest.mark.parametrize(
    ("text", "length", "message"),
    [
        ("too short a text", "96", "--text: expected at least 192 tokens for 2 windows of 96, of which one is kept "
         "back to judge by, got 7; name more text "),
        ("all = len(range(9))\n" * 30, "250", r"got (\d+); name more text, or use --length \d+ "),
    ],
)  # fmt: skip
def test_too_little_text(
    text: str, length: str, message: str, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("book.txt").write_text(text)
    assert main(str(model), "--text", "book.txt", *QUICK, "--length", length) == 2
    said = words(capsys.readouterr().err)
    assert re.search(message, said)
    if shorter := re.search(r"use --length (\d+)", said):
        assert main(str(model), "--text", "book.txt", *QUICK, "--length", shorter[1]) == 0


def test_another_model_needs_text(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(str(model), *QUICK) == 2
    assert "--text: expected files or folders with text to calibrate on, got none; such as: --text book.txt" in words(
        capsys.readouterr().err
    )


@full
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_command_goes_on_where_it_was(ending: signal.Signals, model: Path, folder: Path) -> None:
    """Ended when the state has been written once: no table is there, and the second run makes that of a single one."""
    arguments = [str(model), "--text", "book.txt", *LONG]
    assert main(*arguments, "-o", "whole.theta") == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "toptheta_npu", "calibrate", *arguments], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    state = folder / "thresholds.theta.partial"
    while process.poll() is None and not state.exists():
        time.sleep(0.002)
    process.send_signal(ending)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if ending is signal.SIGINT else -signal.SIGKILL)
    assert ("interrupted: the same command goes on from thresholds.theta.partial." in out) == (ending is signal.SIGINT)
    assert not Path("thresholds.theta").exists()
    assert seen_in(state).sequences == 16
    assert main(*arguments) == 0
    assert Path("thresholds.theta").read_bytes() == Path("whole.theta").read_bytes()
    assert not state.exists()


def interrupted(model: Path, *options: str) -> None:
    """A run that fails after its 16th window, whose state is kept."""
    rows = CalibrationSettings.rows

    def interrupt_the_last(self: CalibrationSettings, count: int, index: int) -> torch.Tensor:
        if index == 16:
            raise KeyboardInterrupt
        return rows(self, count, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CalibrationSettings, "rows", interrupt_the_last)
        assert main(str(model), "--text", "book.txt", *LONG, *options) == 130


def test_a_run_goes_on_or_begins_anew(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(model)
    assert "interrupted: the same command goes on from thresholds.theta.partial." in words(capsys.readouterr().out)
    state = folder / "thresholds.theta.partial"
    kept = state.read_bytes()
    # other settings do not go on from it, and leave it alone
    assert main(str(model), "--text", "book.txt", *LONG, "--seed", "1") == 2
    said = words(capsys.readouterr().err)
    assert (
        "thresholds.theta.partial: expected the state of this calibration, got one with seed=0 (here 1); give the "
        "model, options and texts that it was made with, add --restart to replace it and begin anew, or name another"
        in said
    )
    assert state.read_bytes() == kept
    # nor do other texts
    Path("other.txt").write_text((OTHER_BOOKS / "header.py").read_text())
    capsys.readouterr()
    assert main(str(model), "--text", "other.txt", *LONG) == 2
    assert "got one with other texts, of 16 sequences and" in words(capsys.readouterr().err)
    assert state.read_bytes() == kept
    assert main(str(model), "--text", "book.txt", *LONG, "--seed", "1", "--restart") == 0
    assert "going on" not in capsys.readouterr().out
    assert not state.exists()
    interrupted(model, "--force")
    capsys.readouterr()
    assert main(str(model), "--text", "book.txt", *LONG, "--force") == 0
    assert "note: going on from thresholds.theta.partial; --restart begins anew." in words(capsys.readouterr().out)


def test_a_foreign_file_in_the_place_of_the_state_is_left_alone(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = folder / "thresholds.theta.partial"
    state.write_bytes(b"of somebody else")
    assert main(str(model), "--text", "book.txt", *QUICK) == 2
    said = words(capsys.readouterr().err)
    assert "thresholds.theta.partial: expected a safetensors file, got something else or a damaged file" in said
    assert "; add --restart to replace it and begin anew, or name another output with -o" in said
    assert state.read_bytes() == b"of somebody else"
    assert main(str(model), "--text", "book.txt", *QUICK, "--restart") == 0
    assert not state.exists()


def test_of_two_commands_for_one_output_the_second_waits_for_nothing(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with held(folder / "thresholds.theta.partial"):
        assert main(str(model), "--text", "book.txt", *QUICK, "--restart", "--force") == 2
    said = words(capsys.readouterr().err)
    assert "thresholds.theta.partial: expected a file that no other process works on, got one that another" in said
    assert sorted(path.name for path in folder.iterdir()) == ["book.txt"]


def test_a_table_that_another_command_wrote_meanwhile_is_not_replaced(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments_of = command._arguments

    def late(*given: object) -> object:
        Path("thresholds.theta").write_text("of another")
        return arguments_of(*given)

    monkeypatch.setattr(command, "_arguments", late)
    assert main(str(model), "--text", "book.txt", *QUICK) == 2
    assert "--output: expected a new file, got thresholds.theta, which is there already" in capsys.readouterr().err
    assert Path("thresholds.theta").read_text() == "of another"


def test_weights_that_are_no_numbers_are_named_by_their_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = transformers.AutoModelForCausalLM.from_pretrained(save_model(folder / "broken"))
    network.model.layers[1].self_attn.q_proj.weight.data[0, 0] = torch.nan
    network.save_pretrained(folder / "broken")
    assert main("broken", "--text", "book.txt", *QUICK) == 2
    said = words(capsys.readouterr().err)
    assert "error: scores of layer 1: expected finite elements or -inf, got NaN" in said
    assert sorted(path.name for path in folder.iterdir()) == ["book.txt", "broken"]


def test_the_state_outlives_a_table_that_cannot_be_saved(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = ThresholdTable.save

    def fail(table: ThresholdTable, path: Path) -> None:
        with full_disk():
            save(table, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThresholdTable, "save", fail)
        assert main(str(model), "--text", "book.txt", *QUICK) == 2
    assert "thresholds.theta: expected a place where a file can be written, got File too large" in words(
        capsys.readouterr().err
    )
    assert sorted(path.name for path in folder.glob("thresholds*")) == ["thresholds.theta.partial"]
    assert main(str(model), "--text", "book.txt", *QUICK) == 0
    assert not Path("thresholds.theta.partial").exists()


def test_scales_of_an_int8_cache_are_those_of_the_windows_calibrated_on(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(model), "--text", "book.txt", *QUICK]
    assert main(*arguments, "-o", "plain.theta") == 0
    assert main(*arguments, "-o", "int8.theta", "--kv-cache", "int8") == 0
    plain, scaled = (ThresholdTable.load(f"{name}.theta") for name in ("plain", "int8"))
    assert plain.key_cache_scale is None
    assert torch.equal(scaled.theta, plain.theta)
    network = AutoModelForCausalLM.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = tokenizer(Path("book.txt").read_text(), add_special_tokens=False, return_tensors="pt").input_ids
    of_all_text = calibrate_cache_scales(network, plain, [text[:, at : at + 96] for at in range(0, text.shape[1], 96)])
    for name in ("key_cache_scale", "value_cache_scale"):
        share = getattr(scaled, name) / getattr(of_all_text, name)
        assert 0.3 < share.min() <= share.max() <= 1.01  # a few windows have smaller peaks than all of the text


def entry(layer: int, k: int, ratio: float, rows: int = 10) -> Kept:
    return Kept(layer, k, ratio, k, rows)


def test_a_layer_far_from_k_is_warned_of() -> None:
    kept = [entry(0, 8, 1.0), entry(1, 8, 1.26), entry(2, 8, 1.5), entry(3, 8, 0.4), entry(0, 16, 1.25)]
    (warning,) = calibration_report.warnings_of([*kept, entry(1, 16, float("nan"), rows=0)], "pooled")
    assert warning == (
        "k̃/k at k=8 is off by more than 25 % in layers 1 to 3, most in layer 3 (0.40): calibrate on more windows "
        "(--sequences), and on text like that of your prompts."
    )
    (warning,) = calibration_report.warnings_of(kept, "algorithm1")
    assert "use --estimator pooled, which keeps k on average, or calibrate on more" in warning


def test_the_warning_is_printed(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration_report, "MAX_OFF", 0.0)
    assert main(str(model), "--text", "book.txt", *QUICK) == 0
    assert "warning: k̃/k at k=8 is off by more than 0 % in layer" in words(capsys.readouterr().out)


def test_a_layer_without_a_sparse_row_is_dense() -> None:
    shape = (1, 3, 1, 1)
    theta = torch.ones(shape)
    theta[0, 0] = theta[0, 2] = -torch.inf
    table = ThresholdTable(
        theta=theta, k=torch.tensor([4]), lengths=torch.tensor([8]), counts=torch.ones(3, 1, 1, dtype=torch.int64),
        std=torch.zeros(shape), placement="pre_softmax", estimator="pooled", alpha=0.0, layer_k=[9, 0, 0],
        fingerprint="demo", provenance=told_dense([2], "a sliding window"),
    )  # fmt: skip
    output = StringIO()
    kept = [entry(0, 4, float("nan"), rows=0), entry(1, 4, 1.02)]
    calibration_report.show(Console(file=output, width=120), table, kept, 1)
    text = output.getvalue()
    assert [line.split() for line in text.splitlines() if " 1.02 " in line] == [["1", "1.02", "4"]]
    assert "Dense: layer 0 (keeps at least 9, and no calibrated row is longer)." in text
    assert "Dense: layer 2 (a sliding window)." in text


def test_a_k_that_layer_k_replaces_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shallow = str(save_model(folder / "shallow", layers=2))
    assert main(shallow, "--text", "book.txt", *QUICK, "--k", "20", "--layer-k", "16,32") == 0
    said = words(capsys.readouterr().out)
    assert "warning: no layer keeps k = 8: each keeps at least 16, its layer_k; lower that, too" in said
    assert "Kept in layer 0: about 16, the layer_k, in place of k = 8." in said
    assert "Kept in layer 1: about 32, the layer_k, in place of k = 8, 20." in said
    assert (
        "warning: toptheta evaluate cannot judge thresholds of this model: it takes models of more than 2 layers"
        in said
    )
    assert said.index("warning:") < said.index("held-out window")
    assert main(shallow, "--text", "book.txt", *QUICK, "--layer-k", "0", "--force") == 0
    said = words(capsys.readouterr().out)
    assert "no layer keeps" not in said
    assert "Kept in" not in said


def test_a_hybrid_model_keeps_its_sliding_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=256, sliding_window=32,
        layer_types=["sliding_attention", "full_attention"] * 2, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.Gemma3ForCausalLM(config).save_pretrained(folder / "hybrid")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY_LLAMA / name, folder / "hybrid")
    assert main("hybrid", "--text", "book.txt", *QUICK) == 0
    said = words(capsys.readouterr().out)
    assert "Dense: layers 0, 2 (a sliding window of 32 tokens)." in said
    assert re.findall(r" (\d) \d\.\d\d \d", said) == ["1", "3"]
    assert toptheta("inspect", "thresholds.theta") == 0
    assert "dense layers 0, 2: a sliding window of 32 tokens" in words(capsys.readouterr().out)


def test_texts_from_json_lines(model: Path, folder: Path) -> None:
    parts = Path("book.txt").read_text().split("\n    def ")
    for name, field in (("book", "text"), ("other", "body")):
        Path(f"{name}.jsonl").write_text("\n".join(json.dumps({field: part}) for part in parts))
        assert main(str(model), "--text", f"{name}.jsonl", "--field", field, *QUICK, "-o", f"{name}.theta") == 0
    default, named = (ThresholdTable.load(f"{name}.theta").provenance for name in ("book", "other"))
    assert default["windows_sha256"] == named["windows_sha256"]


@full
def test_a_terminal_sees_progress_that_goes_away(model: Path, folder: Path) -> None:
    """What a terminal shows in the end, line by line, has no bar in it."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "toptheta_npu", "calibrate", str(model), "--text", "book.txt", *QUICK],
        stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 2**16):
            seen += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    text = seen.decode()
    assert "calibrating" in text
    counts = re.findall(r"(\d+)/(\d+|\?)", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))
    assert ("5", "5") in counts  # four windows to calibrate on, one to judge by
    assert all(of != "?" and int(done) <= int(of) for done, of in counts)
    # rich clears each line before it writes it anew, and the line of the bar itself in the end
    (first,) = [line for line in text.split("\n") if "tiny-random: 3 layers" in line]
    assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", first.split("\x1b[2K")[-1]).startswith("tiny-random: 3 layers")
