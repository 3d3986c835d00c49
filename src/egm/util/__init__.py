"""What every package may use: atomic files, optional packages, expressions, seeds, checked numbers, cached tensors."""
