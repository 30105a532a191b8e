"""`python -m retinue.router.cli`: the command line without its script, as `retinue run` starts its children."""

from retinue.router.cli import main

main()
