"""What adapters for other engines share: an engine's layers to the layers of the checkpoint and their resolutions."""
