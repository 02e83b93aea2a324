"""Latent functions, mixing, likelihood and mean: one model, one bound. Usable without the rest of the package."""
