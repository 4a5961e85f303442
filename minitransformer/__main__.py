"""`python -m minitransformer` is the command `minitransformer`."""

import sys

from minitransformer.cli import main

sys.exit(main())
