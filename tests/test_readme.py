"""What the README says about commands, figures and files is so."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from firepool_ray.cli.bench.figures import TARGETS
from firepool_ray.cli.commands import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_two_commands_come_first_and_exist() -> None:
    first_block = README.split("```")[1]
    assert re.findall(r"^make (\w+)", first_block, re.M) == ["demo", "test"]
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert {"demo", "test", "check", "bench", "clean"} <= targets


def test_every_command_is_shown() -> None:
    shown = set(re.findall(r"^firepool (\w+)", README, re.M))
    assert shown == set(main.commands)


def test_the_ten_line_example_is_python_of_ten_lines() -> None:
    example = README.split("```python\n")[1].split("```")[0]
    compile(example, "README.md", "exec")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10


def test_every_figure_is_listed_with_its_target() -> None:
    for target in TARGETS.values():
        row = next(line for line in README.splitlines() if f"`{target.name}`" in line)
        assert f"{target.bound:g}" in row.replace(",", "")


def test_files_and_folders_that_are_named_exist() -> None:
    named = re.findall(r"^(\w+/\S*) {2,}", README, re.M) + re.findall(r"\]\((\S+)\)", README)
    assert named
    for name in [*named, "cluster_configs/local.yaml"]:
        assert (ROOT / name).exists(), name


def test_help_and_version_work_without_ray() -> None:
    for arguments in (["--help"], ["up", "--help"], ["bench", "--help"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
