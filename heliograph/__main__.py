"""`python -m heliograph`: the command line if its script is not on the path."""

from heliograph.cli.main import main

main()
