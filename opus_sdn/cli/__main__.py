"""`python -m opus_sdn.cli`: the command line where its script is not on the path."""

from opus_sdn.cli import main

main()
