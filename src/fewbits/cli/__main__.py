"""``python -m fewbits.cli`` is the ``fewbits`` command."""

from fewbits.cli.main import main

main()
