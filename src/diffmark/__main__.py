"""`python -m diffmark` is the command line."""

from diffmark.cli import main

main()
