"""Help fits on a screen and shows examples, `egm list` says what everything is, and shells complete it."""

import os
import shutil
import subprocess
import sys

import pytest

import egm
from egm.cli import main
from egm.cli.completion import _commands, whole_parser
from egm.cli.main import COMMANDS
from egm.config.registry import TARGETS
from egm.methods.registry import METHODS

LINES, COLUMNS = 40, 100


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), ["train", "ising"], ["train", "gbrbm"]])
def test_help_fits_on_a_screen_and_shows_examples(monkeypatch, capsys, command):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert main([*command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: egm{''.join(f' {name}' for name in command[:1])}")
    assert len(lines) <= LINES
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert [line for line in lines if line.startswith(f"  egm{''.join(f' {name}' for name in command[:1])} ")] != []


def test_every_command_is_named_with_what_it_does(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for name, (_, about) in COMMANDS.items():
        assert f"  egm {name} " in said
        assert about in said


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["watch", "--help"], 0), (["wacth"], 2), ([], 2)])
def test_the_module_is_the_command(words, code, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    done = subprocess.run([sys.executable, "-m", "egm", *words], capture_output=True, text=True, check=False)
    assert (main(words), done.returncode) == (code, code)
    said = capsys.readouterr()
    assert (done.stdout, done.stderr) == (said.out, said.err)


def test_options_are_folded_and_unfolded(capsys):
    assert main(["train", "ising", "--help"]) == 0
    short = capsys.readouterr().out
    assert main(["train", "ising", "--help_all"]) == 0
    long = capsys.readouterr().out
    for option in ("--seed", "--tensorboard", "--target.beta"):
        assert option in short
        assert option in long
    for option in ("--batch_size", "--network", "--role", "--ess_target", "--warmup"):
        assert option not in short
        assert option in long
    assert "inverse temperature, at least 0 (required)" in short
    assert "seed of every random number (default: 0)" in short
    assert main(["train", "--help_all"]) == 0  # needs no target
    assert main(["sample", "--help_all"]) == 2  # nothing is folded there


def test_lists_say_what_everything_is(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()

    def described(name):
        (line,) = (line for line in lines if line.split()[:1] == [name])
        return max((part.strip() for part in line.strip().removeprefix(name).split("  ")), key=len)

    for name in (*map(str.lower, TARGETS), *METHODS, *egm.recipes.names()):
        assert len(described(name).split()) > 1, name
    assert any("The Ising model on a periodic square lattice" in line for line in lines)
    assert any("Fast settings for the paper's mixed table, GB-RBM" in line for line in lines)


def test_a_recipe_without_a_comment_has_no_description(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("target: Funnel(dim=2)\n", encoding="utf-8")
    assert egm.recipes.about(str(file)) == ""
    assert egm.recipes.about("fast/gmm40") == "Forty Gaussians in the plane; not one of the paper's targets."


# ---------------------------------------------------------------------- completion


def test_every_command_is_copied_with_its_options():
    """Needs no shtab; a command without a parser function fails here."""
    copies = _commands(whole_parser())
    assert list(copies) == list(COMMANDS)
    for name, option in (
        ("train", "--target"),
        ("train", "--target.beta"),
        ("sample", "--resample"),
        ("watch", "--once"),
    ):
        assert option in copies[name]._option_string_actions
    (method,) = (action for action in copies["train"]._actions if action.dest == "method")
    assert list(method.choices or ()) == list(METHODS)


def script(shell, capsys):
    pytest.importorskip("shtab", reason="needs egm[completion]")
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_and_names(tmp_path, capsys):
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    (tmp_path / "egm.bash").write_text(script("bash", capsys), encoding="utf-8")
    (tmp_path / "run-a").mkdir()
    (tmp_path / "run-b.txt").touch()
    ask = """
source ./egm.bash
[[ $(complete -p egm) == *_shtab_egm* ]] || exit 1
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_shtab_egm
printf '%s\\n' "${COMPREPLY[@]}"
"""

    def complete(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", ask, "bash", "egm", *words],
            capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        return [word.strip() for word in done.stdout.split("\n") if word.strip()]

    assert set(complete("")) >= set(COMMANDS)
    assert complete("tr") == ["train"]
    assert set(complete("train", "")) == {name.lower() for name in TARGETS}
    assert complete("train", "isi") == ["ising"]
    assert complete("train", "ising", "--target.be") == ["--target.beta"]
    assert complete("train", "ising", "--method", "swen") == ["swendsen-wang"]
    assert complete("train", "--recipe", "paper/gb") == ["paper/gbrbm"]
    assert complete("train", "ising", "--dtype", "") == ["float32", "float64"]
    assert complete("list", "tar") == ["targets"]
    assert complete("sample", "run") == ["run-a"]  # a folder, not the file
    assert complete("reproduce", "table") == ["table1", "table2"]
    assert complete("watch", "run-a", "--on") == ["--once"]


def test_zsh_understands_its_script(tmp_path, capsys):
    text = script("zsh", capsys)
    assert text.startswith("#compdef egm")
    for name in (*COMMANDS, "ising", "swendsen-wang", "paper/gbrbm", "--target.beta"):
        assert name in text
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh to read the script")
    (tmp_path / "_egm").write_text(text, encoding="utf-8")
    subprocess.run(["zsh", "-n", str(tmp_path / "_egm")], check=True, timeout=60)


def test_other_shells_are_refused(capsys):
    assert main(["completion", "fish"]) == 2
    assert "bash" in capsys.readouterr().err


def test_completion_names_the_extra_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "egm: egm completion needs shtab: pip install 'egm[completion]'\n"
