"""`python -m packhorse.cli`, for where scripts are not on the PATH."""

from packhorse.cli import main

main()
