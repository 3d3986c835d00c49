"""`python -m egm.cli`, the same as the command `egm`."""

import sys

from egm.cli.main import main

sys.exit(main())
