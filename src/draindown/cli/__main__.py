"""`python -m draindown.cli`, where no script is installed."""

import sys

from draindown.cli.program import main

sys.exit(main())
