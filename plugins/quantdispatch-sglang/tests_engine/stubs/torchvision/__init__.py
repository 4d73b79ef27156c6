"""Stands in for torchvision, whose wheels want the very build of torch that they were made for.

SGLang imports it for models with pictures. Nothing that is tested here calls any of it.
"""

__version__ = "0.28.0"
