"""The command line. Each group of commands is a module here; what is heavy is imported inside the commands."""

import typer

app = typer.Typer(
    help="Write a secret into every image a frozen diffusion model generates, and read it back.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the `diffmark` command."""
    app()
