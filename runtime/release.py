"""Which release this is. The distribution is `turnstile-kernel`: `turnstile` on PyPI is another project."""

DISTRIBUTION = "turnstile-kernel"


def release() -> str:
    """The version of the installed distribution, or "(a source tree, not installed)"."""
    from importlib import metadata  # noqa: PLC0415 -- slow: it would add a third to the imports of `--version`

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(a source tree, not installed)"
