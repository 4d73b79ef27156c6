from typing import Any


class ImageReadMode:
    RGB = "RGB"


def decode_image(*_: Any, **__: Any) -> Any:
    raise RuntimeError("torchvision is not here")
