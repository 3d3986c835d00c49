"""`python -m egm` is the same as `egm`."""

import sys

from egm.cli import main

if __name__ == "__main__":
    sys.exit(main())
