"""`python -m egm.cli` runs the command `egm`."""

import sys

from egm.cli.main import main

sys.exit(main())
