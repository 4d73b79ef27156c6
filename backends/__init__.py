"""One folder a backend: kernels with their requirements; a provider is imported only when used."""
