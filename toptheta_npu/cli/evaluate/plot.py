"""``toptheta plot``: the figures of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..._outputs import check_output_folder, require_matplotlib


def plot(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Results of toptheta evaluate.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write the figures.")],
) -> None:
    """Draw the results of an evaluation.

    Each task gets a figure of score against rows read, as PNG and SVG, with its data as CSV.
    """
    from ...evaluation.figures.plots import save_plots
    from ...evaluation.results import read_results

    require_matplotlib()
    points = read_results(file).measurements
    check_output_folder("--output", output, "tradeoff.png")
    written, left_out = save_plots(points, output)
    console = Console(highlight=False)
    for line in (*(f"{each} written." for each in written), *left_out):
        console.print(line, soft_wrap=True, markup=False)
