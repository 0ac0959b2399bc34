"""The suite under many versions of torch, Python, numpy and transformers: `make matrix`."""
