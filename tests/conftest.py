"""Settings for every test: workers run side by side (pytest-xdist), so each keeps to one thread."""

import torch

torch.set_num_threads(1)
