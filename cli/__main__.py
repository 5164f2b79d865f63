"""``python -m vvs.cli`` is the ``vvs`` command."""

from vvs.cli.app import main

main()
