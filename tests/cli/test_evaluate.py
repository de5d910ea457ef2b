"""``toptheta evaluate`` as a user types it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from tests.cli.command import toptheta
from tests.cli.folders import save_model
from tests.models.wrapped_weights import OpaqueWeight, quantise
from tests.tiers import full, only
from toptheta_npu._warnings import SdcWithoutVmcWarning
from toptheta_npu.cli.evaluate import command as evaluate_command
from toptheta_npu.cli.evaluate import tasks as evaluate_tasks
from toptheta_npu.cli.evaluate.options import UNCALIBRATED
from toptheta_npu.evaluation.methods.kinds import parse_method
from toptheta_npu.evaluation.results import Results, read_results

BOOK = Path(unittest.__file__).parent / "case.py"
QUICK = ("--text", "book.txt", "--length", "128", "--windows", "2", "--positions", "24", "--k", "8")
METHODS = ("--method", "top-theta", "--method", "top-k", "--method", "last-k", "--method", "pages:page=8")

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with thresholds of both placements beside it."""
    model = save_model(tmp_path_factory.mktemp("models") / "tiny-random")
    for placement in ("pre", "post"):
        done = toptheta(
            "calibrate", str(model), "--text", str(BOOK), "--length", "128", "--sequences", "4", "--k", "8",
            "--k", "16", "--layer-k", "16,16,0", "--placement", f"{placement}_softmax",
            "-o", str(model.parent / f"{placement}.theta"),
        )  # fmt: skip
        assert done == 0
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(BOOK.read_text())
    return tmp_path


def main(model: Path, *arguments: str, tables: tuple[str, ...] = ("pre",)) -> int | str | None:
    files = [str(model.parent / f"{name}.theta") for name in tables]
    return toptheta("evaluate", str(model), *files, *arguments)


def results() -> Results:
    return read_results("evaluation.jsonl")


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_every_method_at_every_k_with_every_table(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model, *QUICK, "--k", "16", *METHODS, tables=("pre", "post")) == 0
    points = list(results().measurements)
    assert [(point.method, point.table, point.k) for point in points] == [
        ("dense", None, None),
        *(("top-theta", table, k) for k in (8, 16) for table in ("pre", "post")),
        *((method, None, k) for method in ("top-k", "last-k", "pages:page=8") for k in (8, 16)),
    ]
    found = {point.name: measurement for point, measurement in results().measurements.items()}
    dense = found["perplexity: dense"]
    assert len(dense.scores) == 2
    # 24 rows of each window, over 104 to 127 keys
    assert dense.reads.keys_mean == dense.reads.value_rows_mean == dense.reads.key_rows_mean == 115.5
    assert found["perplexity: top-k, k=8"].reads.kept_mean == 8
    last = found["perplexity: last-k, k=8"]
    assert last.reads.value_rows_mean == last.reads.key_rows_mean == 8
    said = words(capsys.readouterr().out)
    assert "tiny-random on cpu: 11 points, from 5 methods on perplexity. Methods: dense, top-theta, top-k, " in said
    assert ". For each point: 2 windows of book.txt, rows of up to 128 keys. For a shorter run: --windows," in said
    assert "perplexity: top-k, k=8: perplexity" in said
    verdict = " nothing can be told from 2 windows; take more"
    for name in ("Top-θ pre + SDC + VMC, k = 8, pre:", "Top-θ post + VMC, k = 16, post:", "last-k, k = 16:"):
        assert name + verdict in said
    assert said.count(verdict) == 10
    assert "evaluation.jsonl: 11 points. Next: toptheta plot evaluation.jsonl -o figures" in said


def test_a_model_without_a_table_is_judged_by_tau(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model, *QUICK[:-2], tables=()) == 0
    named = [(point.method, point.table, point.k) for point in results().measurements]
    assert named == [(parse_method(method).text, None, None) for method in UNCALIBRATED]
    dense, *others = (measurement.reads.value_rows_mean for measurement in results().measurements.values())
    assert others == sorted(others)
    assert others[-1] <= dense
    assert "4 points, from 4 methods on perplexity." in words(capsys.readouterr().out)
    assert main(model, *QUICK, "--method", "top-theta", tables=()) == 2
    assert "TABLE: expected thresholds for top-theta, got none" in words(capsys.readouterr().err)


def test_perplexity_is_that_of_the_plain_model(model: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from toptheta_npu.texts import Conventions, collect_windows, find_sources

    assert main(model, *QUICK, "--method", "dense") == 0
    (measurement,) = results().measurements.values()
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = collect_windows(find_sources([Path("book.txt")]).sources, Conventions.of(tokenizer), 128, 2)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        for window, nats in zip(found.tokens, measurement.scores, strict=True):
            logits = network(window[None]).logits[0, -25:-1]
            assert torch.nn.functional.cross_entropy(logits, window[-24:]).item() == pytest.approx(nats, abs=1e-5)


def test_the_results_say_what_they_depend_on_and_nothing_of_this_machine(model: Path, folder: Path) -> None:
    assert main(model, *QUICK, "--method", "top-theta") == 0
    header = results().header
    assert header.model == "tiny-random"
    settings = dict(header.settings["perplexity"])
    assert len(settings.pop("windows_sha256")) == 64
    assert settings == {"text": ["book.txt"], "length": 128, "windows": 2, "positions": 24}
    assert list(header.tables) == ["pre"]
    assert header.environment["dtype"] == "float32"
    assert str(folder) not in Path("evaluation.jsonl").read_text()


def test_into_a_file_it_says_a_line_for_every_window(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model, *QUICK, "--method", "top-k") == 0
    assert capsys.readouterr().err.splitlines() == [
        f"perplexity: {method}: {window} of 2 windows" for method in ("dense", "top-k, k=8") for window in (1, 2)
    ]


def test_more_methods_join_the_file_and_finished_points_are_not_measured_again(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model, *QUICK, "--method", "top-k") == 0
    first = results()
    capsys.readouterr()
    assert main(model, *QUICK, *METHODS) == 0
    assert "2 points are in evaluation.jsonl; 3 to go." in words(capsys.readouterr().out)
    joined = results()
    assert [point.method for point in joined.measurements] == ["dense", "top-theta", "top-k", "last-k", "pages:page=8"]
    for point, measurement in first.measurements.items():
        assert joined.measurements[point] == measurement
    content = Path("evaluation.jsonl").read_bytes()
    Path("evaluation.jsonl").unlink()
    assert main(model, *QUICK, *METHODS) == 0
    assert Path("evaluation.jsonl").read_bytes() == content


@full
@pytest.mark.parametrize("ending", only({signal.SIGKILL}, [signal.SIGKILL, signal.SIGINT]))
def test_an_ended_sweep_goes_on_and_gives_the_same_file(ending: signal.Signals, model: Path, folder: Path) -> None:
    arguments = [str(model), str(model.parent / "pre.theta"), *QUICK, "--k", "16", *METHODS, "--windows", "8"]
    assert toptheta("evaluate", *arguments, "-o", "whole.jsonl") == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "toptheta_npu", "evaluate", *arguments], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    file = folder / "evaluation.jsonl"
    while process.poll() is None and not (file.exists() and file.read_bytes().count(b"\n") > 2):
        time.sleep(0.002)
    process.send_signal(ending)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if ending is signal.SIGINT else -signal.SIGKILL)
    assert ("interrupted: the same command goes on from evaluation.jsonl." in out) == (ending is signal.SIGINT)
    assert 2 <= len(read_results(file).measurements) < 9
    assert toptheta("evaluate", *arguments) == 0
    assert file.read_bytes() == Path("whole.jsonl").read_bytes()


def test_other_settings_are_refused_and_restart_begins_anew(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model, *QUICK, "--method", "dense") == 0
    assert main(model, *QUICK, "--method", "dense", "--positions", "12") == 2
    said = words(capsys.readouterr().err)
    assert "--output: expected results with settings.perplexity.positions = 12, got evaluation.jsonl with 24" in said
    assert "or add --restart to begin anew" in said
    assert results().header.settings["perplexity"]["positions"] == 24
    assert main(model, *QUICK, "--method", "dense", "--positions", "12", "--restart") == 0
    assert results().header.settings["perplexity"]["positions"] == 12


def test_a_file_of_settings(model: Path, folder: Path) -> None:
    lines = ["text: book.txt", "length: 128", "windows: 2", "positions: 24", "k: [8]", "method: [top-k]"]
    Path("evaluation.yaml").write_text("\n".join(lines))
    assert main(model, "--config", "evaluation.yaml", "--windows", "3") == 0
    assert results().header.settings["perplexity"]["windows"] == 3
    assert [point.method for point in results().measurements] == ["dense", "top-k"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "arc_chalenge"), "--task: expected perplexity, key-value, needle, or a task of lm-eval, got "
         "'arc_chalenge'; did you mean arc_challenge"),
        (("--method", "top-theat"), "method: expected the name of a method, got 'top-theat'; did you mean top-theta?"),
        (("--k", "99"), "k: expected 8 to 16, the calibrated range, got 99, for top-theta with table pre; calibrate "
         "again with --k 99 as well"),
        (("--length", "200"), "TABLE: expected thresholds for rows of up to 200 keys, as perplexity has them, got pre, "
         "calibrated up to 128; calibrate on longer windows, evaluate shorter ones, or add --extrapolate"),
        (("--windows", "9999"), "--text: expected text for 9999 windows of 128 tokens, got"),
        (("--positions", "127"), "positions: expected 1 to 126, for windows of 128 tokens, got 127"),
        (("--limit", "3"), "--limit needs a task of lm-eval, and --task is perplexity; leave it out, or add"),
        (("--task", "needle", "--prompt-length", "255", "--extrapolate"),
         "--prompt-length: expected prompts and answers of at most 256 tokens, for which the model has positions, got"),
        (("--method", "top-theta:sdc=offline"), "discarded_mass"),
        (("--k", "-1"), "--k: expected an int of at least 1, got -1"),
        (("--task", "key-value", "--prompt-length", "0"), "--prompt-length: expected an int of at least 1, got 0"),
        (("--task", "key-value", "--prompt-length", "5"), "--prompt-length: expected room for a table of 8 pairs"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_a_sentence(
    arguments: tuple[str, ...], message: str, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if "--method" in arguments else (*METHODS, *arguments)
    assert main(model, *QUICK, *given) == 2
    said = words(capsys.readouterr().err)
    assert message in said
    assert said.count("error:") == 1
    assert not Path("evaluation.jsonl").exists()


def test_without_lm_eval_the_tasks_that_need_none_are_named(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate_tasks, "find_spec", lambda name: None)
    assert main(model, *QUICK, "--task", "foo") == 2
    assert (
        "error: --task: expected perplexity, key-value, needle, or a task of lm-eval, which is not installed, got "
        "'foo'; correct the name, or install the extra eval"
    ) in words(capsys.readouterr().err)


def test_text_that_thresholds_were_calibrated_on_is_told(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model, *QUICK, *METHODS[:2]) == 0
    assert "was calibrated on" not in capsys.readouterr().out
    shutil.copy("book.txt", BOOK.name)
    assert main(model, *QUICK, *METHODS[:2], "--text", BOOK.name, "--restart") == 0
    note = f"note: pre was calibrated on text named {BOOK.name}, as is scored here; name text that is new to it."
    assert note in words(capsys.readouterr().out)
    assert main(model, *QUICK, *METHODS[:2], "--restart") == 0
    assert "was calibrated on" not in capsys.readouterr().out


def test_files_that_are_no_text_are_told(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "texts").mkdir()
    Path("book.txt").rename("texts/book.txt")
    Path("texts/more.txt").write_text("text", encoding="utf-16")
    Path("texts/more.txt.gz").write_bytes(gzip.compress(b"text"))
    Path("texts/more.json").write_text("{}")
    left_out = (
        "1 .json file, such as texts/more.json (name it .jsonl if it has an object a line); "
        "1 UTF-16 file, such as texts/more.txt (convert it: iconv -f utf-16 -t utf-8); "
        "1 gzip file, such as texts/more.txt.gz (unpack it: gunzip -k)"
    )
    few = ("--text", "texts", *QUICK[2:], "--method", "dense")
    assert main(model, *few) == 0
    assert f"note: Left out: {left_out}." in words(capsys.readouterr().out)
    assert main(model, *few, "--windows", "9999") == 2
    assert re.search(rf"got \d+ windows \(left out: {re.escape(left_out)}\)", words(capsys.readouterr().err))


def test_thresholds_of_another_model_are_refused(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, different in (({"seed": 1}, "which differs in weights"), ({"layers": 4}, "got 3 x 4")):
        other = save_model(folder / f"other {len(options)}", **options)
        assert toptheta("evaluate", str(other), str(model.parent / "pre.theta"), *QUICK) == 2
        said = words(capsys.readouterr().err)
        assert f"{different}, in table pre; calibrate" in said
        assert "error:" in said
        assert not Path("evaluation.jsonl").exists()


@pytest.mark.parametrize("part", ["self_attn.v_proj", "mlp.up_proj"])
def test_results_of_other_weights_are_not_continued(
    part: str, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table fits both models, since it depends on queries and keys alone; their figures do not compare."""
    shutil.copytree(model, "tuned/tiny-random")
    assert toptheta("evaluate", "tuned/tiny-random", str(model.parent / "pre.theta"), *QUICK, *METHODS[:2]) == 0
    content = Path("evaluation.jsonl").read_bytes()
    file = Path("tuned/tiny-random/model.safetensors")
    tensors = load_file(file)
    tensors[f"model.layers.1.{part}.weight"][0, 0] += 1
    save_file(tensors, file, {"format": "pt"})
    again = ("evaluate", "tuned/tiny-random", str(model.parent / "pre.theta"), *QUICK, *METHODS)
    assert toptheta(*again) == 2
    said = words(capsys.readouterr().err)
    message = "--output: expected results of this model, got evaluation.jsonl, of another model (by its weights); take"
    assert message in said
    assert "name another file with -o, or add --restart to begin anew" in said
    assert Path("evaluation.jsonl").read_bytes() == content
    assert toptheta(*again, "-o", "other.jsonl") == 0


def test_results_of_another_tokenizer_are_not_continued(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that reads this text as before, and other text not."""
    shutil.copytree(model, "tiny-random")
    assert toptheta("evaluate", "tiny-random", *QUICK[:-2]) == 0
    tokenizer = AutoTokenizer.from_pretrained("tiny-random")
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    rules["model"]["merges"] = rules["model"]["merges"][:-1]
    Path("tiny-random/tokenizer.json").write_text(json.dumps(rules))
    found = toptheta("evaluate", "tiny-random", *QUICK[:-2])
    said = words(capsys.readouterr().err)
    assert found == 2
    assert "got evaluation.jsonl, of another model (by its tokenizer); take that model, name another file with" in said


def test_a_quantised_model_without_a_fingerprint_is_judged_by_tau(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = evaluate_command.load_weights
    monkeypatch.setattr(evaluate_command, "load_weights", lambda *given: quantise(load(*given), OpaqueWeight))
    assert main(model, *QUICK) == 2
    assert "use tau in place of thresholds: it needs no fingerprint" in words(capsys.readouterr().err)
    assert main(model, *QUICK[:-2], tables=()) == 0
    assert results().header.fingerprint == ""
    assert len(results().measurements) == 4


def test_a_model_without_a_layer_to_judge_is_refused_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow = save_model(folder / "shallow", layers=2)
    assert toptheta("evaluate", str(shallow), *QUICK[:-2]) == 2
    said = capsys.readouterr()
    assert (
        "error: model: expected more than 2 layers, got 2; reads are counted from the third layer on, since the first "
        "two keep more by every method: take a deeper model"
    ) in words(said.err)
    assert not said.out
    assert not Path("evaluation.jsonl").exists()


def test_tasks_with_prompts_of_their_own_need_no_text(model: Path, folder: Path) -> None:
    prompts = ("--task", "needle", "--prompts", "1", "--prompt-length", "96", "--k", "8")
    assert main(model, *prompts) == 0
    methods = [point.method for point in results().measurements]
    assert methods == ["dense", "top-theta", "top-k", "last-k"]


def test_another_model_needs_text(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(model) == 2
    assert "--text: expected files or folders with text to score, got none; such as: --text book.txt" in words(
        capsys.readouterr().err
    )


def test_rows_beyond_calibrated_ones_are_told(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(model, *QUICK, "--length", "160", "--method", "top-theta", "--extrapolate") == 0
    assert "note: rows of up to 159 keys used the thresholds of length 128" in words(capsys.readouterr().out)


def test_answers_that_the_context_has_no_room_for_are_told_before_the_weights_are_loaded(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval")
    (folder / "tasks").mkdir()
    (folder / "tasks" / "long.yaml").write_text(
        "task: long\ncustom_dataset: !function long.data\ntest_split: test\noutput_type: generate_until\n"
        "doc_to_text: text\ndoc_to_target: text\ngeneration_kwargs: {max_gen_toks: 32768, until: []}\n"
    )
    (folder / "tasks" / "long.py").write_text(
        "import datasets\ndef data(**_):\n    return {'test': datasets.Dataset.from_list([{'text': 'import os'}])}\n"
    )
    shutil.copytree(model, "no_weights")
    Path("no_weights/model.safetensors").write_bytes(b"")
    arguments = ("--task", "long", "--task-folder", "tasks", "--method", "dense", "--extrapolate")
    assert toptheta("evaluate", "no_weights", str(model.parent / "pre.theta"), *QUICK, *arguments) == 2
    said = words(capsys.readouterr().err)
    assert "task: expected answers of 1 to 255 tokens, which leave room for a prompt in the model's 256, got" in said
    assert said.count("error:") == 1


def test_a_tokenizer_with_more_tokens_than_the_model_embeds_is_refused(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(model, "grown")
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.add_tokens(["selfself"])
    tokenizer.save_pretrained("grown")
    Path("book.txt").write_text("selfself, " * 400)
    assert toptheta("evaluate", "grown", str(model.parent / "pre.theta"), *QUICK, "--method", "top-k") == 2
    said = words(capsys.readouterr().err)
    assert "tokenizer: expected tokens from 0 to" in said
    assert said.count("error:") == 1


def test_a_method_that_warns_does_so_once(model: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as beside:
        warnings.simplefilter("always")
        assert main(model, *QUICK, "--method", "top-theta:vmc=false", "--restart") == 0
    assert SdcWithoutVmcWarning not in {each.category for each in beside}
    said = capfd.readouterr()
    assert words(said.out + said.err).count("sdc='exact' without vmc shrinks the output") == 1


def test_a_full_disk_keeps_finished_points(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronise, calls = os.fsync, []

    def full(descriptor: int) -> None:
        # a kernel library may be built meanwhile: only what lies here counts
        calls.extend(name for name in [os.readlink(f"/proc/self/fd/{descriptor}")] if name.startswith(str(folder)))
        if len(calls) > 6:  # file and folder of the header and of two points
            raise OSError(28, "No space left on device")
        synchronise(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert main(model, *QUICK, *METHODS) == 2
    assert "No space left on device; free some space" in words(capsys.readouterr().err)
    assert len(results().measurements) == 2
    assert main(model, *QUICK, *METHODS) == 0
    assert len(results().measurements) == 5
