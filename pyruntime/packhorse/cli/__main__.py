"""Makes `python -m packhorse.cli` work, for machines where scripts are not on the PATH."""

from packhorse.cli import main

main()
