"""``python -m quantdispatch.cli``."""

import sys

from .app import main

sys.exit(main())
