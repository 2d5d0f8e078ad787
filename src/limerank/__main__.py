"""`python -m limerank` is the command `limerank`."""

from limerank.cli import main

main()
