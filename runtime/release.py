"""Which release this is. The distribution is `turnstile-kernel`: `turnstile` on PyPI is another project."""

DISTRIBUTION = "turnstile-kernel"


def release() -> str:
    """The version of the installed distribution, or words for a source tree that was never installed."""
    from importlib import metadata  # noqa: PLC0415 -- a third of what all the other imports of `--version` take

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(a source tree, not installed)"
