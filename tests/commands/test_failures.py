"""Every failure is one line with an exit code."""

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_origin, get_type_hints
from unittest import mock

import pytest
from commands import one_line, setting_names, stage

from lambert.commands import parse
from lambert.core import errors
from lambert.core.settings import divide_lists, kinds_of, list_dotted_names
from lambert.verb import all_verbs
from lambert.verbs.settings.finetune import FinetuneConfig

Lambert = Callable[..., Any]


def test_what_is_misspelt_is_answered_with_the_nearest(recipe: Path, lambert: Lambert) -> None:
    one_line(lambert("pretrian", recipe), 2, "pretrain")
    one_line(lambert("pretrain", recipe, "--train.bach-size=4"), 2, "--train.bach-size", "--train.batch-size")
    one_line(lambert("pretrain", recipe, "--optim.nmae=lamb"), 2, "--optim.name")
    recipe.write_text(recipe.read_text().replace("betas", "beta"))
    one_line(lambert("pretrain", recipe), 2, "beta", "run.toml", "Did you mean optim.betas?")
    recipe.write_text(recipe.read_text().replace("[optim]", "[optimiser]"))
    one_line(lambert("pretrain", recipe), 2, "optimiser", "run.toml")


@pytest.mark.parametrize("verb", [["predict", "--model=m"], ["prepare", "--out=o"]])
def test_a_dash_in_place_of_a_file_is_answered_with_standard_input(verb: list[str], lambert: Lambert) -> None:
    one_line(lambert(*verb, "--input", "-"), 2, "lambert: - is no file.", "reads standard input, without --input.")


@pytest.mark.parametrize("flag", ["--verify", "--peek=3", "--fetch"])
def test_a_flag_that_is_the_second_word_of_a_verb(flag: str, lambert: Lambert) -> None:
    verb = flag[2:].partition("=")[0]
    one_line(lambert("prepare", flag), 2, flag, f"lambert corpus {verb}")


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["--train.steps=many"], ['lambert: --train.steps must be a whole number, not "many".']),
        (["--train.steps=2.5"], ["lambert: --train.steps must be a whole number, not 2.5."]),
        (["--train.evaluate-every", "0.5"], ["lambert: --train.evaluate-every must be a whole number, not 0.5."]),
        (["--optim.lr", "x"], ['lambert: --optim.lr must be a number, not "x".']),
        (["--optim.betas", "0.9", "x"], ['lambert: --optim.betas must be a number, not "x".']),
        (["--train.precision=half"], ["--train.precision must be one of auto, float32, bfloat16", 'not "half".']),
        (["--keep-moments=perhaps"], ['lambert: --keep-moments must be true or false, not "perhaps".']),
        (["--optim.name=lam"], ["optim.name", "lamb"]),
        (["--train.steps=0"], ["train.steps = 0"]),
        (["--packing.sequence-length=4"], ["packing.sequence_length = 4"]),
        (["--guard.action=roll back"], ["train.save_every"]),
    ],
)
def test_settings_that_cannot_be(
    settings: list[str], parts: list[str], recipe: Path, corpus: Path, tmp_path: Path, lambert: Lambert
) -> None:
    flags = [f"--corpus={corpus}", f"--out={tmp_path / 'run'}", "--model.layers=1", *settings]
    one_line(lambert("pretrain", recipe, *flags), 2, *parts)


def test_what_is_required_is_named(lambert: Lambert) -> None:
    one_line(lambert("pretrain", "--corpus=c"), 2, "--out", "requires")
    one_line(lambert("finetune", "--data=d", "--out=o"), 2, "--init")
    all_of_them = "requires --corpus, --out, (--init or --model.*) and (--train.steps or --train.epochs)."
    one_line(lambert("pretrain"), 2, all_of_them, "lambert pretrain --help")
    one_line(lambert("pretrain", "--train.epochs=1", "--model.hidden=32"), 2, "requires --corpus and --out.")
    one_line(lambert("finetune", "--out"), 2, "--out requires a value")
    one_line(lambert("import", "--out=o"), 2, "requires --from.")
    one_line(lambert("report"), 2, "requires a RUN folder: lambert report runs/NAME")
    one_line(lambert("launch"), 2, "requires a VERB: lambert launch")


def test_what_a_recipe_gives_is_not_missing(recipe: Path, lambert: Lambert) -> None:
    recipe.write_text("[train]\nsteps = 7\n[model]\nlayers = 1\n")
    one_line(lambert("pretrain", recipe, "--corpus=c"), 2, "pretrain requires --out.")


def test_all_that_is_open_is_asked_at_once(corpus: Path, tmp_path: Path, lambert: Lambert) -> None:
    called = lambert("pretrain", corpus=corpus, out=tmp_path / "run")
    one_line(called, 2, "No model: give its shape", "How long to train? Set train.steps or train.epochs.")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--seed", "1", "2", "3"], "--seed takes one value, not 3 (1 2 3). For several seeds, give the command once"),
        (["--seed=1", "2"], "--seed takes one value, not 2 (1 2)."),
        (["--optim.lr", "1e-3", "1e-4", "--seed=1"], "--optim.lr takes one value, not 2 (1e-3 1e-4)."),
        (["--log.console", "false"], "--log.console takes no value, and false follows it. Its opposite is "
         "--log.no-console."),
        (["--verify", "yes"], "Its opposite is --no-verify."),
    ],
)  # fmt: skip
def test_a_word_too_many_is_answered_with_its_flag(flags: list[str], part: str, lambert: Lambert) -> None:
    one_line(lambert("pretrain", "--corpus=c", "--out=r", *flags), 2, part)


def test_a_word_after_the_recipe_is_named(recipe: Path, lambert: Lambert) -> None:
    one_line(lambert("plan", recipe, "more"), 2, "lambert: plan takes one recipe, and more follows it.")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('optim.lr = "2e-3"', 'optim.lr must be a number, not "2e-3".'),
        ('optim.betas = [0.9, "0.99"]', 'optim.betas must be a number, not "0.99".'),
        ('train.steps = "many"', 'train.steps must be a whole number, not "many".'),
        ("train.steps = 2.5", "train.steps must be a whole number, not 2.5."),
        ('train.precision = "half"', "run.toml: train.precision must be one of auto, float32, bfloat16"),
        ('keep_moments = "perhaps"', 'run.toml: keep_moments must be true or false, not "perhaps".'),
        ("train.stepz = 2", "run.toml: unknown setting train.stepz. Did you mean train.steps?"),
        ('[train]\n"" = 2', 'run.toml: unknown setting train."".'),
        ("trian.steps = 2", "run.toml: unknown table [trian]. Did you mean [train]?"),
    ],
)
def test_a_line_of_a_recipe_that_is_wrong(line: str, message: str, recipe: Path, lambert: Lambert) -> None:
    recipe.write_text(f'corpus = "c"\nout = "r"\n{line}\n')
    one_line(lambert("pretrain", recipe), 2, message)


@pytest.mark.parametrize("verb", ["serve", "embed", "train"])
def test_a_verb_that_does_not_exist_yet_has_a_way_out(verb: str, lambert: Lambert) -> None:
    if verb not in all_verbs():
        one_line(lambert(verb, "--model=m"), 2, f"There is no verb {verb}.", parse.NOT_YET[verb])


def test_a_file_in_the_place_of_a_recipe(tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "stories.txt"
    path.touch()
    one_line(lambert("prepare", path, "--out=o"), 2, f"not a recipe (a TOML file). Settings are flags: "
             f"--input {path}.")  # fmt: skip


def test_recipes_that_cannot_be_read(recipe: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    one_line(lambert("pretrain", "rum.toml"), 2, "rum.toml", "Did you mean run.toml?")
    one_line(lambert("pretrain", "nothing-like-it"), 2, "nothing-like-it", "TOML")
    recipe.write_text('corpus = "c\nout = "r"\n')
    one_line(lambert("pretrain", "run.toml"), 2, "run.toml", "line 1")
    recipe.write_bytes(b'corpus = "\xff"\n')
    one_line(lambert("pretrain", "run.toml"), 2, "run.toml")


def test_a_recipe_behind_the_flags_is_not_passed_over(recipe: Path, lambert: Lambert) -> None:
    one_line(lambert("bench", "--rounds", 1, recipe), 2, "directly after the verb")
    one_line(lambert("pretrain", "--corpus=c", "--out=r", recipe), 2, "directly after the verb")


def failing(error: BaseException) -> Any:
    return mock.patch.object(stage("doctor")[0], "run", side_effect=error)


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (errors.UsageError("Wrong setting."), 2, "Wrong setting."),
        (errors.DataError("Bad file."), 3, "Bad file."),
        (errors.MachineError("No disk."), 4, "No disk."),
        (errors.DivergedError("Nan."), 5, "Nan."),
        (errors.SavedAndStopped("Saved.", 75), 75, "Saved."),
        (errors.SavedAndStopped("Saved.", 130), 130, "Saved."),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (MemoryError(), 4, "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), 4, "memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 4, "No space left on device: /x"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            4,
            "the output folder. Free space, or choose another folder",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/x"), 4, "/x. Free space of the quota"),
        (OSError(errno.EFBIG, "File too large"), 4, "Raise the limit of the size of files (ulimit -f)"),
        (OSError(errno.EIO, "Input/output error", "/x"), 4, "/x. Check the disk"),
        (OSError(errno.EMFILE, "Too many open files", "/x"), 4, "/x. Raise the limit of open files (ulimit -n)"),
        (OSError(errno.EMFILE, "Too many open files"), 4, "Too many open files. Raise the limit"),
        (OSError(errno.ENFILE, "Too many open files in system"), 4, "in system. End other programs, or raise"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 4, "Out of memory."),
        (PermissionError(errno.EACCES, "Permission denied", "/y"), 2, "Permission denied: /y. Choose another path"),
        (OSError(errno.EROFS, "Read-only file system", "/y"), 2, "/y"),
        (OSError(errno.EROFS, "Read-only file system", "/y/.tmp-new-7@host@out"), 2, ": /y/out. Choose another path"),
        (OSError(errno.ENOSPC, "No space left on device", 3), 4, ": standard output or the output folder. Free space"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/z/a"), 2, "/z/a"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, part: str, lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with failing(error):
        one_line(lambert("doctor"), code, part)
        assert "Traceback" in lambert("doctor", "--debug").err
    assert not Path("crash.txt").exists()


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("of ours"), OSError(errno.EBADF, "of ours"), ValueError("of ours")]
)
def test_a_bug_leaves_its_traceback_in_a_file(
    error: Exception, lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with failing(error):
        one_line(lambert("doctor", "--json"), 1, "of ours", "crash.txt")
    kept = Path("crash.txt").read_text()
    assert "Traceback" in kept
    assert "doctor --json" in kept
    assert type(error).__name__ in kept


def test_a_bug_whose_text_ends_with_blank_lines_is_named(
    lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with failing(ValueError("of ours\n\n")):
        one_line(lambert("doctor"), 1, "lambert: bug: ValueError: of ours. ")


@pytest.mark.parametrize("verb", [name for name, verb in all_verbs().items() if verb.computes])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_out_of_memory_is_answered_for_the_verb(
    verb: str, error: Exception, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(tokens: list[str]) -> None:
        raise error

    monkeypatch.setattr(parse, "call", call)
    done = lambert(verb)
    assert (done.code, done.err) == (4, f"lambert: Out of memory. {all_verbs()[verb].less_memory}\n")
    names = [name for name in re.findall(r"[a-z_.]*[a-z]", all_verbs()[verb].less_memory) if "_" in name or "." in name]
    _, kind = stage(verb)
    for name in names:
        assert _has(kind, name), f"{verb} has no setting {name}"


def _has(kind: type, name: str) -> bool:
    for part in name.split("."):
        hints = get_type_hints(kind)
        if part not in hints:
            return False
        kind = hints[part]
    return True


def test_a_recipe_of_another_verb_is_named(recipe: Path, lambert: Lambert) -> None:
    one_line(lambert("finetune", recipe), 2, f"{recipe} is a recipe of pretrain: lambert pretrain {recipe}")
    recipe.write_text('input = ["text.txt"]\nout = "corpus"\n')
    one_line(lambert("finetune", recipe), 2, f"{recipe} is a recipe of prepare: lambert prepare {recipe}")
    recipe.write_text('data = "train.tsv"\n[sweep]\ntrials = 3\n')
    one_line(lambert("finetune", recipe), 2, f"{recipe} is a recipe of sweep: lambert sweep {recipe}")
    recipe.write_text('input = ["text.txt"]\nout = "corpus"\ntrian.steps = 3\n')
    one_line(lambert("finetune", recipe), 2, "unknown setting input")


@pytest.mark.parametrize("flags", [["--seeds"], ["--seeds", "--seed", "3"], ["--task.labels", "--out", "r"]])
def test_a_list_without_a_value_is_refused(flags: list[str], lambert: Lambert) -> None:
    one_line(lambert("finetune", *flags), 2, f"{flags[0]} requires one value or more, and none follows it.")


def test_a_list_or_a_word_takes_several_values_in_any_place() -> None:
    weights = ["--task.class-weights", "1", "2.5", "-1"]
    tokens = [*weights, "--out", "o", "--task.label-thresholds=best", "--seeds", "1", "2"]
    divided = [f"{weights[0]}={value}" for value in weights[1:]]
    assert divide_lists(FinetuneConfig, tokens) == [*divided, *tokens[4:]]


@pytest.mark.parametrize("flags", [["--dev", ""], ["--dev="], ["--init="], ["--data", ""]])
def test_an_empty_path_is_refused(flags: list[str], lambert: Lambert) -> None:
    one_line(lambert("finetune", *flags), 2, f"{flags[0].strip('=')} is empty: it must be a path.")


@pytest.mark.parametrize("verb", [name for name, verb in all_verbs().items() if verb.takes in ("recipe", "table")])
def test_a_path_with_a_nul_character_is_refused(verb: str) -> None:
    _, kind = stage(verb)
    given = {"input": ["i"], "out": "o", "init": "m", "corpus": "c", "data": "d", "model": "m", "recipe": "r.toml"}
    own = {name: given[name] for name in given.keys() & {*list_dotted_names(kind)}}
    names = [name for name in setting_names(kind) if Path in kinds_of(kind, name)]
    for name in names:
        several = get_origin(get_type_hints(kind).get(name)) is tuple
        with pytest.raises(errors.UsageError, match=rf"^{name} = 'a\\x00b' has a NUL character: remove it\.$"):
            parse.settings([verb], own | {name: ["a\0b"] if several else "a\0b"})
    assert names
