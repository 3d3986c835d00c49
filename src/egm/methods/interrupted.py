"""Training that Ctrl-C may end early."""

from __future__ import annotations

from egm.config.targets import own_name
from egm.network_sampler import NetworkSampler
from egm.train.signals import Stopped
from egm.train.trainer import Trainer


def train(trainer: Trainer) -> NetworkSampler:
    """Train; on Ctrl-C, say how to go on, and return the sampler so far."""
    try:
        trainer.train()
    except Stopped:  # the command line's own
        raise
    except KeyboardInterrupt:
        if trainer.run_directory is not None:
            folder, config = trainer.run_directory.folder, trainer.sampler.config
            own = [name for name in ("target", "network", "energy_network") if own_name(config[name]) is not None]
            given = "".join(f", {name}=..." for name in own)
            command = f"egm.resume({str(folder)!r}{given})" if own else f"egm train --resume {folder}"
            what = "stopped and saved" if trainer.between_steps else "stopped in a step; the last checkpoint is kept"
            print(f"\n{what}; continue with: {command}")
    trainer.sampler.network.eval()
    return trainer.sampler
