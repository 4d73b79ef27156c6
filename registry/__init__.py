"""What a checkpoint says and what it means: pure Python, never imports torch."""
