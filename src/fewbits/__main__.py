"""``python -m fewbits`` is the ``fewbits`` command."""

from fewbits.cli.main import main

main()
