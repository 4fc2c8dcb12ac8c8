"""`python -m gloader` is `gloader`."""

import sys

from gloader.cli.main import main

sys.exit(main())
