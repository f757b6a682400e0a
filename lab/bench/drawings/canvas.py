"""An empty picture of matplotlib, which is an extra (`turnstile-kernel[bench]`)."""

from typing import Any


def canvas(width: float, height: float) -> Any | None:
    """A picture of this size in inches; None without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 -- an extra
        from matplotlib.figure import Figure as Picture  # noqa: PLC0415
    except ImportError:
        return None
    picture: Any = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(picture)
    return picture
