from .. import InterpolationMode, functional

__all__ = ["InterpolationMode", "functional"]
